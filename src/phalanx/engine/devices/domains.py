"""Device attributes as topology: a group whose members' devices must have one value of an attribute in common.

A group asks for it by annotation, for an attribute that all devices of a node share, such as the NVLink domain of
several nodes. The value becomes a label of the node inside the engine (`DEVICE_KEY` + attribute, which no real label
can be called), so that it is a topology domain like any other: for placement, running members, preemption, messages.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.engine.devices.state import DeviceState
from phalanx.model.groups.keys import DEVICE_KEY, device_attribute
from phalanx.model.objects import Node

MOST_ATTRIBUTES = 16  # of all groups: each is a label of every node


class DeviceDomains:
    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self.attributes: dict[str, None] = {}  # qualified names that groups ask for

    def request(self, annotations: Mapping[str, str]) -> bool:
        """Remember the attribute that a group asks for; return True if it is new."""
        attribute = device_attribute(annotations)
        if not attribute or attribute in self.attributes or len(self.attributes) >= MOST_ATTRIBUTES:
            return False
        self.attributes[attribute] = None
        return True

    def labelled(self, node: Node) -> Node:
        """Return the node with the label of every requested attribute that its devices have one value of."""
        if not self.attributes:
            return node
        labels = {key: value for key, value in node.metadata.labels.items() if not key.startswith(DEVICE_KEY)}
        self._state.sync()
        for attribute in self.attributes:
            value = self._common_value(node, attribute)
            if value is not None:
                labels[f"{DEVICE_KEY}{attribute}"] = value
        if labels == node.metadata.labels:
            return node
        return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))

    def _common_value(self, node: Node, attribute: str) -> str | None:
        """Return the value that all devices of a node have which have the attribute; None: none has, or they differ."""
        found = {
            device.attributes[attribute]
            for pool in self._state.inventory.pools_of(node)
            if pool.local
            for device in pool.devices
            if attribute in device.attributes
        }
        return str(next(iter(found))[1]) if len(found) == 1 else None
