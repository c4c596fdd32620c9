"""Score of PodTopologySpread (ScheduleAnyway): fewer matching pods in a node's domains score higher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.engine.framework import MAX_SCORE, Bools, Floats
from phalanx.engine.plugins.pod_index import TrackerWatch, per_row
from phalanx.engine.plugins.pod_trackers import PodTracker, Updates
from phalanx.engine.plugins.spread_rules import Counts, Inclusion, counting, one_matcher, with_all_keys
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.pod_rules import SOFT, SpreadConstraint
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups.keys import HOSTNAME

if TYPE_CHECKING:
    from phalanx.engine.plugins.topology_spread import PodTopologySpread


class SpreadNormaliser:
    """Normalise to 100 * (max + min - raw) / max; NaN (label missing) becomes 0; without constraints all are 0."""

    def __init__(self) -> None:
        self.active = False

    def bounds(self, raw: Floats) -> tuple[float, float]:
        scored = raw[~np.isnan(raw)]
        return (float(scored.min()), float(scored.max())) if len(scored) else (0.0, 0.0)

    def scale(self, raw: Any, low: float, high: float) -> Any:
        if not self.active:
            return np.nan_to_num(raw) * 0.0
        missing = np.isnan(raw)
        if high == 0:
            return np.where(missing, 0.0, float(MAX_SCORE))
        return np.where(missing, 0.0, np.floor(MAX_SCORE * (high + low - np.where(missing, 0.0, raw)) / high))


class _Soft:
    """Pod counts of one constraint: by row for the hostname key, by domain id for every other key."""

    __slots__ = ("by_row", "constraint", "counts", "ids", "included", "size", "weight")

    def __init__(self, constraint: SpreadConstraint, columns: Columns, included: Bools) -> None:
        column = columns.label(constraint.key)
        self.constraint = constraint
        self.ids = column.ids
        self.by_row = constraint.key == HOSTNAME
        self.included = included
        self.size = -1  # number of domains among the feasible nodes
        self.weight = 0.0
        self.counts: Counts = np.zeros(columns.capacity if self.by_row else column.size, dtype=np.int64)

    def add(self, by_row: Counts) -> None:
        """Add the pods of one class to the counts of their domains."""
        if self.by_row:
            self.counts += by_row
        else:
            weights = by_row[self.included]
            self.counts += np.bincount(self.ids[self.included], weights, minlength=len(self.counts)).astype(np.int64)

    def resize(self, competing: Bools) -> bool:
        """Count the domains among the feasible rows (capacity,); return True if their number changed."""
        if self.by_row:
            size = int(np.count_nonzero(competing))
        else:
            seen = np.zeros(len(self.counts), dtype=np.bool_)
            seen[self.ids[competing]] = True
            size = int(np.count_nonzero(seen))
        if size == self.size:
            return False
        self.size = size
        self.weight = math.log(size + 2)
        return True


class SpreadScore(PodTracker[tuple[int, ...]]):
    def __init__(self, plugin: PodTopologySpread, shape: Shape, columns: Columns, *, need_all_keys: bool) -> None:
        self.plugin = plugin
        self.shape = shape
        self.columns = columns
        self.need_all_keys = need_all_keys
        self.normaliser = SpreadNormaliser()
        self.raw: Floats = np.zeros(columns.capacity)
        self._soft: list[_Soft] = []
        self._ignored: Bools | None = None  # (capacity,) rows without a topology key
        self._dirty = True
        self._watch_nodes = False
        self._selectors_version = -1
        self._constraints: tuple[SpreadConstraint, ...] = ()
        super().__init__(TrackerWatch(plugin.index, lambda pods: counting(self._constraints, shape.namespace, pods)))

    def rebuild(self) -> None:
        self._selectors_version = self.plugin.selectors_version
        constraints = self._constraints = self.plugin.constraints(self.shape, SOFT)
        columns = self.columns
        self._soft = []
        self.normaliser.active = bool(constraints)
        self.raw = np.zeros(columns.capacity)
        self._key_versions = []
        self._ignored = None
        self._watch_nodes = False
        self._dirty = True
        if not constraints:
            return
        inclusion = Inclusion(self.shape, columns)
        self._watch_nodes = inclusion.watched(constraints)
        everywhere: Bools = np.ones(columns.capacity, dtype=np.bool_)
        if self.need_all_keys:
            everywhere = with_all_keys(constraints, columns)
            self._ignored = ~everywhere
        for constraint in constraints:
            policy = inclusion.mask(constraint)
            self._soft.append(_Soft(constraint, columns, everywhere if policy is None else everywhere & policy))
        for pods, numbers in self._watch.begin(one_matcher(constraints)):
            by_row = per_row(pods.rows, columns.capacity)
            for number in numbers:
                self._soft[number].add(by_row)
        self._key_versions = [(column, column.version) for column in (columns.label(c.key) for c in constraints)]
        self.set_feasible(columns.alive)

    def _updates(self) -> Updates[tuple[int, ...]] | None:
        return super()._updates() if self._soft else ()

    def _apply_updates(self, updates: Updates[tuple[int, ...]]) -> Sequence[int] | None:
        touched = False
        for numbers, row, sign in updates:
            for number in numbers:
                soft = self._soft[number]
                if soft.by_row or soft.included[row]:
                    soft.counts[row if soft.by_row else soft.ids[row]] += sign
                    touched = True
        if not touched:
            return ()
        self._dirty = True
        return None

    def _stale(self, changes: Sequence[Change]) -> bool:
        if self._selectors_version != self.plugin.selectors_version:
            return True
        if not self._soft:
            return False
        return super()._stale(changes) or (self._watch_nodes and any(record is None for _, record, _ in changes))

    def set_feasible(self, mask: Bools) -> bool:
        """Weight constraints by their number of domains among feasible rows, which is known only after Filter."""
        if not self._soft:
            return False
        competing: Bools = np.zeros(self.columns.capacity, dtype=np.bool_)
        competing[: len(mask)] = mask
        if self._ignored is not None:
            competing &= ~self._ignored
        for soft in self._soft:
            self._dirty = soft.resize(competing) or self._dirty
        if not self._dirty:
            return False
        self._dirty = False
        total = np.zeros(self.columns.capacity)
        for soft in self._soft:
            counts = soft.counts if soft.by_row else soft.counts[soft.ids]
            share = counts * soft.weight + (soft.constraint.max_skew - 1)
            total += np.where(soft.ids > 0, share, 0.0)
        whole = np.floor(total)
        self.raw = whole + (total - whole >= 0.5)
        if self._ignored is not None:
            self.raw[self._ignored] = np.nan
        return True
