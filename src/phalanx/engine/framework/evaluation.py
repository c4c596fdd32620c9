"""Evaluate all nodes for one shape: masks, scores, best row and slot counts, updated row by row.

The first evaluation of a shape is one vector pass per plugin. After that it follows the change log, so the next pod of
the same shape costs only what changed since. The best row is found through block maxima, which avoids a pass over all
nodes. Ties: the lowest row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phalanx.engine.framework.adapters import (
    FEW_ROWS,
    PluginFailure,
    RowFilter,
    RowScore,
    checked,
    failure_of,
    guarded,
    make_filter,
    make_score,
)
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.framework.interface import Bools, Code, Depends, Floats, Normaliser, ShapeFilter, ShapeScore, Status
from phalanx.engine.framework.options import CountsSlots, FailsOnRows, implements, normaliser_of, set_feasible_of
from phalanx.engine.framework.profile import Profile
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.shapes import Shape

BLOCK = 256
NEVER = float("-inf")


class _Term:
    """The contribution of one score plugin to the total."""

    __slots__ = (
        "constant", "high", "low", "normaliser", "plugin", "sample", "scaled", "set_feasible", "tracker", "weight",
    )  # fmt: skip

    def __init__(self, plugin: Any, tracker: ShapeScore, weight: int, normaliser: Normaliser | None) -> None:
        self.plugin = plugin
        self.tracker = tracker
        self.weight = float(weight)
        self.normaliser = normaliser
        self.set_feasible = set_feasible_of(tracker)
        self.low = self.high = 0.0
        self.constant = False  # every node has the same raw score, so the bounds cannot change
        self.sample: Floats = np.zeros(0)  # (1,) that score
        self.scaled: Floats = np.zeros(0)  # weight * normalised score


class Evaluation:
    def __init__(self, shape: Shape, profile: Profile, columns: Columns, objects: Objects) -> None:
        self.shape = shape
        self.profile = profile
        self.columns = columns
        self.objects = objects
        self.filters: list[tuple[Any, ShapeFilter]] = []
        self._plain: list[_Term] = []  # already 0..100
        self._normalised: list[_Term] = []
        self._local_filters: list[tuple[Any, RowFilter]] = []  # filters that evaluate each row on its own
        self._asked: Any = None  # the plugin being called, to name it if it fails
        self._trackers: list[tuple[Any, ShapeFilter]] = []  # all other filters
        self._local_scores: list[tuple[_Term, RowScore]] = []
        self._score_trackers: list[_Term] = []
        self.feasible: Bools = np.zeros(0, dtype=np.bool_)  # (capacity,)
        self.total: Floats = np.zeros(0)  # (capacity,) weighted sum of scores, -inf where infeasible
        self._block: Floats = np.zeros(0)
        self._width = BLOCK
        self._position = -1
        self._generation = -1
        self._objects_version = -1
        self._slots: npt.NDArray[np.int64] | None = None
        self._slots_stale: set[int] | None = None  # rows to count again; None: all rows
        self._cap: tuple[int | None] | None = None
        # True if a placed pod of this shape can change a verdict for the next one in a way that slot counts do not
        # cover.
        self.reaches_beyond = True
        self.counted = False  # slot counts cover all effects between pods of this shape
        self._failing: list[tuple[Any, FailsOnRows]] = []  # trackers that may fail on single rows
        self._slot_trackers: list[CountsSlots] = []  # trackers that know how many more pods fit on a row

    # ---- updates

    def refresh(self) -> None:
        """Bring the evaluation up to date. Raises PluginFailure; the next refresh then starts from scratch."""
        columns = self.columns
        position = columns.log.position
        outside = self.objects.version
        if position == self._position and outside == self._objects_version and columns.generation == self._generation:
            return
        changes: Sequence[Change] | None = None
        if self._position >= 0 and columns.generation == self._generation:
            changes = columns.log.since(self._position)
        self._position = -1
        if changes is None:
            self._rebuild()
        else:
            self._apply(changes)
        if self._failing:
            self._check_failures()
        self._position = position
        self._objects_version = outside
        self._generation = columns.generation

    def _check_failures(self) -> None:  # raise if only the failing filter rejects a row
        for plugin, failing in self._failing:
            for row, text in failing.failures.items():
                if self.columns.alive[row] and sum(not each.mask[row] for _, each in self.filters) == 1:
                    raise PluginFailure(plugin.name, text)

    def _rebuild(self) -> None:
        self._cap = None
        self.filters = []
        self._plain = []
        self._normalised = []
        options = self.profile.options
        for plugin in self.profile.filters:
            tracker = guarded(plugin, make_filter, options[plugin.name], self.shape, self.columns)
            if tracker is not None:
                self.filters.append((plugin, tracker))
        for plugin, weight in self.profile.scores:
            score = guarded(plugin, make_score, options[plugin.name], self.shape, self.columns)
            if score is not None:
                term = _Term(plugin, score, weight, normaliser_of(options[plugin.name], score))
                (self._plain if term.normaliser is None else self._normalised).append(term)
        terms = [*self._plain, *self._normalised]
        self._local_filters = [(plugin, each) for plugin, each in self.filters if isinstance(each, RowFilter)]
        self._trackers = [(plugin, each) for plugin, each in self.filters if not isinstance(each, RowFilter)]
        self._local_scores = [(term, term.tracker) for term in terms if isinstance(term.tracker, RowScore)]
        self._score_trackers = [term for term in terms if not isinstance(term.tracker, RowScore)]
        reaching = [tracker for plugin, tracker in self.filters if self._reaches_beyond(plugin, tracker)]
        self.reaches_beyond = bool(reaching)
        self.counted = all(implements(each, CountsSlots) and cast("CountsSlots", each).counted for each in reaching)
        self._slot_trackers = [cast("CountsSlots", each) for _, each in self._trackers if implements(each, CountsSlots)]
        failing = [(plugin, each) for plugin, each in self._trackers if implements(each, FailsOnRows)]
        self._failing = [(plugin, cast("FailsOnRows", each)) for plugin, each in failing]
        self._combine()

    def _reaches_beyond(self, plugin: Any, tracker: ShapeFilter) -> bool:
        traits = traits_of(plugin)
        if isinstance(tracker, RowFilter) and (traits.counted or not tracker.depends & Depends.USAGE):
            return False
        return bool(guarded(plugin, traits.touches, self.shape))

    def _combine(self) -> None:
        """Compute feasibility and totals of all rows from the trackers' arrays."""
        self._slots_stale = None
        capacity = self.columns.capacity
        feasible = self.columns.alive.copy()
        for _, tracker in self.filters:
            feasible &= tracker.mask
        self.feasible = feasible
        self._width = min(BLOCK, capacity)
        for term in self._normalised:
            raw = term.tracker.raw[: self.columns.n]
            if self.columns.count < self.columns.n:
                raw = raw[self.columns.alive[: self.columns.n]]
            term.constant = len(raw) > 0 and term.set_feasible is None and bool((raw == raw[0]).all())
            term.sample = raw[:1]  # of a row in use: free rows have 0
        self._report_feasible()
        self._rescale(force=True)
        self._sum()

    def _report_feasible(self) -> bool:
        """Pass the feasible rows to scores that depend on them. Return True if any raw score changed."""
        changed = False
        for term in self._normalised:
            if term.set_feasible is not None:
                changed = bool(guarded(term.plugin, term.set_feasible, self.feasible[: self.columns.n])) or changed
        return changed

    def _rescale(self, *, force: bool) -> bool:
        """Recompute the bounds of normalised scores over the feasible rows. Return True if any contribution changed."""
        changed = False
        for term in self._normalised:
            if term.constant and not force:
                continue
            raw = term.sample if term.constant else term.tracker.raw[self.feasible]
            missing = np.isnan(raw)  # NaN: not scored, becomes 0
            if missing.any():
                raw = raw[~missing]
            assert term.normaliser is not None
            low, high = guarded(term.plugin, term.normaliser.bounds, raw) if len(raw) else (0.0, 0.0)
            if force or (low, high) != (term.low, term.high):
                term.low, term.high = low, high
                scaled = guarded(term.plugin, term.normaliser.scale, term.tracker.raw, low, high)
                if not isinstance(scaled, np.ndarray) or scaled.shape != term.tracker.raw.shape:
                    raise PluginFailure(term.plugin.name, "normaliser.scale() must return an array like its input")
                term.scaled = scaled * term.weight
                unscored = np.isnan(term.scaled)
                if unscored.any():
                    term.scaled[unscored] = 0.0
                changed = True
        return changed

    def _sum(self) -> None:
        total = np.zeros(self.columns.capacity)
        for term in self._plain:
            total += term.tracker.raw * term.weight
        for term in self._normalised:
            total += term.scaled
        total[~self.feasible] = NEVER
        self.total = total
        self._block = total.reshape(-1, self._width).max(axis=1)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Update the mask and the scores of the rows that changed."""
        nodes = {row for row, record, _ in changes if record is None}
        usage = {row for row, record, _ in changes if record is not None}
        touched = nodes | usage if nodes else usage
        in_order = sorted(touched)
        # Index by what a row-local plugin depends on: nothing, nodes, pods, both.
        rows_of = ((), sorted(nodes) if nodes else (), sorted(usage) if nodes else in_order, in_order)
        everything = self._ask(changes, rows_of, touched)
        if everything or len(touched) * 4 > max(self.columns.n, 4 * FEW_ROWS):
            self._combine()
            return
        if self._slots_stale is not None:
            self._slots_stale |= touched
        stale = False
        if len(touched) <= FEW_ROWS:
            for row in sorted(touched):
                stale = self._combine_row(row) or stale
        else:
            stale = self._combine_rows(np.array(sorted(touched)))
        if not stale:
            return
        if self._report_feasible():
            self._combine()
        elif self._rescale(force=False):
            self._sum()

    def _ask(self, changes: Sequence[Change], rows_of: tuple[Sequence[int], ...], touched: set[int]) -> bool:
        """Update every plugin; add the rows it evaluated again to `touched`. Return True if any row may have
        changed."""
        try:
            moved = self._ask_local(rows_of)
            return self._ask_trackers(changes, touched) or moved
        except PluginFailure:
            raise
        except BaseException as problem:
            raise failure_of(self._asked, problem) from problem

    def _ask_local(self, rows_of: tuple[Sequence[int], ...]) -> bool:
        """Update row-local plugins on the rows that changed. Return True if any row may have changed."""
        everything = False
        for plugin, local in self._local_filters:
            if rows_of[local.depends]:
                self._asked = plugin
                local.evaluate_rows(rows_of[local.depends])
        for term, scored in self._local_scores:
            if rows_of[scored.depends]:
                self._asked = term.plugin
                scored.evaluate_rows(rows_of[scored.depends])
                # A normalised raw score may change the bounds: combine all rows again.
                everything = everything or term.normaliser is not None
        return everything

    def _ask_trackers(self, changes: Sequence[Change], touched: set[int]) -> bool:
        """Update tracking plugins, which report the rows they changed. Return True if any row may have changed."""
        everything = False
        for plugin, tracker in self._trackers:
            self._asked = plugin
            rows = tracker.update(changes)
            if rows is None:
                everything = True
            elif rows:
                touched.update(rows)
        for term in self._score_trackers:
            self._asked = term.plugin
            rows = term.tracker.update(changes)
            if rows is None or (rows and term.normaliser is not None):
                everything = True
            elif rows:
                touched.update(rows)
        return everything

    def _combine_row(self, row: int) -> bool:
        """Recompute one row. Return True if the bounds of normalised scores may have changed."""
        feasible = bool(self.columns.alive[row])
        if feasible:
            for _, tracker in self.filters:
                if not tracker.mask[row]:
                    feasible = False
                    break
        stale = False
        if feasible != self.feasible[row]:
            self.feasible[row] = feasible
            stale = any(not term.constant for term in self._normalised)
        if feasible:
            value = 0.0
            for term in self._plain:
                value += term.tracker.raw.item(row) * term.weight  # sums of Python floats take half the time
            for term in self._normalised:
                value += term.scaled.item(row)
        else:
            value = NEVER
        old = self.total.item(row)
        if value != old:
            self.total[row] = value
            at = row // self._width
            most = self._block.item(at)
            if value >= most:
                self._block[at] = value
            elif old == most:
                self._block[at] = self.total[at * self._width : (at + 1) * self._width].max()
        return stale

    def _combine_rows(self, rows: npt.NDArray[np.int64]) -> bool:
        """Recompute several rows at once, like `_combine_row`."""
        feasible = self.columns.alive[rows]
        for _, tracker in self.filters:
            feasible &= tracker.mask[rows]
        stale = False
        if (feasible != self.feasible[rows]).any():
            self.feasible[rows] = feasible
            stale = any(not term.constant for term in self._normalised)
        total = np.zeros(len(rows))
        for term in self._plain:
            total += term.tracker.raw[rows] * term.weight
        for term in self._normalised:
            total += term.scaled[rows]
        total[~feasible] = NEVER
        self.total[rows] = total
        blocks = np.unique(rows // self._width)
        self._block[blocks] = self.total.reshape(-1, self._width)[blocks].max(axis=1)
        return stale

    # ---- results

    def passes(self, rows: Sequence[int], quiet: Callable[[Shape], bool]) -> bool:
        """Return True if a pod fits each of these rows now, with as little computation as possible. If neither this
        shape nor the pods placed and removed since affect other rows (`quiet`: pods of that shape affect only their own
        row), changes on other rows are skipped."""
        columns = self.columns
        changes = columns.log.since(self._position) if self._position >= 0 else None
        if (
            changes is None
            or self.reaches_beyond
            or columns.generation != self._generation
            or self.objects.version != self._objects_version
            or any(row in rows or record is None or not quiet(record.shape) for row, record, _ in changes)
        ):
            self.refresh()
        return bool(self.feasible[rows].all())

    def best(self, allowed: Bools | None = None) -> int:
        """Return the feasible row with the highest score, within `allowed` (capacity,) if given; -1 if there is
        none."""
        if allowed is not None:
            total = np.where(allowed, self.total, NEVER)
            row = int(total.argmax())
            return row if total[row] != NEVER else -1
        at = int(self._block.argmax())
        if self._block[at] == NEVER:
            return -1
        start = at * self._width
        return start + int(self.total[start : start + self._width].argmax())

    def slots(self) -> npt.NDArray[np.int64]:
        """Return (n,) how many more pods of this shape fit on each node by row-local rules. The array is a copy."""
        n = self.columns.n
        stale = self._slots_stale
        if self._slots is None or stale is None or len(self._slots) != n or len(stale) * 4 > n:
            self._slots = self._slots_of(slice(0, n))
        elif len(stale) <= FEW_ROWS:
            for row in stale:
                self._slots[row] = self._slots_of_row(row)
        else:
            rows = np.fromiter(stale, np.int64, len(stale))
            self._slots[rows] = self._slots_of(rows)
        self._slots_stale = set()
        return self._slots.copy()

    def _slots_of(self, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        columns = self.columns
        feasible = self.feasible[rows]
        slots = np.full(len(feasible), float(2**31))
        for rid, amount in self.shape.requests:
            np.minimum(slots, np.floor((columns.alloc[rid, rows] - columns.used[rid, rows]) / amount), out=slots)
        cap = self.cap()
        if cap is not None:
            np.minimum(slots, cap, out=slots)
        for tracker in self._slot_trackers:
            if tracker.slots is not None:
                np.minimum(slots, tracker.slots[: columns.n][rows], out=slots)
        slots[~feasible] = 0.0
        counts: npt.NDArray[np.int64] = np.maximum(slots, 0.0).astype(np.int64)
        return counts

    def _slots_of_row(self, row: int) -> int:
        """Count one row like `_slots_of`, without the overhead of arrays."""
        if not self.feasible[row]:
            return 0
        alloc, used = self.columns.alloc_cell, self.columns.used_cell
        slots = float(2**31)
        for rid, amount in self.shape.requests:
            slots = min(slots, (alloc[rid][row] - used[rid][row]) // amount)
        for tracker in self._slot_trackers:
            if tracker.slots is not None:
                slots = min(slots, tracker.slots.item(row))
        cap = self.cap()
        return max(0, int(slots if cap is None else min(slots, cap)))

    def cap(self) -> int | None:
        """Return the maximum number of pods of this shape on one node, whatever its capacity; None: no limit."""
        if self._cap is not None:
            return self._cap[0]
        cap = 1 if self.shape.host_ports else None
        for plugin, _ in self.filters:
            per_node = self.profile.options[plugin.name].max_per_node
            limit = per_node(self.shape) if per_node is not None else None
            if limit is not None:
                cap = limit if cap is None else min(cap, limit)
        self._cap = (cap,)
        return cap

    def preferences(self) -> Floats | None:
        """Return (n,) the pod's own preferences among nodes (affinity, taints, topology spread); None: it has none.
        Node utilization is not included: the group search decides on that."""
        total: Floats | None = None
        for term in self._normalised:
            if not term.constant and term.low != term.high:
                share = term.scaled[: self.columns.n]
                total = share.copy() if total is None else total + share
        return total

    def pre_filter(self) -> Status | None:
        """Return the first PreFilter rejection, before any node is evaluated."""
        shape = self.shape
        for plugin in self.profile.for_shape(shape).pre_filters:
            try:
                answer = plugin.pre_filter(shape)
            except PluginFailure:
                raise
            except BaseException as problem:  # as in `guarded`, whose call would double the cost of most answers
                raise failure_of(plugin, problem) from problem
            if answer is None:
                continue
            status = checked(plugin, "pre_filter", answer)
            if status is None or status.code in (Code.SUCCESS, Code.SKIP):
                continue
            if not status.rejected:
                raise PluginFailure(plugin.name, status.message or f"pre_filter() answered {status.code.name}")
            return Status(status.code, status.reasons, plugin.name)
        return None

    def diagnose(self) -> Diagnosis:
        """Return, for each infeasible row, the reasons of the first filter in order that rejects it."""
        columns = self.columns
        undecided = columns.alive.copy()
        resolvable = columns.alive.copy()
        findings = []
        plugins: dict[str, None] = {}
        for plugin, tracker in self.filters:
            rows = np.flatnonzero(undecided & ~tracker.mask)
            if not len(rows):
                continue
            undecided[rows] = False
            plugins[plugin.name] = None
            for finding in guarded(plugin, tracker.explain, rows):
                findings.append((plugin.name, finding))
                if finding.unresolvable:
                    resolvable[finding.rows] = False
        return Diagnosis(columns.count, None, findings, resolvable, frozenset(plugins))
