"""PodTopologySpread: spread matching pods evenly over topology domains, required (filter) or preferred (score)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, ClusterChange, Finding, Handle, Rows, Traits, Wake
from phalanx.engine.framework.config_args import PodTopologySpreadArgs
from phalanx.engine.plugins.pod_index import LabelClass, PodIndex, TrackerWatch, per_row
from phalanx.engine.plugins.pod_trackers import PodTracker, Updates
from phalanx.engine.plugins.spread_rules import (
    Counts,
    Inclusion,
    counting,
    default_constraints,
    one_matcher,
    with_all_keys,
)
from phalanx.engine.plugins.spread_score import SpreadScore
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.label_interest import Mentions, of_labels, of_selector
from phalanx.engine.state.pod_rules import HARD, SOFT, SpreadConstraint, own_constraints
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import ReplicaSet, ReplicationController, Service, StatefulSet

MESSAGE = "node(s) didn't match pod topology spread constraints"
MISSING = MESSAGE + " (missing required label)"
_SELECTING = frozenset({"Service", "ReplicationController", "ReplicaSet", "StatefulSet"})


class PodTopologySpread:
    name = "PodTopologySpread"
    traits = Traits(
        default_weight=2,
        wakes_on=Wake.NODE | Wake.POD_GONE | Wake.POD_PLACED | Wake.POD_LABELS | Wake.SERVICE,
        ties=True,
        by_terms=lambda shape: bool(shape.spread),
    )

    def __init__(self, args: Mapping[str, Any], handle: Handle, index: PodIndex) -> None:
        self.args = PodTopologySpreadArgs.read(args)
        self.handle = handle
        self.objects = handle.objects
        self.index = index
        if self.args.default_constraints:
            handle.interest.sources.append(self._mentions)
        self.selectors_version = 0  # +1 when a Service or controller changes: default constraints may change

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind not in _SELECTING or not self.args.default_constraints:
            return
        if old is not None and new is not None and old.spec.selector == new.spec.selector:
            return  # skip status updates, which follow every pod change
        self.selectors_version += 1
        if isinstance(new, Service | ReplicationController):
            self.handle.interest.learn(of_labels(new.spec.selector), repeated=True)
        elif isinstance(new, ReplicaSet | StatefulSet):
            self.handle.interest.learn(of_selector(new.spec.selector), repeated=True)

    def _mentions(self) -> Iterator[Mentions]:
        """Yield the selectors of existing objects that `observe` has recorded."""
        for service in self.objects.all(Service):
            yield of_labels(service.spec.selector)
        for controller in self.objects.all(ReplicationController):
            yield of_labels(controller.spec.selector)
        for replicas in self.objects.all(ReplicaSet):
            yield of_selector(replicas.spec.selector)
        for ordered in self.objects.all(StatefulSet):
            yield of_selector(ordered.spec.selector)

    def constraints(self, shape: Shape, action: str) -> tuple[SpreadConstraint, ...]:
        if shape.spread:
            return own_constraints(shape, action)
        return default_constraints(shape, self.args.default_constraints, action, self.objects)

    def defaulted(self, shape: Shape, action: str) -> bool:
        """Return True if the constraints come from the profile and can change with services and controllers."""
        return not shape.spread and any(c.when_unsatisfiable == action for c in self.args.default_constraints)

    def track(self, shape: Shape, columns: Columns) -> SpreadFilter | None:
        if not self.defaulted(shape, HARD) and not self.constraints(shape, HARD):
            return None
        return SpreadFilter(self, shape, columns)

    def track_score(self, shape: Shape, columns: Columns) -> SpreadScore | None:
        if not self.defaulted(shape, SOFT) and not self.constraints(shape, SOFT):
            return None
        # Nodes without a topology key are scored only if all constraints are the built-in defaults.
        return SpreadScore(self, shape, columns, need_all_keys=bool(shape.spread) or not self.args.system_defaulted)

    def queueing_hint(self, shape: Shape, change: ClusterChange) -> bool:
        """Return True for a pod that counts for a constraint, and for any change of a node or service."""
        record = change.record
        if record is None or change.kind & (Wake.NODE | Wake.SERVICE | Wake.POD_LABELS):
            return True
        if record.namespace != shape.namespace:
            return False
        pods = LabelClass(record.namespace, record.labels, False)
        return any(c.counts(shape.namespace, pods) for c in self.constraints(shape, HARD))


class _Domains:
    """Keep the pod counts of one constraint by domain id."""

    __slots__ = ("constraint", "counts", "fits", "ids", "included", "present", "self_match")

    def __init__(self, constraint: SpreadConstraint, columns: Columns, included: Bools, self_match: int) -> None:
        column = columns.label(constraint.key)
        self.constraint = constraint
        self.ids = column.ids
        self.included = included  # (capacity,) rows that count
        self.self_match = self_match
        self.counts: Counts = np.zeros(column.size, dtype=np.int64)
        self.present: Bools = np.bincount(self.ids[included], minlength=column.size) > 0
        self.present[0] = False
        self.fits: Bools = np.zeros(column.size, dtype=np.bool_)

    def add(self, by_row: Counts) -> None:
        weights = by_row[self.included]
        self.counts += np.bincount(self.ids[self.included], weights, minlength=len(self.counts)).astype(np.int64)

    def domains_with_room(self) -> Bools:
        """Return (domains,) True where one more pod keeps maxSkew; entry 0 (label missing) is False."""
        constraint = self.constraint
        counts = self.counts
        there = counts[self.present]
        fewest = int(there.min()) if len(there) >= constraint.min_domains and len(there) else 0
        fits: Bools = counts <= constraint.max_skew + fewest - self.self_match
        fits[0] = False
        return fits


class SpreadFilter(PodTracker[tuple[int, ...]]):
    """Filter for one shape. An added or removed pod changes one count per constraint.

    The mask is computed again only when the verdict of a domain changed.
    """

    def __init__(self, plugin: PodTopologySpread, shape: Shape, columns: Columns) -> None:
        self.plugin = plugin
        self.shape = shape
        self.columns = columns
        self.mask: Bools = np.zeros(0, dtype=np.bool_)
        self._domains: list[_Domains] = []
        self._constraints: tuple[SpreadConstraint, ...] = ()
        self._watch_nodes = False
        self._selectors_version = -1
        super().__init__(TrackerWatch(plugin.index, lambda pods: counting(self._constraints, shape.namespace, pods)))

    def rebuild(self) -> None:
        self._selectors_version = self.plugin.selectors_version
        self._constraints = self.plugin.constraints(self.shape, HARD)
        columns, shape = self.columns, self.shape
        inclusion = Inclusion(shape, columns)
        self._watch_nodes = inclusion.watched(self._constraints)
        everywhere = with_all_keys(self._constraints, columns)
        self._domains = []
        for constraint in self._constraints:
            policy = inclusion.mask(constraint)
            included = everywhere if policy is None else everywhere & policy
            self_match = 1 if constraint.matcher.matches(shape.labels) else 0
            self._domains.append(_Domains(constraint, columns, included, self_match))
        for pods, numbers in self._watch.begin(one_matcher(self._constraints)):
            by_row = per_row(pods.rows, columns.capacity)
            for number in numbers:
                self._domains[number].add(by_row)
        for domains in self._domains:
            domains.fits = domains.domains_with_room()
        self._key_versions = [(column, column.version) for column in map(columns.label, self._keys())]
        self._fill_mask()

    def _keys(self) -> list[str]:
        return [constraint.key for constraint in self._constraints]

    def _fill_mask(self) -> None:
        mask: Bools = np.ones(self.columns.capacity, dtype=np.bool_)
        for domains in self._domains:
            mask &= domains.fits[domains.ids]
        self.mask = mask

    def _updates(self) -> Updates[tuple[int, ...]] | None:
        return super()._updates() if self._domains else ()

    def _apply_updates(self, updates: Updates[tuple[int, ...]]) -> Sequence[int] | None:
        touched = False
        for numbers, row, sign in updates:
            for number in numbers:
                domains = self._domains[number]
                if domains.included[row]:
                    domains.counts[domains.ids[row]] += sign
                    touched = True
        if not touched:
            return ()
        turned: dict[int, None] = {}
        for domains in self._domains:
            fits = domains.domains_with_room()
            differ = np.flatnonzero(fits != domains.fits)
            if len(differ):
                domains.fits = fits
                flags = np.zeros(len(fits), dtype=np.bool_)
                flags[differ] = True
                turned.update(dict.fromkeys(np.flatnonzero(flags[domains.ids]).tolist()))
        if turned:
            self._fill_mask()
        return list(turned)

    def _stale(self, changes: Sequence[Change]) -> bool:
        if self._selectors_version != self.plugin.selectors_version:
            return True
        return super()._stale(changes) or (self._watch_nodes and any(record is None for _, record, _ in changes))

    def explain(self, rows: Rows) -> Sequence[Finding]:
        """Check constraints in order; the first that fails gives the reason."""
        findings = []
        left = rows
        for domains in self._domains:
            if not len(left):
                break
            ids = domains.ids[left]
            missing = left[ids == 0]
            skewed = left[(ids > 0) & ~domains.fits[ids]]
            if len(missing):
                findings.append(Finding(missing, MISSING, unresolvable=True))
            if len(skewed):
                findings.append(Finding(skewed, MESSAGE))
            left = left[(ids > 0) & domains.fits[ids]]
        return findings
