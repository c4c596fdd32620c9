"""GPUFragmentation: keep GPUs usable for the mix of pods that run in the cluster.

A node can take a number of further pods of each type that runs somewhere: as many as its free devices, extended
resources, CPU and memory allow. The GPUs of these pods, weighted by how often each type runs, are the usable GPUs of
the node. The score of a node is how few of them a placement costs. Pods without GPUs prefer nodes with few free GPUs,
which costs them less time than counting and leaves as many GPUs usable.

By default it applies while some device of the cluster can be divided among claims.
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
from phalanx.engine.framework.config_args import GPUFragmentationArgs
from phalanx.engine.plugins.device_filter import FollowsDevices
from phalanx.engine.plugins.free_gpus import FreeGPUs
from phalanx.engine.state.claims import MISSING, NAMED
from phalanx.engine.state.columns import CPU, MEMORY, Columns
from phalanx.engine.state.journal import Change, ChangeLog
from phalanx.engine.state.shapes import Shape

MOST_TYPES = 128  # the most frequent types of pods that count
CELLS_AT_ONCE = 1 << 20  # limits the memory of one pass: rows by devices by types
FEW_ROWS = 4  # that are looked up in what is known before they are computed
MOST_KNOWN = 1 << 12  # states of nodes
LEAST_SHARE = 1 / 1024  # of a device; smaller requests count as this much
ROUNDING = 1e-9

State = tuple[tuple[float, ...], bytes, bytes]  # free amounts, shares and kinds of devices


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


class Mix:
    """The types of placed pods with GPUs, and how many more of them fit on nodes."""

    def __init__(self, gpus: FreeGPUs, types: Sequence[tuple[PodType, float]]) -> None:
        self.types = types  # with the fraction of pods that have this type
        self._gpus = gpus
        kinds = [kind for kind, _ in types]
        self._fractions = np.array([fraction for _, fraction in types])
        number: dict[AllocationRequest, int] = {}
        asked = {
            at: number.setdefault(kind.request, len(number))
            for at, kind in enumerate(kinds)
            if kind.request is not None
        }
        self._requests = list(number)
        self._counts = np.array([request.count for request in number])
        self._asking = np.array(list(asked), dtype=np.int64)  # types with a request
        self._asked = np.array(list(asked.values()), dtype=np.int64)  # which one
        self._units = np.array([sum((units for _, units in kind.extended), 0.0) for kind in kinds])
        amounts: dict[int, dict[int, float]] = {}  # by resource id and type
        for at, kind in enumerate(kinds):
            for rid, amount in ((CPU, kind.cpu), (MEMORY, kind.memory), *kind.extended):
                if amount:
                    amounts.setdefault(rid, {})[at] = amount
        self._amounts = [(rid, np.array(list(of)), np.array(list(of.values()))) for rid, of in amounts.items()]
        self.extended = [rid for rid in amounts if rid not in (CPU, MEMORY)]
        self._shares: dict[AllocationRequest, Floats] = {}
        self._table = np.zeros((0, 0))  # (requests, kinds of devices) shares

    @property
    def width(self) -> int:
        """Return the number of requests."""
        return len(self._requests)

    def cells(self, devices: int) -> int:
        """Return how many numbers one row takes in a pass."""
        return max(1, len(self.types), self.width * devices)

    def shares(self, request: AllocationRequest) -> Floats:
        """Return the share of a device that a request takes, by kind of device; infinite if it cannot use it."""
        known, examples = self._shares.get(request), self._gpus.examples
        if known is None or len(known) <= len(examples):
            known = np.array([np.inf, *(self._share(request, device) for device in examples)])
            self._shares[request] = known
        return known

    def _share(self, request: AllocationRequest, device: Device) -> float:
        takes = request.takes(device) if request.capacity or device.multiple else {}
        selectors = self._gpus.state.selectors
        if takes is None or request.selects(device, selectors) is not True or not request.tolerates(device):
            return np.inf
        if not device.multiple:
            return 1.0
        parts = [amount / device.capacity[name].value for name, amount in takes.items() if device.capacity[name].value]
        return max([LEAST_SHARE, *parts])

    def served(self, devices: Floats, kinds: Rows) -> tuple[Floats, Floats]:
        """Return how often devices serve each request, by row, and the GPUs that one pod gets. Of a request for several
        devices, how many of them it could use."""
        if not self._requests:
            return np.zeros((len(devices), 0)), np.zeros((len(devices), 0))
        if self._table.shape[1] <= len(self._gpus.examples):
            self._table = np.array([self.shares(request) for request in self._requests])
        need = self._table[:, kinds]  # (requests, rows, devices)
        fit = np.floor((devices + ROUNDING) / need)
        several = self._counts > 1
        if several.any():
            fit[several] = np.minimum(fit[several], 1.0)
        least = need.min(axis=2)
        gpus = np.where(np.isfinite(least), self._counts[:, None] * least, 0.0)
        return fit.sum(axis=2).T, gpus.T

    def usable(self, room: Room, served: Floats, gpus: Floats) -> Floats:
        """Return the usable GPUs: those of all pods that fit, by type, weighted by how often the type occurs."""
        slots = np.full((len(room.cpu), len(self.types)), np.inf)
        for rid, at, amounts in self._amounts:
            free = room.cpu if rid == CPU else room.memory if rid == MEMORY else room.extended[rid]
            slots[:, at] = np.minimum(slots[:, at], np.floor(free[:, None] / amounts))
        units = np.broadcast_to(self._units, slots.shape)
        if len(self._asking):
            times = np.floor(served / self._counts)[:, self._asked]
            slots[:, self._asking] = np.minimum(slots[:, self._asking], times)
            units = units.copy()
            units[:, self._asking] += gpus[:, self._asked]
        total: Floats = (np.maximum(slots, 0.0) * units) @ self._fractions
        return total

    def usable_after(self, kind: PodType, room: Room, served: Floats, gpus: Floats) -> Floats:
        """Return the usable GPUs when a pod took its part; the allocator fills the fullest devices first."""
        extended = dict(room.extended)
        for rid, units in kind.extended:
            if rid in extended:
                extended[rid] = extended[rid] - units
        if kind.request is not None:
            need = self.shares(kind.request)[room.kinds]
            fits = room.devices + ROUNDING >= need
            order = np.argsort(np.where(fits, room.devices, np.inf), axis=1, kind="stable")[:, : kind.request.count]
            taken = np.arange(len(order))[:, None], order
            before, kinds = room.devices[taken], room.kinds[taken]
            after = before - np.where(fits, need, 0.0)[taken]
            served = served - self.served(before, kinds)[0] + self.served(after, kinds)[0]
        left = Room(room.cpu - kind.cpu, room.memory - kind.memory, extended, room.devices, room.kinds)
        return self.usable(left, served, gpus)


class Nodes:
    """The usable GPUs of all rows, for all shapes of a profile."""

    def __init__(self, gpus: FreeGPUs) -> None:
        self.gpus = gpus
        self.state = gpus.state
        self.columns = gpus.columns
        self.mix = Mix(gpus, [])
        self.usable: Floats = np.zeros(0)  # (capacity,) GPUs
        self.served: Floats = np.zeros((0, 0))  # (capacity, requests)
        self.per_pod: Floats = np.zeros((0, 0))  # (capacity, requests) GPUs
        self.log = ChangeLog[int]()  # rows to evaluate again, or ALL_ROWS
        self._known: dict[State, tuple[float, Floats, Floats]] = {}
        self._seen = (-1, -1)  # positions of the columns and the GPUs
        self._counted = (-1, 0)  # position at which the mix was counted, and the number of pods then

    def sync(self) -> None:
        columns, gpus = self.columns, self.gpus
        gpus.sync()
        now = (columns.log.position, gpus.log.position)
        if now == self._seen:
            return
        changes = columns.log.since(self._seen[0]) if self._seen[0] >= 0 else None
        touched = gpus.log.since(self._seen[1]) if self._seen[1] >= 0 else None
        self._seen = now
        old = now[0] - self._counted[0] >= max(1, self._counted[1] // 4)
        if old or changes is None or touched is None or ALL_ROWS in touched:
            self._count_pods()
        else:
            offers = gpus.offers
            rows = dict.fromkeys([*touched, *(row for row, _, _ in changes if offers[row])])
            if rows:
                self._count(np.array(list(rows)))
                self.log.extend(list(rows))

    def _count(self, rows: Rows) -> None:
        if len(rows) > FEW_ROWS:
            for at in self.parts(rows):
                served, per_pod = self.mix.served(self.gpus.devices[at], self.gpus.kinds[at])
                self.usable[at] = self.mix.usable(self.room(at), served, per_pod)
                self.served[at], self.per_pod[at] = served, per_pod
            return
        for row in rows.tolist():
            state = self.state_of(row)
            known = self._known.get(state)
            if known is None:
                at = np.array([row])
                served, per_pod = self.mix.served(self.gpus.devices[at], self.gpus.kinds[at])
                known = float(self.mix.usable(self.room(at), served, per_pod)[0]), served[0], per_pod[0]
                remember(self._known, state, known)
            self.usable[row], self.served[row], self.per_pod[row] = known

    def state_of(self, row: int) -> State:
        """Return what the usable GPUs of a row depend on."""
        alloc, used = self.columns.alloc_cell, self.columns.used_cell
        free = tuple([alloc[rid][row] - used[rid][row] for rid in (CPU, MEMORY, *self.mix.extended)])
        return free, self.gpus.devices[row].tobytes(), self.gpus.kinds[row].tobytes()

    def room(self, rows: Rows) -> Room:
        alloc, used = self.columns.alloc, self.columns.used
        free = {rid: alloc[rid, rows] - used[rid, rows] for rid in (CPU, MEMORY, *self.mix.extended)}
        return Room(free[CPU], free[MEMORY], free, self.gpus.devices[rows], self.gpus.kinds[rows])

    def parts(self, rows: Rows) -> list[Rows]:
        """Return rows in parts of limited size."""
        size = max(1, CELLS_AT_ONCE // self.mix.cells(self.gpus.devices.shape[1]))
        return [rows[first : first + size] for first in range(0, len(rows), size)]

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
        self.gpus.learn(request)
        return request

    def _count_pods(self) -> None:
        """Count the types of the placed pods. Done again when a quarter has changed: O(1) per change."""
        columns, gpus = self.columns, self.gpus
        shapes = Counter(record.shape for placed in columns.pods[: columns.n] for record in placed.values())
        counts: dict[PodType, int] = {}
        for shape, number in shapes.items():
            kind = self.type_of(shape, placed=True)
            if kind.extended or kind.request is not None:
                counts[kind] = counts.get(kind, 0) + number
        most = sorted(counts.items(), key=lambda item: -item[1])[:MOST_TYPES]
        total = sum(count for _, count in most)
        self._counted = (columns.log.position, shapes.total())
        gpus.sync()  # with the attributes that count now
        self._seen = (columns.log.position, gpus.log.position)
        self.mix = Mix(gpus, [(kind, count / total) for kind, count in most])
        self._known = {}
        self.usable = np.zeros(columns.capacity)
        self.served, self.per_pod = (np.zeros((columns.capacity, self.mix.width)) for _ in range(2))
        for at in self.parts(np.flatnonzero(gpus.offers)):
            self._count(at)
        self.log.append(ALL_ROWS)


def remember(known: dict[State, Any], state: State, value: Any) -> None:
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[state] = value


class Linear:
    """Normalise to 0..100 over the range of the feasible nodes. Small differences count: the scores are multiples of
    1/1024, and sums of them are exact."""

    def bounds(self, raw: Floats) -> tuple[float, float]:
        return float(raw.min()), float(raw.max())

    def scale(self, raw: Any, low: float, high: float) -> Any:
        return np.floor(1024 * MAX_SCORE * ((raw - low) / (high - low))) / 1024 if high > low else raw * 0.0


class FragmentationScore(FollowsDevices):
    """The score for pods with GPUs: the fewer usable GPUs a placement costs, the higher."""

    normaliser = Linear()

    def __init__(self, plugin: GPUFragmentation, shape: Shape, columns: Columns) -> None:
        super().__init__(plugin.nodes.state, shape, columns)
        self.plugin = plugin
        self.nodes = plugin.nodes
        self.raw: Floats = np.zeros(columns.capacity)
        self._applies = False
        self._followed = -1
        self._kind = PodType(0.0, 0.0, (), None)
        self._known: dict[State, float] = {}

    def rebuild(self) -> None:
        nodes = self.nodes
        self.raw = np.zeros(self.columns.capacity)
        self._applies = self.plugin.applies
        if not self._applies:
            return
        self._start()
        self._kind = nodes.type_of(self.shape)  # learns its selectors
        nodes.sync()
        self._followed = nodes.log.position
        self._known = {}
        for rows in nodes.parts(np.flatnonzero(nodes.gpus.offers)):
            self.raw[rows] = self._scores(rows)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        if self.plugin.applies != self._applies:
            self.rebuild()
            return None
        if not self._applies:
            return ()
        nodes = self.nodes
        nodes.sync()
        rows = nodes.log.since(self._followed)
        if rows is None or ALL_ROWS in rows or self._claims() != self._seen:
            self.rebuild()
            return None
        self._followed = nodes.log.position
        rows = list(dict.fromkeys(rows))
        if len(rows) > FEW_ROWS:
            for at in nodes.parts(np.array(rows)):
                self.raw[at] = self._scores(at)
            return rows
        for row in rows:
            state = nodes.state_of(row)
            score = self._known.get(state)
            if score is None:
                score = float(self._scores(np.array([row]))[0])
                remember(self._known, state, score)
            self.raw[row] = score
        return rows

    def _scores(self, rows: Rows) -> Floats:
        nodes = self.nodes
        after = nodes.mix.usable_after(self._kind, nodes.room(rows), nodes.served[rows], nodes.per_pod[rows])
        lost: Floats = nodes.usable[rows] - after
        return -lost


class FewestIdle:
    """The score for pods without GPUs: the fewer free GPUs, whose CPU and memory they leave to others, the higher."""

    normaliser = Linear()

    def __init__(self, plugin: GPUFragmentation, columns: Columns) -> None:
        self.plugin = plugin
        self.columns = columns
        self.raw: Floats = np.zeros(columns.capacity)
        self._applies = False
        self._followed = -1

    def rebuild(self) -> None:
        gpus = self.plugin.nodes.gpus
        self._applies = self.plugin.applies
        if not self._applies:
            self.raw = np.zeros(self.columns.capacity)
            return
        gpus.sync()
        self._followed = gpus.log.position
        self.raw = -gpus.idle

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        if self.plugin.applies != self._applies:
            self.rebuild()
            return None
        if not self._applies:
            return ()
        gpus = self.plugin.nodes.gpus
        gpus.sync()
        if gpus.log.position == self._followed:
            return ()
        rows = gpus.log.since(self._followed)
        if rows is None or ALL_ROWS in rows:
            self.rebuild()
            return None
        self._followed = gpus.log.position
        changed = np.array(rows)
        self.raw[changed] = -gpus.idle[changed]
        return rows


class GPUFragmentation:
    name = "GPUFragmentation"
    traits = Traits(default_weight=3)

    def __init__(self, args: Mapping[str, Any], handle: Handle, state: DeviceState) -> None:
        self._always = not GPUFragmentationArgs.read(args).only_shared_devices
        self._inventory = state.inventory
        self.nodes = Nodes(FreeGPUs(state, handle.columns))

    @property
    def applies(self) -> bool:
        return self._always or self._inventory.divisible > 0

    def track_score(self, shape: Shape, columns: Columns) -> FragmentationScore | FewestIdle:
        asks = shape.claims or any("/" in columns.resource_names[rid] for rid, _ in shape.requests)
        return FragmentationScore(self, shape, columns) if asks else FewestIdle(self, columns)
