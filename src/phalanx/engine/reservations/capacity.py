"""Free capacity of every node over time, as pieces during which nothing changes.

The profile answers two questions exactly: where a gang fits for a whole span from a given time, and what the
earliest such time is. A search skips every start that an earlier failure already excludes, so it looks at few windows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.engine.reservations.reservation import FOREVER, Assignment, Demand, Rows

Ints = npt.NDArray[np.integer]
FAILURES_BEFORE_JUMP = 4  # failed windows after which the next possible start is searched in the whole window
MANY_NODES_TO_CHANGE = 64  # a change of more than 1/64 of the nodes adds whole rows
LEAST_NODES_TO_READ = 64  # the minimum over more nodes than these
SHARE_OF_NODES_TO_READ = 1 / 16  # and than this share of all is taken of whole rows
PIECES_PER_SPAN, PIECES_PER_WAIT = 32, 128  # a coarse end is late by at most 1/32 of the span or 1/128 of the wait
FIRST_PIECES = 64  # room for pieces that a new profile allocates


class TopologyLevels:
    """Which domain of each level a node is in; equal for all profiles of a cluster."""

    def __init__(self, levels: Sequence[Sequence[str]], nodes: int) -> None:
        """`levels`: per level, from small to large domains, the domain name of every node (empty: in no domain)."""
        self.nodes = nodes
        self.names: list[list[str]] = []  # level -> domain names
        self._order: list[npt.NDArray[np.intp]] = []  # level -> nodes in a domain, domain by domain
        self._first: list[npt.NDArray[np.intp]] = []  # level -> where each domain begins in that order
        self.domain: list[npt.NDArray[np.intp]] = []  # level -> (node,) index of the domain, -1: none
        for labels in levels:
            names = list(dict.fromkeys(name for name in labels if name))
            index = {name: i for i, name in enumerate(names)}
            domain = np.array([index.get(name, -1) for name in labels], dtype=np.intp)
            inside = np.flatnonzero(domain >= 0)
            inside = inside[np.argsort(domain[inside], kind="stable")]
            self.names.append(names)
            self.domain.append(domain)
            self._order.append(inside)
            self._first.append(np.searchsorted(domain[inside], np.arange(len(names))))

    def is_one_domain(self, level: int, rows: npt.NDArray[np.intp]) -> bool:
        """Return True if all nodes are in the same domain of a level; negative level: no domain is required."""
        domains = self.domain[level][rows] if level >= 0 else rows[:0]
        return not len(domains) or bool(domains[0] >= 0 and (domains == domains[0]).all())

    def per_domain(self, level: int, slots: Ints) -> Ints:
        """Sum the slots of nodes by domain; `slots`: (..., node), result: (..., domain)."""
        if not self.names[level]:
            return np.zeros((*slots.shape[:-1], 1), dtype=np.int64)
        ordered = slots[..., self._order[level]]
        sums: Ints = np.add.reduceat(ordered, self._first[level], axis=-1, dtype=np.int64)
        return sums


class CapacityProfile:
    """Free amounts per piece, resource and node. Piece `i` lasts from `times[i]` until `times[i + 1]`."""

    def __init__(self, now: float, free: Ints, topology: TopologyLevels, *, coarse: bool = False) -> None:
        """`free`: (resource, node) amounts, without what runs. `coarse`: `until` rounds ends up, so that many units
        need few pieces."""
        self.topology, self.coarse = topology, coarse
        self.exact_below = 0  # pieces up to which a coarse profile rounds nothing
        self.per_wait = PIECES_PER_WAIT
        self.rising = True  # free amounts only rise: nothing is reserved from a later time on
        self._allocate(FIRST_PIECES, free.shape, free.dtype)
        self._view(FIRST_PIECES // 2, FIRST_PIECES // 2 + 1)
        self.times[0] = now
        self.rows[0] = free
        self._sum[0] = free.sum(axis=1, dtype=np.int64)

    @classmethod
    def over(cls, times: npt.NDArray[np.float64], free: Ints, topology: TopologyLevels) -> CapacityProfile:
        """Return a profile of which all pieces are known; `times`: (piece,), `free`: (piece, resource, node)."""
        new = cls(float(times[0]), free[0], topology)
        new._allocate(len(times) + FIRST_PIECES, free.shape[1:], free.dtype)
        new._view(FIRST_PIECES // 4, FIRST_PIECES // 4 + len(times))
        new.times[:], new.rows[:], new._sum[:] = times, free, free.sum(axis=2, dtype=np.int64)
        return new

    def _allocate(self, pieces: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._all_times = np.empty(pieces)
        self._all_rows: Ints = np.empty((pieces, *shape), dtype=dtype)
        self._all_sums = np.empty((pieces, shape[0]), dtype=np.int64)

    def _view(self, low: int, high: int) -> None:
        """Point at the pieces from `low` to `high` of the allocated arrays."""
        self._low, self._high, self.n = low, high, high - low
        self.times = self._all_times[low:high]  # (piece,) when each begins
        self.rows: Ints = self._all_rows[low:high]  # (piece, resource, node) what is free
        self._sum = self._all_sums[low:high]  # (piece, resource) over all nodes

    def copy(self) -> CapacityProfile:
        new = object.__new__(CapacityProfile)
        new.topology, new.coarse, new.rising = self.topology, self.coarse, self.rising
        new.exact_below, new.per_wait = self.exact_below, self.per_wait
        new._move_from(self, self.n + FIRST_PIECES, FIRST_PIECES // 4)
        return new

    def _move_from(self, old: CapacityProfile, pieces: int, low: int) -> None:
        times, rows, sums = old.times, old.rows, old._sum
        self._allocate(pieces, rows.shape[1:], rows.dtype)
        self._view(low, low + len(times))
        self.times[:], self.rows[:], self._sum[:] = times, rows, sums

    @property
    def start(self) -> float:
        return float(self.times[0])

    def until(self, start: float, span: float) -> float:
        """Return the end of a span that begins at `start`. A coarse profile rounds it up, more so for a later start."""
        if not self.coarse or span == FOREVER or self.n < self.exact_below:
            return start + span
        return self.rounded_up(start + span, max(span / PIECES_PER_SPAN, (start - self.times[0]) / self.per_wait))

    @staticmethod
    def rounded_up(at: float, by: float) -> float:
        """Round a time up by at most `by` seconds, to one of few times."""
        grain: float = 2.0 ** (math.frexp(by)[1] - 1)
        return math.ceil(at / grain) * grain

    def _untils(self, starts: npt.NDArray[np.float64], span: float) -> npt.NDArray[np.float64]:
        """Return `until` for many starts."""
        if not self.coarse or self.n < self.exact_below:
            return starts + span
        _, exponents = np.frexp(np.maximum(span / PIECES_PER_SPAN, (starts - self.times[0]) / self.per_wait))
        grains = np.ldexp(1.0, exponents - 1)
        ends: npt.NDArray[np.float64] = np.ceil((starts + span) / grains) * grains
        return ends

    # ---- changes

    def advance(self, now: float) -> None:
        """Forget what is before `now`."""
        if now <= self.times[0]:
            return
        k = int(self.times.searchsorted(now, side="right")) - 1
        if k:
            self._view(self._low + k, self._high)
        self.times[0] = now

    def piece_at(self, t: float) -> int:
        """Make a piece begin at `t` and return its index."""
        if t <= self.times[0]:
            return 0
        i = int(self.times.searchsorted(t))
        if i == self.n or self.times[i] != t:
            self._insert([t], [i])
        return i

    def begin_pieces(self, times: Iterable[float]) -> None:
        """Make a piece begin at each of these times."""
        begins = np.unique(np.array(list(times)))
        at = self.times.searchsorted(begins)
        new = (begins > self.times[0]) & (self.times[np.minimum(at, self.n - 1)] != begins)
        if new.any():
            self._insert(begins[new].tolist(), at[new].tolist())

    def _insert(self, times: list[float], at: list[int]) -> None:
        """Insert a piece for each of these times before the piece `at`. Each begins as a copy of the one before it."""
        more = len(times)
        to_front = 2 * sum(at) < self.n * more  # the shorter side makes room
        if (self._low < more) if to_front else (self._high + more > len(self._all_times)):
            self._make_room(more)
        old, low = self._low, self._low - more if to_front else self._low
        blocks = list(zip(itertools.count(), [0, *at], [*at, self.n], strict=False))
        for array in (self._all_times, self._all_rows, self._all_sums):
            size, flat = array[0].nbytes, _bytes_of(array)
            for shift, first, end in blocks if to_front else reversed(blocks):
                begin = (low + shift + first) * size
                flat[begin : begin + (end - first) * size] = flat[(old + first) * size : (old + end) * size]
            for shift, i in enumerate(at):
                begin = (low + shift + i) * size
                flat[begin : begin + size] = flat[begin - size : begin]
        self._view(low, low + self.n + more)
        self.times[[shift + i for shift, i in enumerate(at)]] = times

    def _make_room(self, more: int) -> None:
        """Make room for more pieces at both sides: in the memory there is, or in more memory."""
        n, allocated = self.n, len(self._all_times)
        if allocated - n < 2 * more + FIRST_PIECES:
            self._move_from(self, 2 * (n + more) + FIRST_PIECES, (n + more + FIRST_PIECES) // 2)
            return
        low = (allocated - n) // 2
        for array in (self._all_times, self._all_rows, self._all_sums):
            size, flat = array[0].nbytes, _bytes_of(array)
            flat[low * size : (low + n) * size] = flat[self._low * size : self._high * size]
        self._view(low, low + n)

    def change(self, start: float, until: float, demand: Demand, where: Assignment, sign: int) -> None:
        """Take (`sign` -1) or return (+1) the room of an assignment from `start` until `until`."""
        if until <= self.times[0] or until <= start:
            return
        if start > self.times[0]:
            self.rising = False
        a = self.piece_at(start)
        z = self.n if until == FOREVER else self.piece_at(until)
        counts = where.counts * sign
        nodes = self.rows.shape[2]
        dense = z - a > 1 and len(counts) * MANY_NODES_TO_CHANGE > nodes
        for r, amount in enumerate(demand.request):
            if amount:
                delta = (counts * amount).astype(self.rows.dtype)
                if dense:
                    whole = np.zeros(nodes, dtype=delta.dtype)
                    whole[where.rows] = delta
                    self.rows[a:z, r] += whole
                else:
                    self.rows[a:z, r, where.rows] += delta
                self._sum[a:z, r] += int(counts.sum()) * amount

    def change_node(self, row: int, delta: Ints) -> None:
        """Add to what one node offers from now on; `delta`: (resource,)."""
        self.rows[:, :, row] += delta.astype(self.rows.dtype)
        self._sum[:] += delta.astype(np.int64)

    def set_nodes(self, rows: npt.NDArray[np.intp], free: Ints) -> None:
        """Set what is free on some nodes; `free`: (piece, resource, chosen node)."""
        self._sum += (free - self.rows[:, :, rows]).sum(axis=2, dtype=np.int64)
        self.rows[:, :, rows] = free
        self.rising = False

    # ---- questions

    def most(self) -> list[int]:
        """Return the most of every resource that is free at any time, over all nodes."""
        return [int(amount) for amount in self._sum.max(axis=0)]

    def least(self, start: float, until: float) -> Ints:
        """Return the least free amounts from `start` until `until`, (resource, node)."""
        i, k = self.window(start, until)
        least: Ints = self.rows[i:k].min(axis=0)
        return least

    def window(self, start: float, until: float) -> tuple[int, int]:
        """Return the first piece of the time from `start` until `until`, and the first after it."""
        i = max(0, int(self.times.searchsorted(start, side="right")) - 1)
        return i, max(i + 1, int(self.times.searchsorted(until))) if until != FOREVER else self.n

    def fits(self, demand: Demand, start: float, until: float) -> Assignment | None:
        """Choose nodes for the demand for the whole time from `start` until `until`, or None."""
        i, k = self.window(start, until)
        if not self._enough(demand, i, k):
            return None
        return self._choose_in(demand, i, k)

    def has_slots_now(self, demand: Demand) -> bool:
        """Return True if the first piece alone has room for the demand, in one domain of its level."""
        return self.slots_now(demand) >= demand.pods

    def slots_now(self, demand: Demand) -> int:
        """Return for how many pods of the demand the first piece alone has room, in one domain of its level."""
        return self._most_slots(demand, self.rows[0])

    def nodes_with_room_now(self, demand: Demand) -> Rows:
        return np.flatnonzero(self._slots(demand, self.rows[0]))

    def pods_from_now(self, demand: Demand, nodes: Rows) -> Ints:
        """Return (piece, chosen node) for how many pods a node has room from now until the end of each piece."""
        return self._slots(demand, np.minimum.accumulate(self.rows.take(nodes, axis=2), axis=0), nodes)

    def most_together(self, demand: Demand, slots: Ints, nodes: Rows | None = None) -> int:
        """Return for how many pods there is room in one domain of the demand's level; `slots`: (node,) of these nodes,
        None: of all."""
        if demand.level < 0:
            return int(slots.sum(dtype=np.int64))
        return int(self.topology.per_domain(demand.level, self._of_all(slots, nodes)).max())

    def _of_all(self, slots: Ints, nodes: Rows | None) -> Ints:
        """Return the slots of all nodes; those that are not chosen have none."""
        if nodes is None:
            return slots
        every = np.zeros(self.topology.nodes, dtype=slots.dtype)
        every[nodes] = slots
        return every

    def _most_slots(self, demand: Demand, free: Ints) -> int:
        return self.most_together(demand, self._slots(demand, free))

    def _choose_in(self, demand: Demand, i: int, k: int) -> Assignment | None:
        """Choose nodes for the pieces from `i` to `k`. Only nodes with room in the first one are looked at further."""
        slots = self._slots(demand, self.rows[i])
        if int(slots.sum(dtype=np.int64)) < demand.pods:
            return None
        if k - i == 1 or self.rising:
            return self.choose(demand, self.rows[i])
        nodes = np.flatnonzero(slots)
        if len(nodes) > max(LEAST_NODES_TO_READ, SHARE_OF_NODES_TO_READ * len(slots)):
            return self.choose(demand, self.rows[i:k].min(axis=0))
        return self.choose(demand, self.rows[i:k].take(nodes, axis=2).min(axis=0), nodes)

    def holds(self, demand: Demand, where: Assignment, start: float, until: float) -> bool:
        """Return True if exactly these nodes have room for the demand from `start` until `until`."""
        i, k = self.window(start, until)
        return all(
            bool((self.rows[i:k, r, where.rows].min(axis=0) >= where.counts * amount).all())
            for r, amount in enumerate(demand.request)
            if amount
        )

    def over_committed(self, where: Assignment, start: float, until: float) -> bool:
        """Return True if more is used than one of these nodes has from `start` until `until`."""
        i, k = self.window(start, until)
        return bool((self.rows[i:k, :, where.rows] < 0).any())

    def _enough(self, demand: Demand, i: int, k: int) -> bool:
        return all(
            int(self._sum[i:k, r].min()) >= demand.pods * amount for r, amount in enumerate(demand.request) if amount
        )

    def earliest(
        self, demand: Demand, span: float, after: float = -FOREVER, before: float = FOREVER
    ) -> tuple[float, Assignment] | None:
        """Return the earliest start not before `after` at which the demand fits for `span` seconds, and its nodes.

        None: it fits at no time before `before` ends.
        """
        times = self.times
        starts = times if after <= times[0] else np.maximum(times, after)
        first = 0 if after <= times[0] else max(0, int(times.searchsorted(after, side="right")) - 1)
        good = self._good_starts(demand, span, starts, first)
        at, failures = first, 0
        while True:
            j = int(good.searchsorted(at))
            if j == len(good):
                return None
            i = int(good[j])
            t = float(starts[i])
            if t > before:
                return None
            k = max(i + 1, int(times.searchsorted(self.until(t, span)))) if span != FOREVER else self.n
            where = self._choose_in(demand, i, k)
            if where is not None:
                return t, where
            failures += 1
            at = i + 1 if failures % FAILURES_BEFORE_JUMP else self._next_start(demand, i, k)

    def _good_starts(
        self, demand: Demand, span: float, starts: npt.NDArray[np.float64], first: int
    ) -> npt.NDArray[np.intp]:
        """Return the pieces from which on the sum over all nodes suffices for the whole span."""
        n = self.n
        enough = np.ones(n, dtype=np.bool_)
        for r, amount in enumerate(demand.request):
            if amount:
                enough &= self._sum[:, r] >= demand.pods * amount
        bad = np.flatnonzero(~enough)
        if not len(bad):
            return np.arange(first, n)
        following = bad.searchsorted(np.arange(n))  # index into `bad` of the first bad piece not before each piece
        limit = np.append(self.times[bad], FOREVER)[following]
        good = enough & ((limit >= self._untils(starts, span)) if span != FOREVER else (limit == FOREVER))
        return np.flatnonzero(good)

    def _slots(self, demand: Demand, free: Ints, nodes: Rows | None = None) -> Ints:
        """Return how many pods of the demand each node holds; `free`: (..., resource, node) of these nodes."""
        slots: Ints | None = None
        for r, amount in enumerate(demand.request):
            if amount:
                held = free[..., r, :] // free.dtype.type(amount)
                slots = held if slots is None else np.minimum(slots, held)
        if slots is None:
            slots = np.full(free.shape[:-2] + free.shape[-1:], demand.pods, dtype=np.int64)
        if demand.eligible is not None:
            slots = slots * (demand.eligible if nodes is None else demand.eligible[nodes])
        return np.maximum(slots, 0)

    def _next_start(self, demand: Demand, i: int, k: int) -> int:
        """Return the first piece after `i` that the failed window from `i` to `k` does not exclude.

        If the last pieces of the window alone have too few slots, every later start that still needs them fails too.
        """
        fits, fails = k, i  # the pieces from `fits` to `k` have room, those from `fails` to `k` have not
        least: Ints = np.full_like(self.rows[i], np.iinfo(self.rows.dtype).max)  # of the pieces from `fits`
        step = 1
        while fits - fails > 1:
            middle = fits - step if fits - step > fails else (fits + fails) // 2
            lower: Ints = np.minimum(least, self.rows[middle:fits].min(axis=0))
            if self._most_slots(demand, lower) >= demand.pods:
                fits, least, step = middle, lower, 2 * step
            else:
                fails, step = middle, 1 + (fits - middle) // 2
        return fails + 1

    def choose(self, demand: Demand, free: Ints, nodes: Rows | None = None) -> Assignment | None:
        """Choose nodes by best fit: the tightest domain that holds all pods, then the nodes with the least room.

        `nodes`: of which `free` is, in order; None: all.
        """
        slots = self._slots(demand, free, nodes)
        if demand.level >= 0:
            room = self.topology.per_domain(demand.level, self._of_all(slots, nodes))  # (domain,)
            possible = np.flatnonzero(room >= demand.pods)
            if not len(possible):
                return None
            best = possible[int(room[possible].argmin())]
            domain = self.topology.domain[demand.level]
            slots = np.where((domain if nodes is None else domain[nodes]) == best, slots, 0)
        elif int(slots.sum(dtype=np.int64)) < demand.pods:
            return None
        rows = np.flatnonzero(slots)
        key = next((r for r, amount in enumerate(demand.request[::-1]) if amount), 0)
        rows = rows[np.argsort(free[len(demand.request) - 1 - key, rows], kind="stable")]
        taken = np.cumsum(slots[rows], dtype=np.int64)
        last = int(taken.searchsorted(demand.pods))
        rows = rows[: last + 1]
        counts = slots[rows].astype(np.int64)
        counts[-1] -= int(taken[last]) - demand.pods
        return Assignment(rows if nodes is None else nodes[rows], counts)

    def check(self) -> None:
        """Raise AssertionError if a node is over-committed at any time or the sums are wrong."""
        assert (self.rows >= 0).all(), "a node is over-committed"
        assert (self.rows.sum(axis=2, dtype=np.int64) == self._sum).all(), "the sums are wrong"
        assert (np.diff(self.times) > 0).all(), "times do not increase"


def _bytes_of(array: Any) -> memoryview:
    """Return the memory of an array. Bytes are moved at once, while an array that is moved within itself is copied."""
    return memoryview(array.reshape(-1)).cast("B")
