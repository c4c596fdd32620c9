"""GPUFragmentation: keep GPUs usable for the mix of pods that run in the cluster. Off by default.

A node can take a number of further pods of each type that runs somewhere: as many as its free devices, extended
resources, CPU and memory allow. The GPUs of these pods, weighted by how often each type runs, are the usable GPUs of
the node. The score of a node is how few of them a placement costs. Pods without GPUs prefer nodes with few free GPUs,
which costs them less time than counting and leaves as many GPUs usable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.state import ALL_ROWS, DeviceState
from phalanx.engine.framework import MAX_SCORE, Floats, Handle, Rows, Traits
from phalanx.engine.framework.adapters import relevant_rows
from phalanx.engine.framework.config_args import GPUFragmentationArgs
from phalanx.engine.framework.interface import Depends
from phalanx.engine.plugins.device_filter import FollowsDevices
from phalanx.engine.state.claims import MISSING, NAMED
from phalanx.engine.state.columns import CPU, MEMORY, Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.shapes import Shape

MOST_TYPES = 128  # the most frequent types of pods that count
MOST_EXPRESSIONS = 1024  # of device selectors
MOST_DEVICES = 64  # devices of one node that count
ROWS_AT_ONCE = 2048  # limits the memory of one pass
LEAST_SHARE = 1 / 1024  # of a device; smaller requests count as this much
ROUNDING = 1e-9
_CHANGES = int(Depends.NODE | Depends.USAGE)


class PodType(NamedTuple):
    """What a pod takes of a node."""

    cpu: float
    memory: float
    extended: tuple[tuple[int, float], ...]  # (resource id, units)
    request: AllocationRequest | None  # of devices


class Room(NamedTuple):
    """What is free on some rows."""

    cpu: Floats  # (rows,)
    memory: Floats
    extended: dict[int, Floats]  # by resource id
    devices: Floats  # (rows, devices) free share of each device, 0..1
    kinds: Rows  # (rows, devices) kind of each device; 0: no device


class Nodes:
    """The free devices and the usable GPUs of all rows, and the mix of pods, for all shapes of a profile."""

    def __init__(self, state: DeviceState, columns: Columns) -> None:
        self.state = state
        self.columns = columns
        self.version = 0  # +1 with every new mix
        self.mix: list[tuple[PodType, float]] = []  # with the fraction of pods that have this type
        self.usable: Floats = np.zeros(0)  # (capacity,) GPUs
        self._kinds: dict[Any, int] = {}
        self._examples: list[Device] = []  # of each kind
        self._expressions: dict[str, None] = {}  # of the device selectors of pods
        self._mentioned: dict[str, bool] = {}  # attribute -> some expression contains its name
        self._shares: dict[AllocationRequest, Floats] = {}
        self._devices: Floats = np.zeros((0, 1))
        self._kind_of: Rows = np.zeros((0, 1), dtype=np.int64)
        self._seen = (-1, -1, -1)  # generation and position of the columns, position of the devices
        self._counted = (-1, 0)  # position at which the mix was counted, and the number of pods then

    # ---- changes

    def sync(self) -> None:
        columns, state = self.columns, self.state
        state.sync()
        now = (columns.generation, columns.log.position, state.log.position)
        if now == self._seen:
            return
        known = self._seen[0] == now[0] and len(self.usable) == columns.capacity
        changes = columns.log.since(self._seen[1]) if known else None
        touched = state.log.since(self._seen[2]) if known else None
        self._seen = now
        if changes is None or touched is None or ALL_ROWS in touched:
            self._start_over()
            return
        rows = [row for row in dict.fromkeys(touched) if row < columns.capacity]
        for row in rows:
            self._read(row)
        if columns.log.position - self._counted[0] >= max(1, self._counted[1] // 4):
            self._count_pods()
        elif changed := list(dict.fromkeys([*rows, *relevant_rows(changes, _CHANGES)])):
            at = np.array(changed)
            self.usable[at] = self.usable_in(self.room(at))

    def _start_over(self) -> None:
        columns = self.columns
        self._kinds, self._examples, self._shares = {}, [], {}
        self._devices = np.zeros((columns.capacity, 1))
        self._kind_of = np.zeros((columns.capacity, 1), dtype=np.int64)
        self.usable = np.zeros(columns.capacity)
        for row in range(columns.n):
            self._read(row)
        self._count_pods()

    def _read(self, row: int) -> None:
        """Read the devices of a row."""
        devices = self.state.view(row).devices[:MOST_DEVICES]
        if (more := len(devices) - self._devices.shape[1]) > 0:
            self._devices = np.pad(self._devices, ((0, 0), (0, more)))
            self._kind_of = np.pad(self._kind_of, ((0, 0), (0, more)))
        self._devices[row], self._kind_of[row] = 0.0, 0
        for at, device in enumerate(devices):
            self._devices[row, at] = self.free_share(device)
            self._kind_of[row, at] = self._kind(device)

    def free_share(self, device: Device) -> float:
        """Return the free share of a device, 0 to 1."""
        holdings = self.state.holdings
        if holdings.in_use(device):
            return 0.0
        limits = [(name, rule.value) for name, rule in device.capacity.items() if rule.value] if device.multiple else ()
        return min((1.0 - holdings.consumed(device, name) / limit for name, limit in limits), default=1.0)

    def _kind(self, device: Device) -> int:
        """Return a number that is equal for devices which requests do not distinguish. An attribute that no selector
        names does not count: each device may have a serial number."""
        taints = tuple((taint.key, taint.value, taint.effect) for taint in device.taints)
        attributes = tuple((name, value) for name, value in sorted(device.attributes.items()) if self._matters(name))
        key = (device.driver, device.multiple, attributes, tuple(sorted(device.capacity.items())), taints)
        kind = self._kinds.get(key)
        if kind is None:
            self._examples.append(device)
            kind = self._kinds[key] = len(self._examples)
        return kind

    def _matters(self, attribute: str) -> bool:
        name = attribute.rpartition("/")[2]
        known = self._mentioned.get(name)
        if known is None:
            known = self._mentioned[name] = any(name in expression for expression in self._expressions)
        return known

    def _learn(self, request: AllocationRequest) -> None:
        """Let kinds of devices differ in the attributes that a request names. The next `sync` reads all devices."""
        for expression, _ in request.selectors:
            if expression in self._expressions or len(self._expressions) >= MOST_EXPRESSIONS:
                continue
            self._expressions[expression] = None
            for name, known in self._mentioned.items():
                if not known and name in expression:
                    self._mentioned[name] = True
                    self._seen = (-1, -1, -1)

    # ---- the mix

    def type_of(self, shape: Shape, *, placed: bool = False) -> PodType:
        amounts = dict(shape.requests)
        extended = tuple(pair for pair in shape.requests if "/" in self.columns.resource_names[pair[0]])
        return PodType(amounts.get(CPU, 0.0), amounts.get(MEMORY, 0.0), extended, self._request(shape, placed))

    def _request(self, shape: Shape, placed: bool) -> AllocationRequest | None:
        """Return the only device request of a shape; None if it has none or several."""
        if len(shape.claims) != 1 or shape.claims[0].kind == MISSING:
            return None
        use, state = shape.claims[0], self.state
        if use.kind == NAMED:
            claim = state.claim(use.claim)
            if claim is None or (use.claim in state.holdings.claims and not placed):
                return None
            spec = state.specs.of(claim)
        else:
            spec = state.specs.of_spec(use.spec, use.key, shape.namespace)
        request = spec.only_request
        if request is None or request.everything or request.admin or request.count < 1:
            return None
        self._learn(request)
        return request

    def _count_pods(self) -> None:
        """Count the types of the placed pods. Done again when a quarter has changed: O(1) per change."""
        shapes = Counter(record.shape for placed in self.columns.pods[: self.columns.n] for record in placed.values())
        counts: dict[PodType, int] = {}
        for shape, number in shapes.items():
            kind = self.type_of(shape, placed=True)
            if kind.extended or kind.request is not None:
                counts[kind] = counts.get(kind, 0) + number
        most = sorted(counts.items(), key=lambda item: -item[1])[:MOST_TYPES]
        total = sum(count for _, count in most)
        self.mix = [(kind, count / total) for kind, count in most]
        self._shares = {}
        self._counted = (self.columns.log.position, shapes.total())
        self.version += 1
        self.usable = np.zeros(self.columns.capacity)
        for at in self.all_rows():
            self.usable[at] = self.usable_in(self.room(at))

    def all_rows(self) -> list[Rows]:
        return [
            np.arange(first, min(first + ROWS_AT_ONCE, self.columns.n))
            for first in range(0, self.columns.n, ROWS_AT_ONCE)
        ]

    # ---- amounts

    def room(self, rows: Rows) -> Room:
        columns = self.columns
        free = columns.alloc[:, rows] - columns.used[:, rows]
        extended = {rid: free[rid] for kind, _ in self.mix for rid, _ in kind.extended}
        return Room(free[CPU], free[MEMORY], extended, self._devices[rows], self._kind_of[rows])

    def shares(self, request: AllocationRequest) -> Floats:
        """Return the share of a device that a request takes, by kind of device; infinite if it cannot use it."""
        known = self._shares.get(request)
        if known is None or len(known) <= len(self._examples):
            known = np.array([np.inf, *(self._share(request, device) for device in self._examples)])
            self._shares[request] = known
        return known

    def _share(self, request: AllocationRequest, device: Device) -> float:
        takes = request.takes(device) if request.capacity or device.multiple else {}
        if takes is None or request.selects(device, self.state.selectors) is not True or not request.tolerates(device):
            return np.inf
        if not device.multiple:
            return 1.0
        parts = [amount / device.capacity[name].value for name, amount in takes.items() if device.capacity[name].value]
        return max([LEAST_SHARE, *parts])

    def usable_in(self, room: Room) -> Floats:
        """Return the usable GPUs: those of all pods that fit, by type, weighted by how often the type occurs."""
        total: Floats = np.zeros(len(room.cpu))
        slots_of: dict[AllocationRequest, tuple[Floats, Floats]] = {}
        for kind, fraction in self.mix:
            slots, gpus = np.full(len(total), np.inf), np.zeros(len(total))
            if kind.request is not None:
                if kind.request not in slots_of:
                    slots_of[kind.request] = self._device_slots(kind.request, room)
                slots, gpus = slots_of[kind.request]
            for rid, units in kind.extended:
                slots = np.minimum(slots, np.floor(room.extended[rid] / units))
                gpus = gpus + units
            if kind.cpu:
                slots = np.minimum(slots, np.floor(room.cpu / kind.cpu))
            if kind.memory:
                slots = np.minimum(slots, np.floor(room.memory / kind.memory))
            total += fraction * gpus * np.maximum(slots, 0.0)
        return total

    def _device_slots(self, request: AllocationRequest, room: Room) -> tuple[Floats, Floats]:
        """Return how many such claims the devices of each row serve, and the GPUs of one."""
        need = self.shares(request)[room.kinds]
        if request.count == 1:
            slots = np.floor((room.devices + ROUNDING) / need).sum(axis=1)
        else:
            slots = np.floor((room.devices + ROUNDING >= need).sum(axis=1) / request.count)
        least = need.min(axis=1)
        return slots, np.where(np.isfinite(least), request.count * least, 0.0)

    def without(self, kind: PodType, room: Room) -> Room:
        """Return what is left when a pod takes its part; the allocator fills the fullest devices first."""
        extended = dict(room.extended)
        for rid, units in kind.extended:
            if rid in extended:
                extended[rid] = extended[rid] - units
        devices = room.devices
        if kind.request is not None:
            need = self.shares(kind.request)[room.kinds]
            fits = devices + ROUNDING >= need
            taken = np.argsort(np.where(fits, devices, np.inf), axis=1, kind="stable")[:, : kind.request.count]
            devices = devices.copy()
            rows = np.arange(len(devices))[:, None]
            devices[rows, taken] -= np.where(fits, need, 0.0)[rows, taken]
        return Room(room.cpu - kind.cpu, room.memory - kind.memory, extended, devices, room.kinds)


class Linear:
    """Normalise to 0..100 over the range of the feasible nodes. Small differences count: the scores are multiples of
    1/1024, and sums of them are exact."""

    def bounds(self, raw: Floats) -> tuple[float, float]:
        return float(raw.min()), float(raw.max())

    def scale(self, raw: Any, low: float, high: float) -> Any:
        return np.floor(1024 * MAX_SCORE * ((raw - low) / (high - low))) / 1024 if high > low else raw * 0.0


class FragmentationScore(FollowsDevices):
    normaliser = Linear()

    def __init__(self, nodes: Nodes, shape: Shape, columns: Columns) -> None:
        super().__init__(nodes.state, shape, columns)
        self.nodes = nodes
        self.raw: Floats = np.zeros(columns.capacity)
        self._version = -1

    def rebuild(self) -> None:
        self._start()
        self.nodes.type_of(self.shape)  # learns its selectors
        self.nodes.sync()
        self._version = self.nodes.version
        self.raw = np.zeros(self.columns.capacity)
        for rows in self.nodes.all_rows():
            self._evaluate(rows)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        touched = self._rows()
        self.nodes.sync()
        if touched is None or self._version != self.nodes.version:
            self.rebuild()
            return None
        rows = list(dict.fromkeys([*touched, *relevant_rows(changes, _CHANGES)]))
        if rows:
            self._evaluate(np.array(rows))
        return rows

    def _evaluate(self, rows: Rows) -> None:
        nodes = self.nodes
        after = nodes.usable_in(nodes.without(nodes.type_of(self.shape), nodes.room(rows)))
        self.raw[rows] = np.where(self.columns.alive[rows], after - nodes.usable[rows], 0.0)


class FewestIdle(FollowsDevices):
    """The score for pods without GPUs: the free GPUs of a node, whose CPU and memory they leave to others."""

    normaliser = Linear()

    def __init__(self, nodes: Nodes, shape: Shape, columns: Columns) -> None:
        super().__init__(nodes.state, shape, columns)
        self.nodes = nodes
        self.raw: Floats = np.zeros(columns.capacity)

    def rebuild(self) -> None:
        self._start()
        self.raw = np.zeros(self.columns.capacity)
        for row in np.flatnonzero(self.columns.alive[: self.columns.n]).tolist():
            self._evaluate(row)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        touched = self._rows()
        if touched is None:
            self.rebuild()
            return None
        extended = frozenset(self.columns.devices())
        rows = dict.fromkeys(touched)
        for row, record, _ in changes:
            if record is None or any(rid in extended for rid, _ in record.shape.requests):
                rows[row] = None
        for row in rows:
            self._evaluate(row)
        return list(rows)

    def _evaluate(self, row: int) -> None:
        self.raw[row] = -self.idle(row) if self.columns.alive[row] else 0.0

    def idle(self, row: int) -> float:
        """Return the free GPUs of a node: extended resources, and devices or their shares."""
        columns = self.columns
        free = sum(columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid in columns.devices())
        return free + sum(map(self.nodes.free_share, self.state.view(row).devices[:MOST_DEVICES]))


class GPUFragmentation:
    name = "GPUFragmentation"
    traits = Traits(default_weight=1)

    def __init__(self, args: Mapping[str, Any], handle: Handle, state: DeviceState) -> None:
        GPUFragmentationArgs.read(args)
        self.nodes = Nodes(state, handle.columns)

    def track_score(self, shape: Shape, columns: Columns) -> FragmentationScore | FewestIdle:
        asks = shape.claims or any("/" in columns.resource_names[rid] for rid, _ in shape.requests)
        return FragmentationScore(self.nodes, shape, columns) if asks else FewestIdle(self.nodes, shape, columns)
