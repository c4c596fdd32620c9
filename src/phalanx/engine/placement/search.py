"""Search for a placement of a group tree within a budget: minimums, then optional children, then extra pods.

The search is depth first over domains and choices of children, tightest and most constrained first. Placed leaves are
packed again together with a new leaf where their nodes overlap, so a failure is caused by the choice, not by the order
of placing. The search uses no randomness and no clock: the budget counts expansions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from math import comb

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.engine.placement.bounds import Bounds, wanted
from phalanx.engine.placement.problem import Composite, Ints, Leaf, Subtree, done, leaves
from phalanx.engine.placement.state import Budget, Exhausted, SearchState, Slot

SORTED_CHOICES = 512  # combinations of children that are sorted


class Task(msgspec.Struct, frozen=True, eq=False):
    """Place this group inside that area; then the remaining tasks."""

    group: Subtree
    area: int
    rest: Task | None


class Frame(msgspec.Struct, eq=False):
    task: Task
    choices: Iterator[tuple[int, object]]
    mark: dict[int, Slot]
    chosen: int  # length of the decision list when the frame was made
    handle: tuple[object, ...] | None = None


class Search:
    """Run one mode of the search: full (all pods) or only the minimums."""

    def __init__(
        self, state: SearchState, full: bool, budget: Budget, more: int = 0, *, largest_first: bool = False
    ) -> None:
        self.state = state
        self.full = full
        self.budget = budget
        self.bounds = Bounds(state, full, more)
        self.largest_first = largest_first  # try children with many pods first instead of cheap ones
        self.decisions: list[tuple[Subtree, int]] = []  # (group, its area)
        self._failed: set[tuple[object, ...]] = set()
        self._backtracked = False

    def run(self, group: Subtree, area: int, *, inside: bool = False) -> bool:
        """Return True if the state holds a placement, False if there is none.

        False is a proof unless `budget.truncated` is set. `inside`: the area is already the group's own domain.
        """
        if not self.bounds.required(group):
            return True
        if not (self.bounds.inside(group, area) if inside else self.bounds.possible(group, area)):
            return False
        frames = [self._frame(Task(group, area, None))]
        if inside:
            frames[0].choices = self._details(group, area)
        while frames:
            frame = frames[-1]
            choice = next(frame.choices, None)
            if choice is None:
                self._backtracked = True
                frame.handle = frame.handle or self._handle(frame)
                self.state.rewind(frame.mark)
                self._failed.add(frame.handle)
                del self.decisions[frame.chosen :]
                frames.pop()
                continue
            self.state.rewind(frame.mark)
            del self.decisions[frame.chosen :]
            self.budget.spend()
            area, detail = choice
            rest = self._apply(frame.task, area, detail)
            if rest is _FAILED:
                continue
            if rest is None:
                return True
            assert isinstance(rest, Task)
            fresh = self._frame(rest)
            if self._backtracked:
                fresh.handle = self._handle(fresh)
                if fresh.handle in self._failed:
                    continue
            frames.append(fresh)
        return False

    def _frame(self, task: Task) -> Frame:
        return Frame(task, self._choices(task), self.state.mark(), len(self.decisions))

    def _handle(self, frame: Frame) -> tuple[object, ...]:
        """Return the key of a search state: remaining tasks and load per area and shape, not which leaf causes it."""
        todo = []
        task: Task | None = frame.task
        while task is not None:
            todo.append((self.bounds.kind(task.group), task.area))
            task = task.rest
        load: dict[tuple[int, int], int] = {}
        for assign in frame.mark.values():
            for shape in assign.shapes:
                load[assign.area, shape] = load.get((assign.area, shape), 0) + assign.counts[shape]
        return (tuple(todo), frozenset(load.items()))

    # ---- choices ---------------------------------------------------------------------------------------------

    def _choices(self, task: Task) -> Iterator[tuple[int, object]]:
        for area in self.areas(task.group, task.area):
            yield from self._details(task.group, area)

    def _details(self, group: Subtree, area: int) -> Iterator[tuple[int, object]]:
        if isinstance(group, Leaf):
            for counts in self._counts(group):
                yield area, counts
        else:
            for children in self._children(group, area):
                yield area, children

    def areas(self, group: Subtree, parent: int) -> Iterator[int]:
        """Yield areas that the group may use: preferred narrower ones first, then its domains, tightest first."""
        outer: Iterable[int]
        if group.key is None:
            outer = [parent] if self.bounds.inside(group, parent) else []
        else:
            outer = self._domains(group, parent, group.key, self.bounds.domains(group, parent))
        if group.preferred is not None and group.preferred in self.state.problem.domains:
            outer = list(outer)
            for area in outer:
                ids = np.unique(self.state.split(area, group.preferred)[1])
                yield from self._domains(group, area, group.preferred, ids)
        yield from outer

    def _domains(self, group: Subtree, parent: int, key: str, ids: NDArray[np.integer]) -> Iterator[int]:
        """Yield areas of these domains: enough room first, then most members (leaf), then least spare resources."""
        if not len(ids):
            return
        order = ids if len(ids) == 1 else ids[self._tightness(group, parent, key, ids)]
        for domain in order:
            area = self.state.area(parent, key, int(domain))
            if self.bounds.inside(group, area):
                yield area

    def _tightness(self, group: Subtree, parent: int, key: str, ids: NDArray[np.integer]) -> Ints:
        state = self.state
        nodes, of = state.split(parent, key)
        size = int(of.max()) + 1
        demand = self.bounds.demand(group)
        share = demand * state.inverse
        scarcest = int(share.argmax())
        spare = np.zeros(len(ids))  # shares of all that is free, over all requested resources
        scarce = spare  # free amount of the scarcest requested resource
        short = np.zeros(len(ids), dtype=bool)
        for r in np.flatnonzero(demand):
            free = np.bincount(of, weights=state.free[r, nodes], minlength=size)[ids]
            short |= free < demand[r]
            spare += free * state.inverse[r]
            if r == scarcest:
                scarce = free
        idle = -state.problem.utilization(of, nodes)[ids]
        beside = state.problem.devices_beside(demand, of, nodes)[ids]
        if not isinstance(group, Leaf):
            return np.lexsort((spare, idle, beside, scarce, short))
        fits = np.zeros(len(ids))
        room = np.zeros(len(ids))
        for shape, count in group.demand:
            slots = np.bincount(of, weights=state.slots(shape, nodes), minlength=size)[ids]
            fits += np.minimum(slots, count)
            room += slots
        short |= fits < wanted(group, self.full)
        return np.lexsort((spare, idle, beside, room if len(group.demand) == 1 else scarce, -fits, short))

    def _counts(self, leaf: Leaf) -> Iterator[dict[int, int]]:
        """Yield which pods make up the minimum: all of them, or cheapest first and then every other mixture."""
        need = wanted(leaf, self.full)
        if need >= leaf.total:
            yield dict(leaf.demand)
            return
        scale = self.state.problem.free.sum(axis=1)
        scale[scale <= 0] = 1.0
        size = {s: float((self.state.problem.shapes[s].request / scale).sum()) for s, _ in leaf.demand}
        by_size = sorted(leaf.demand, key=lambda entry: (size[entry[0]], entry[0]))
        yield from _mixtures(by_size, need)

    def _children(self, group: Composite, area: int) -> Iterator[list[Subtree]]:
        """Yield children that make up the minimum: cheapest combination first, most constrained child first in it."""
        pending = [c for c in group.children if self.bounds.required(c) and self.bounds.possible(c, area)]
        missing = self.bounds.missing(group)
        if len(pending) < missing:
            return
        position = {id(c): i for i, c in enumerate(group.children)}
        nodes = self.state.areas[area]
        total = self.state.problem.free[:, nodes].sum(axis=1)
        total[total <= 0] = 1.0
        size = {id(c): float((self.bounds.demand(c) / total).max()) for c in pending}
        cheap = sorted(pending, key=lambda c: (round(size[id(c)], 9), position[id(c)]))
        options = {id(c): len(self.bounds.domains(c, area)) if c.key is not None else 1 << 30 for c in pending}
        choices: Iterable[tuple[Subtree, ...]] = combinations(cheap, missing)
        if self.largest_first and comb(len(cheap), missing) <= SORTED_CHOICES:
            pods = {id(c): sum(leaf.total for leaf in leaves(c)) for c in cheap}
            choices = sorted(choices, key=lambda chosen: -sum(pods[id(c)] for c in chosen))
        for chosen in choices:
            yield sorted(chosen, key=lambda c: (options[id(c)], -size[id(c)], position[id(c)]))

    # ---- steps -----------------------------------------------------------------------------------------------

    def _apply(self, task: Task, area: int, detail: object) -> Task | object | None:
        """Carry out a choice; return the next task, or _FAILED."""
        group = task.group
        if isinstance(group, Leaf):
            assert isinstance(detail, dict)
            if not self.state.assign(group, area, detail):
                return _FAILED
            self.decisions.append((group, area))
            return task.rest
        assert isinstance(detail, list)
        self.decisions.append((group, area))
        rest = task.rest
        for child in reversed(detail):
            rest = Task(child, area, rest)
        return rest


_FAILED = object()


def _mixtures(entries: list[tuple[int, int]], need: int) -> Iterator[dict[int, int]]:
    """Yield ways to take `need` pods out of the entries, as many as possible of the first entries first."""
    if need == 0:
        yield {}
        return
    if not entries:
        return
    (shape, count), rest = entries[0], entries[1:]
    for take in range(min(count, need), -1, -1):
        if need - take > sum(c for _, c in rest):
            return
        for tail in _mixtures(rest, need - take):
            yield {shape: take, **tail} if take else tail


class Extras:
    """Place optional children, then pods beyond the minimums, and keep everything that is placed."""

    def __init__(self, state: SearchState, decisions: list[tuple[Subtree, int]], budget: Budget) -> None:
        self.state = state
        self.budget = budget
        self.areas: dict[int, int] = {id(group): area for group, area in decisions}
        self.decisions = decisions

    def run(self, root: Subtree) -> None:
        self._adopt(root, 0)
        self._children(root)
        self._pods(root)

    def _adopt(self, group: Subtree, parent: int) -> None:
        """Assign an area to groups that were satisfied before this search began."""
        if id(group) not in self.areas:
            if not done(group):
                return
            area = parent
            if group.key is not None and group.key in self.state.problem.domains:
                if group.pinned >= 0:
                    area = self.state.area(parent, group.key, group.pinned)
                else:  # satisfied by finished members only: the domain that fits most pending members
                    found = next(Search(self.state, False, self.budget).areas(group, parent), None)
                    if found is None:
                        return
                    area = found
            self.areas[id(group)] = area
            self.decisions.append((group, area))
        if isinstance(group, Composite):
            for child in group.children:
                self._adopt(child, self.areas[id(group)])

    def _children(self, group: Subtree) -> None:
        if isinstance(group, Leaf) or id(group) not in self.areas:
            return
        for child in group.children:
            if id(child) not in self.areas:
                self._try(child, self.areas[id(group)])
            self._children(child)

    def _try(self, child: Subtree, area: int) -> None:
        mark = self.state.mark()
        budget = Budget(min(self.budget.left, 200))
        search = Search(self.state, False, budget)
        kept, self.state.budget = self.state.budget, budget
        try:
            found = search.run(child, area)
        except Exhausted:
            found = False
        finally:
            self.state.budget = kept
            self.budget.used += budget.used
        if found and search.decisions:
            for group, at in search.decisions:
                self.areas[id(group)] = at
                self.decisions.append((group, at))
            self._adopt(child, area)
        else:
            self.state.rewind(mark)

    def _pods(self, root: Subtree) -> None:
        sitting = [leaf for leaf in leaves(root) if id(leaf) in self.areas]
        for leaf in sitting:
            if id(leaf) not in self.state.assignment:
                self.state.assignment[id(leaf)] = Slot(leaf, self.areas[id(leaf)], (), {}, {})
        minimums = self.state.mark()
        if not self._grow(sitting):
            self.state.rewind(minimums)
            self._pack_exactly()
            self._grow(sitting)

    def _grow(self, sitting: list[Leaf]) -> bool:
        """Place extra pods next to all others, oldest group first. Return True if all pods are placed."""
        all_pods = True
        for leaf in sitting:
            for shape, count in leaf.demand:
                assign = self.state.assignment[id(leaf)]
                more = count - assign.counts.get(shape, 0)
                if more > 0 and self.state.grow(assign, shape, more) < more:
                    all_pods = False
        return all_pods

    def _pack_exactly(self) -> None:
        """Pack exactly for the maximum number of pods, one cluster of overlapping slots after the other."""
        seen: set[int] = set()
        for assign in list(self.state.assignment.values()):
            if id(assign.leaf) in seen:
                continue
            cluster = self.state.cluster(assign)
            seen |= {id(s.leaf) for s in cluster}
            extra: dict[tuple[int, int], int] = {}
            for s in cluster:
                for shape, count in s.leaf.demand:
                    more = count - s.counts.get(shape, 0)
                    if more > 0:
                        extra[id(s.leaf), shape] = more
            if extra:
                self.state.most(cluster, extra, min(2_000, self.budget.left))
