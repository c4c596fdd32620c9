"""Devices of nodes that do not exist: a trial that adds a node publishes what a driver would publish for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from phalanx.engine.devices.inventory import Inventory
from phalanx.model.objects import ResourceSlice


class NewDevices:
    """The slices of new nodes. They are known from the first trial that needs them until `withdraw`."""

    def __init__(self, inventory: Inventory, slices: Iterable[ResourceSlice]) -> None:
        self._inventory = inventory
        self._existing: dict[str, list[ResourceSlice]] = {}  # by node
        self._expected: dict[str, Sequence[ResourceSlice] | str] = {}  # by new node: its slices, or a node like it
        self._published: dict[str, list[ResourceSlice]] = {}
        for each in slices:
            if each.spec.node_name:
                self._existing.setdefault(each.spec.node_name, []).append(each)

    def expect(self, node: str, like: str) -> None:
        """Let a new node have the devices of an existing one."""
        if like in self._existing:
            self._expected[node] = like

    def declare(self, slices: Mapping[str, Sequence[ResourceSlice]]) -> None:
        self._expected.update(slices)

    def count(self, node: str) -> int:
        """Return how many devices a new node has."""
        expected = self._expected.get(node, ())
        slices = self._existing[expected] if isinstance(expected, str) else expected
        return sum(len(each.spec.devices) for each in slices)

    def publish(self, node: str) -> None:
        expected = self._expected.get(node)
        if expected is None or node in self._published:
            return
        if isinstance(expected, str):
            found = [slice_copy(each, expected, node) for each in self._existing[expected]]
        else:
            found = list(expected)
        self._published[node] = found
        for each in found:
            self._inventory.slice_changed(None, each)

    def withdraw(self) -> None:
        for each in [each for found in self._published.values() for each in found]:
            self._inventory.slice_changed(each, None)
        self._published.clear()


def slice_copy(like: ResourceSlice, node: str, name: str) -> ResourceSlice:
    """Return the same devices for another node, none of them in use."""
    metadata = msgspec.structs.replace(like.metadata, name=f"{like.metadata.name}-of-{name}", uid="")
    own = like.spec.pool.name.replace(node, name)
    pool = msgspec.structs.replace(like.spec.pool, name=own if own != like.spec.pool.name else f"{own}-of-{name}")
    spec = msgspec.structs.replace(like.spec, node_name=name, pool=pool)
    return msgspec.structs.replace(like, metadata=metadata, spec=spec)
