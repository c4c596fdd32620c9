"""Published devices: ResourceSlices combined to pools, and pools by node.

Only the newest generation of a pool counts. An incomplete or inconsistent pool offers no devices; it is kept with the
reason, because requests for all devices must not ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from phalanx.engine.devices.capacity import CapacityRule, capacity_rule
from phalanx.model.objects import DeviceTaintRule, ResourceSlice
from phalanx.model.objects.cluster import Node
from phalanx.model.objects.devices import CounterSet, DeviceTaint, ResourceSliceSpec, SliceDevice
from phalanx.model.objects.pod import NodeSelector
from phalanx.model.quantity import BadQuantity, nanos
from phalanx.model.selectors import BadSelector, NodeMatcher, node_selector

PoolKey = tuple[str, str]  # (driver, pool)
DeviceKey = tuple[str, str, str]  # (driver, pool, device)
CounterKey = tuple[str, str, str, str]  # (driver, pool, counter set, counter)
Value = tuple[str, object]  # (type, value): values of different types never match

_NO_EFFECT = "None"


class Reach(NamedTuple):
    """The nodes from which a device can be used: one node by name, every node, or those a selector matches."""

    node: str = ""
    everywhere: bool = False
    matcher: NodeMatcher | None = None
    selector: NodeSelector | None = None

    def includes(self, node: Node) -> bool:
        if self.node:
            return self.node == node.metadata.name
        if self.everywhere:
            return True
        return self.matcher is not None and self.matcher.matches(node.metadata.labels, node.metadata.name)


class Device:
    """One published device. Compared by identity; replaced when its slice changes."""

    __slots__ = (
        "__weakref__",
        "attributes",
        "capacity",
        "counters",
        "driver",
        "key",
        "multiple",
        "name",
        "order",
        "pool",
        "reach",
        "source",
        "taints",
    )

    def __init__(self, driver: str, pool: Pool, source: SliceDevice, reach: Reach, order: int) -> None:
        self.driver = driver
        self.pool = pool
        self.name = source.name
        self.key: DeviceKey = (driver, pool.key[1], source.name)
        self.source = source
        self.reach = reach
        self.order = order  # within its pool: slices by name, then devices as listed
        self.multiple = source.allow_multiple_allocations
        self.attributes: dict[str, Value] = {
            qualified(name, driver): _typed(value) for name, value in source.attributes.items()
        }
        self.capacity: dict[str, CapacityRule] = {  # by published name
            name: capacity_rule(value) for name, value in source.capacity.items()
        }
        self.counters: tuple[tuple[CounterKey, int], ...] = tuple(
            ((*pool.key, used.counter_set, name), nanos(counter.value))
            for used in source.consumes_counters
            for name, counter in used.counters.items()
        )
        self.taints: tuple[DeviceTaint, ...] = ()  # taints that claims must tolerate

    def __repr__(self) -> str:
        return f"<device {'/'.join(self.key)}>"


class Pool:
    """The newest generation of one pool. `problem`: why nothing may be allocated from it."""

    __slots__ = ("counters", "devices", "incomplete", "key", "local", "problem", "reaches", "slow", "waiting")

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.devices: list[Device] = []
        self.counters: dict[CounterKey, int] = {}
        self.problem = ""
        self.incomplete = False
        self.reaches: list[Reach] = []  # reaches of its devices, if it has a problem
        self.local = ""  # the only node of its devices; "": several nodes
        self.waiting = False  # a device has binding conditions: ready pools come first
        self.slow = False  # devices with shared counters or capacity shares


class Inventory:
    def __init__(self) -> None:
        self._slices: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._dirty: dict[PoolKey, None] = {}
        self.pools: dict[PoolKey, Pool] = {}
        self._local: dict[str, dict[PoolKey, Pool]] = {}  # by node name
        self._shared: dict[PoolKey, Pool] = {}
        self.devices: dict[DeviceKey, Device] = {}
        self.version = 0  # +1 per change
        self.divisible = 0  # slices of one node with a device that can be divided among claims
        self.changed_nodes: dict[str, None] = {}  # nodes whose local pools changed since the last read
        self.shared_changed = False
        self.dropped: list[Device] = []  # removed devices since the last read

    # ---- updates

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        for each, put in ((old, False), (new, True)):
            if each is None:
                continue
            key = (each.spec.driver, each.spec.pool.name)
            slices = self._slices.setdefault(key, {})
            if put:
                slices[each.metadata.name] = each
            else:
                slices.pop(each.metadata.name, None)
            self._dirty[key] = None
            if each.spec.node_name and any(device.allow_multiple_allocations for device in each.spec.devices):
                self.divisible += 1 if put else -1

    def rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        for each, put in ((old, False), (new, True)):
            if each is None:
                continue
            if put:
                self._rules[each.metadata.name] = each
            else:
                self._rules.pop(each.metadata.name, None)
            for key in self.pools:
                if _concerns(each, key):
                    self._dirty[key] = None

    def refresh(self) -> bool:
        """Rebuild changed pools; return True if there were any."""
        if not self._dirty:
            return False
        for key in self._dirty:
            self._replace(key)
        self._dirty.clear()
        self.version += 1
        return True

    def _replace(self, key: PoolKey) -> None:
        old = self.pools.pop(key, None)
        if old is not None:
            self._forget(old)
        slices = self._slices.get(key)
        if not slices:
            self._slices.pop(key, None)
            return
        pool = build_pool(key, slices, self._rules.values())
        if pool is None:
            return
        self.pools[key] = pool
        if pool.local:
            self._local.setdefault(pool.local, {})[key] = pool
            self.changed_nodes[pool.local] = None
        else:
            self._shared[key] = pool
            self.shared_changed = True
        for device in pool.devices:
            self.devices[device.key] = device

    def _forget(self, pool: Pool) -> None:
        self.dropped += pool.devices
        for device in pool.devices:
            self.devices.pop(device.key, None)
        if pool.local:
            pools = self._local.get(pool.local, {})
            pools.pop(pool.key, None)
            if not pools:
                self._local.pop(pool.local, None)
            self.changed_nodes[pool.local] = None
        else:
            self._shared.pop(pool.key, None)
            self.shared_changed = True

    # ---- pools by node

    def shared_devices(self) -> Iterator[Device]:
        """Yield the devices of pools that are visible from more than one node."""
        return (device for pool in self._shared.values() for device in pool.devices)

    @property
    def shared(self) -> bool:
        """Return True if any pool is visible from more than one node."""
        return bool(self._shared)

    def pools_of(self, node: Node) -> list[Pool]:
        """Return the pools with a device, or a problem, that the node can see: ready ones first, by driver and name."""
        found = list(self._local.get(node.metadata.name, {}).values())
        for pool in self._shared.values():
            reaches = pool.reaches if pool.problem else (device.reach for device in pool.devices)
            if any(reach.includes(node) for reach in reaches):
                found.append(pool)
        found.sort(key=lambda pool: (pool.waiting, pool.key))
        return found

    def attributes(self, key: DeviceKey) -> Mapping[str, Value]:
        device = self.devices.get(key)
        return device.attributes if device is not None else {}


def build_pool(key: PoolKey, slices: Mapping[str, ResourceSlice], rules: Iterable[DeviceTaintRule]) -> Pool | None:
    newest = max(each.spec.pool.generation for each in slices.values())
    current = sorted(
        (each for each in slices.values() if each.spec.pool.generation == newest), key=lambda each: each.metadata.name
    )
    pool = Pool(key)
    homes = {each.spec.node_name or "" for each in current if not each.spec.shared_counters or each.spec.devices}
    homes |= {each.spec.node_name or "" for each in current if each.spec.shared_counters}
    pool.local = next(iter(homes)) if len(homes) == 1 else ""
    if len(current) != current[0].spec.pool.resource_slice_count:
        pool.problem, pool.incomplete = "is currently being updated", True
        pool.reaches = _reaches(current)
        return pool
    try:
        _read_slices(pool, current)
    except (BadQuantity, BadSelector) as problem:
        pool.problem = f"is currently invalid: {problem}"
    if pool.problem:
        pool.devices = []
        pool.reaches = _reaches(current)
        return pool
    taints = [rule for rule in rules if _concerns(rule, key)]
    for device in pool.devices:
        own = [*device.source.taints, *(rule.spec.taint for rule in taints if _selects(rule, device.name))]
        device.taints = tuple(taint for taint in own if taint.effect != _NO_EFFECT)
    pool.waiting = any(device.source.binding_conditions for device in pool.devices)
    pool.slow = any(device.counters or device.multiple for device in pool.devices)
    return pool


def _reaches(slices: Iterable[ResourceSlice]) -> list[Reach]:
    """Return the nodes that can use the devices of slices; every node if a selector is invalid."""
    places: list[ResourceSliceSpec | SliceDevice] = []
    for each in slices:
        places += each.spec.devices if each.spec.per_device_node_selection else [each.spec]
    try:
        return [_reach(each.node_name, each.all_nodes, each.node_selector) for each in places]
    except BadSelector:
        return [Reach(everywhere=True)]


def _read_slices(pool: Pool, slices: Iterable[ResourceSlice]) -> None:
    """Add the devices and counters of the slices to a pool; set its problem if they contradict each other."""
    known: set[str] = set()
    for each in slices:
        if (duplicate := _add_counters(pool, each.spec.shared_counters)) is not None:
            pool.problem = f"is currently invalid: duplicate counter set name {duplicate}"
            return
    for each in slices:
        spec = each.spec
        common = _reach(spec.node_name, spec.all_nodes, spec.node_selector)
        for source in spec.devices:
            if source.name in known:
                pool.problem = f"is currently invalid: duplicate device name {source.name}"
                return
            known.add(source.name)
            reach = (
                _reach(source.node_name, source.all_nodes, source.node_selector)
                if spec.per_device_node_selection
                else common
            )
            pool.devices.append(Device(spec.driver, pool, source, reach, len(pool.devices)))
    for device in pool.devices:
        missing = next((counter for counter, _ in device.counters if counter not in pool.counters), None)
        if missing is not None:
            pool.problem = f"is currently invalid: counter {missing[3]} not found in counter set {missing[2]}"
            return


def _add_counters(pool: Pool, sets: Iterable[CounterSet]) -> str | None:
    """Add counter sets to a pool; return the name of a duplicate."""
    known = {counter[2] for counter in pool.counters}
    for each in sets:
        if each.name in known:
            return each.name
        known.add(each.name)
        for name, counter in each.counters.items():
            pool.counters[*pool.key, each.name, name] = nanos(counter.value)
    return None


def _reach(node: str | None, everywhere: bool | None, selector: NodeSelector | None) -> Reach:
    if node:
        return Reach(node=node)
    if everywhere:
        return Reach(everywhere=True)
    if selector is None:
        return Reach()
    return Reach(matcher=node_selector(selector), selector=selector)


def qualified(name: str, driver: str) -> str:
    """Return a qualified name: a name without a domain gets the domain of the driver."""
    return name if "/" in name else f"{driver}/{name}"


def _typed(attribute: object) -> Value:
    for kind in ("string", "int_", "bool_", "version"):
        value = getattr(attribute, kind)
        if value is not None:
            return (kind, value)
    return ("", None)


def _concerns(rule: DeviceTaintRule, key: PoolKey) -> bool:
    """Return True if a rule may taint devices of a pool. A rule without a selector taints nothing."""
    selector = rule.spec.device_selector
    if selector is None:
        return False
    return selector.driver in (None, key[0]) and selector.pool in (None, key[1])


def _selects(rule: DeviceTaintRule, device: str) -> bool:
    selector = rule.spec.device_selector
    return selector is not None and selector.device in (None, device)


def in_order(pools: Iterable[Pool], node: Node) -> Iterator[Device]:
    """Return the devices that the node can use, in the order of allocation."""
    for pool in pools:
        if not pool.problem:
            yield from (device for device in pool.devices if device.reach.includes(node))
