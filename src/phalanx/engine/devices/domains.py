"""Device attributes as topology keys: all devices of a group's members must have one value of an attribute.

A group requests this by annotation, for an attribute that all devices of a node share, such as the NVLink domain of
several nodes. Inside the engine the value becomes a label of the node (`DEVICE_KEY` + attribute, which is no valid
label), so that placement, running members, preemption and messages treat it like any topology domain.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.engine.devices.state import DeviceState
from phalanx.model.groups.keys import DEVICE_KEY, device_attribute
from phalanx.model.objects import Node

MOST_ATTRIBUTES = 16  # of all groups: each one adds a label to every node


class DeviceDomains:
    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self.attributes: dict[str, None] = {}  # qualified names that groups request

    def request(self, annotations: Mapping[str, str]) -> bool:
        """Add the attribute that a group requests; return True if it is new."""
        attribute = device_attribute(annotations)
        if not attribute or attribute in self.attributes or len(self.attributes) >= MOST_ATTRIBUTES:
            return False
        self.attributes[attribute] = None
        return True

    def labelled(self, node: Node) -> Node:
        """Return the node with a label for every requested attribute for which its devices have one value."""
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
        """Return the value that all devices with the attribute share; None: no device has it, or values differ."""
        found = {
            device.attributes[attribute]
            for pool in self._state.inventory.pools_of(node)
            if pool.local
            for device in pool.devices
            if attribute in device.attributes
        }
        return str(next(iter(found))[1]) if len(found) == 1 else None
