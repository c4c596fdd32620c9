"""Score of InterPodAffinity (preferred terms): a sum of weights per topology domain, added over a node's domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.engine.framework import MAX_SCORE, Floats
from phalanx.engine.plugins.pod_index import LabelClass, RuleSet, TrackerWatch, per_row
from phalanx.engine.plugins.pod_trackers import PodTracker, Updates
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.labels import LabelColumn
from phalanx.engine.state.pod_rules import PREFERRED, REQUIRED
from phalanx.engine.state.shapes import Shape

if TYPE_CHECKING:
    from phalanx.engine.plugins.inter_pod_affinity import InterPodAffinity

WeightedKeys = tuple[tuple[str, int], ...]  # (topology key, weight)


class RangeNormaliser:
    """Normalise to 100 * ((raw - min) / (max - min)), truncated, in that order of operations; 0 if all are equal."""

    def bounds(self, raw: Floats) -> tuple[float, float]:
        return float(raw.min()), float(raw.max())

    def scale(self, raw: Any, low: float, high: float) -> Any:
        return np.trunc(MAX_SCORE * ((raw - low) / (high - low))) if high > low else raw * 0.0


class AffinityScore(PodTracker[WeightedKeys]):
    def __init__(self, plugin: InterPodAffinity, shape: Shape, columns: Columns) -> None:
        self.plugin = plugin
        self.shape = shape
        self.columns = columns
        self.normaliser = RangeNormaliser()
        self.raw: Floats = np.zeros(columns.capacity)
        self._own = [term for term in plugin.own_terms(shape) if term.kind == PREFERRED]
        self._columns: dict[str, LabelColumn] = {}  # by topology key
        super().__init__(TrackerWatch(plugin.index, self._class_weights if self._own else None, self._rule_weights))
        self._namespaces_version = -1

    def rebuild(self) -> None:
        self._namespaces_version = self.plugin.namespaces_version
        self._columns = {}
        self._key_versions = []
        self.raw = np.zeros(self.columns.capacity)
        for pods, weights in self._watch.begin():
            if pods.rows:
                self._add_all(weights, pods.rows)

    def _add_all(self, weights: WeightedKeys, rows: dict[int, int]) -> None:
        by_row = per_row(rows, self.columns.capacity) if weights else None
        for key, weight in weights:
            column = self._column(key)
            pods = np.bincount(column.ids, by_row, minlength=column.size)
            pods[0] = 0.0  # rows without the label are in no domain
            self.raw += weight * pods[column.ids]

    def _column(self, key: str) -> LabelColumn:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = self.columns.label(key)
            self._key_versions.append((column, column.version))
        return column

    def _class_weights(self, pods: LabelClass) -> WeightedKeys | None:
        """Return the (topology key, weight) of this shape's preferred terms that match pods of a class."""
        objects = self.plugin.objects
        found = tuple(
            (term.key, term.weight) for term in self._own if term.selects(pods.namespace, pods.labels, objects)
        )
        return found or None

    def _rule_weights(self, rules: RuleSet) -> WeightedKeys | None:
        """Return the (topology key, weight) of placed pods' terms that match this shape, required affinity included."""
        shape, objects = self.shape, self.plugin.objects
        hard = self.plugin.args.hard_pod_affinity_weight
        found = []
        for term in rules.terms:
            weight = hard if term.kind == REQUIRED else term.weight
            if weight and term.selects_incoming(shape.namespace, shape.labels, objects):
                found.append((term.key, weight))
        return tuple(found) or None

    def _apply_updates(self, updates: Updates[WeightedKeys]) -> Sequence[int] | None:
        moved = False
        for weights, row, sign in updates:
            for key, weight in weights:
                column = self._column(key)
                domain = int(column.ids[row])
                if domain:
                    self.raw[column.ids == domain] += sign * weight
                    moved = True
        return None if moved else ()

    def _stale(self, changes: Sequence[Change]) -> bool:
        return self._namespaces_version != self.plugin.namespaces_version or super()._stale(changes)
