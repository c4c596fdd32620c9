"""Resources held by claims: whole devices, shares of devices, counters of pools; updated per claim."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from phalanx.engine.devices.inventory import CounterKey, Device, DeviceKey, Inventory, PoolKey
from phalanx.model.objects.cluster import Node
from phalanx.model.objects.devices import AllocationResult
from phalanx.model.objects.pod import NodeSelector
from phalanx.model.quantity import BadQuantity, nanos
from phalanx.model.selectors import BadSelector, NodeMatcher, NodeTerm, Requirement, node_selector

ClaimKey = tuple[str, str]  # (namespace, name)
_NOWHERE = NodeMatcher(())
MOST_NODES = 16_384  # nodes whose selectors are shared by allocations


class Held(NamedTuple):
    """An allocation for counting. `shares`: capacity by device; None for a whole device."""

    devices: tuple[tuple[DeviceKey, dict[str, int] | None], ...]
    matcher: NodeMatcher | None  # None: usable on every node
    allocation: AllocationResult

    def usable_on(self, node: Node) -> bool:
        return self.matcher is None or self.matcher.matches(node.metadata.labels, node.metadata.name)


def held_by(allocation: AllocationResult) -> Held:
    """Return the resources of an allocation.

    An invalid allocation written by a user holds the named devices and is usable on no node.
    """
    devices: list[tuple[DeviceKey, dict[str, int] | None]] = []
    for result in allocation.devices.results:
        if result.admin_access:
            continue
        shares: dict[str, int] | None = None
        if result.share_id is not None or result.consumed_capacity:
            shares = {}
            for name, amount in result.consumed_capacity.items():
                try:
                    shares[name] = nanos(amount)
                except BadQuantity:
                    shares[name] = 0
        devices.append(((result.driver, result.pool, result.device), shares))
    matcher = None
    if allocation.node_selector is not None:
        try:
            matcher = _matcher(allocation.node_selector)
        except BadSelector:
            matcher = _NOWHERE
    return Held(tuple(devices), matcher, allocation)


def _matcher(selector: NodeSelector) -> NodeMatcher:
    """Compile the node selector of an allocation; most name one node."""
    terms = selector.node_selector_terms
    if len(terms) == 1 and not terms[0].match_expressions and len(fields := list(terms[0].match_fields or ())) == 1:
        only = fields[0]
        if only.key == "metadata.name" and only.operator == "In" and len(only.values or ()) == 1:
            return _only((only.values or [""])[0])
    return node_selector(selector)


@lru_cache(maxsize=MOST_NODES)
def _only(node: str) -> NodeMatcher:
    return NodeMatcher((NodeTerm((), (Requirement("metadata.name", "In", (node,)),)),))


class Holdings:
    """Sum of all allocations. Implements `allocator.Usage`."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.claims: dict[ClaimKey, Held] = {}
        self.whole: dict[DeviceKey, int] = {}
        self.parts: dict[DeviceKey, int] = {}
        self._consumed: dict[DeviceKey, dict[str, int]] = {}
        self._counters: dict[PoolKey, dict[CounterKey, int]] = {}  # cache; cleared when a pool changes

    def set(self, claim: ClaimKey, held: Held | None) -> Iterable[DeviceKey]:
        """Replace the counted allocation of a claim; return the affected devices."""
        old = self.claims.get(claim)
        if old is held:
            return ()
        touched: dict[DeviceKey, None] = {}
        for each, sign in ((old, -1), (held, 1)):
            for key, shares in each.devices if each is not None else ():
                touched[key] = None
                table = self.whole if shares is None else self.parts
                _add(table, key, sign)
                for name, amount in (shares or {}).items():
                    _add(self._consumed.setdefault(key, {}), name, sign * amount)
        if held is None:
            self.claims.pop(claim, None)
        else:
            self.claims[claim] = held
        for key in touched:
            self._counters.pop(key[:2], None)
        return touched

    def contested(self, claim: ClaimKey) -> str:
        """Return a device of a claim that another claim holds as well, because an allocation was edited; else ""."""
        held = self.claims.get(claim)
        for key, shares in held.devices if held is not None else ():
            others = self.whole.get(key, 0) - (shares is None)
            if others > 0 or (shares is None and key in self.parts):
                return "/".join(key)
        return ""

    def pools_changed(self) -> None:
        self._counters.clear()

    # ---- allocator.Usage

    def in_use(self, device: Device) -> bool:
        """Return True if the device cannot be allocated as a whole. A share of an unshareable device (the claim or
        slice was edited) counts as the whole device."""
        return device.key in self.whole or (not device.multiple and device.key in self.parts)

    def shared(self, device: Device) -> bool:
        return device.key in self.parts

    def consumed(self, device: Device, capacity: str) -> int:
        return self._consumed.get(device.key, {}).get(capacity, 0)

    def counted(self, counter: CounterKey) -> int:
        key = counter[:2]
        known = self._counters.get(key)
        if known is None:
            known = self._counters[key] = {}
            pool = self._inventory.pools.get(key)
            for device in pool.devices if pool is not None else ():
                if device.key in self.whole or device.key in self.parts:
                    for each, amount in device.counters:
                        known[each] = known.get(each, 0) + amount
        return known.get(counter, 0)


class Unused:
    """Usage of a cluster without allocations."""

    def in_use(self, device: Device) -> bool:
        return False

    def shared(self, device: Device) -> bool:
        return False

    def consumed(self, device: Device, capacity: str) -> int:
        return 0

    def counted(self, counter: CounterKey) -> int:
        return 0


def _add(table: dict[DeviceKey, int] | dict[str, int], key: object, amount: int) -> None:
    value = table.get(key, 0) + amount  # type: ignore[call-overload]
    if value:
        table[key] = value  # type: ignore[index]
    else:
        table.pop(key, None)  # type: ignore[call-overload]
