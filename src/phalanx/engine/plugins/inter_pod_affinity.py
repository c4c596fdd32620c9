"""InterPodAffinity: required pod affinity and anti-affinity, of the incoming pod and of placed pods.

For one shape the filter keeps counts per topology domain: pods that match the shape's own terms, and anti-affinity
terms of placed pods that exclude the shape. A pod that is added or removed changes a few counts, and only rows of
domains whose verdict changed are evaluated again. The score of preferred terms is in `affinity_score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework import Bools, ClusterChange, Finding, Handle, Rows, Traits, Wake
from phalanx.engine.framework.config_args import InterPodAffinityArgs
from phalanx.engine.plugins.affinity_score import AffinityScore
from phalanx.engine.plugins.pod_index import LabelClass, PodIndex, RuleSet, TrackerWatch, per_row
from phalanx.engine.plugins.pod_trackers import PodTracker, Updates
from phalanx.engine.plugins.spread_rules import Counts
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.labels import LabelColumn
from phalanx.engine.state.pod_rules import ANTI, REQUIRED, AffinityTerm, terms_of
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.selectors import LabelMatcher

AFFINITY = "node(s) didn't match pod affinity rules"
OWN_ANTI = "node(s) didn't match pod anti-affinity rules"
# For a label class: bit flags; for a rule set: topology keys. See AffinityFilter._flags and _against.
Meaning = int | tuple[str, ...]
EXISTING_ANTI = "node(s) didn't satisfy existing pods anti-affinity rules"


def _has_terms(shape: Shape) -> bool:
    """Return True if the shape has required terms: only such members can exclude other members."""
    return any(part is not None and part.required for part in (shape.affinity, shape.anti_affinity))


class InterPodAffinity:
    name = "InterPodAffinity"
    traits = Traits(
        default_weight=2,
        wakes_on=Wake.NODE | Wake.POD_GONE | Wake.POD_PLACED | Wake.POD_LABELS | Wake.NAMESPACE,
        ties=True,
        touches=_has_terms,
        by_terms=lambda shape: True,
        relieved=True,
    )

    def __init__(self, args: Mapping[str, Any], handle: Handle, index: PodIndex) -> None:
        self.args = InterPodAffinityArgs.read(args)
        self.objects = handle.objects
        self.index = index
        self.namespaces_version = 0  # +1 when a namespace is added, removed or relabelled

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind != "Namespace":
            return
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.namespaces_version += 1

    def own_terms(self, shape: Shape) -> tuple[AffinityTerm, ...]:
        return terms_of(shape.affinity, shape.anti_affinity, shape.namespace, shape.labels)

    def track(self, shape: Shape, columns: Columns) -> AffinityFilter:
        """Apply the filter to every shape: the anti-affinity of a placed pod may match any of them."""
        return AffinityFilter(self, shape, columns)

    def track_score(self, shape: Shape, columns: Columns) -> AffinityScore | None:
        if self.args.ignore_preferred_terms_of_existing_pods and not _has_preferences(shape):
            return None
        return AffinityScore(self, shape, columns)

    def max_per_node(self, shape: Shape) -> int | None:
        """Return 1 if the shape has anti-affinity to itself by hostname."""
        kept_apart = any(
            term.kind == ANTI and term.key == HOSTNAME and term.selects(shape.namespace, shape.labels, self.objects)
            for term in self.own_terms(shape)
        )
        return 1 if kept_apart else None

    def queueing_hint(self, shape: Shape, change: ClusterChange) -> bool:
        """Return True if the change can help: a removed pod with matching anti-affinity, or a placed pod that matches
        required affinity."""
        record = change.record
        if record is None or change.kind & (Wake.NODE | Wake.NAMESPACE | Wake.POD_LABELS):
            return True
        namespace, labels = record.namespace, record.labels
        own = self.own_terms(shape)
        wanted = REQUIRED if change.kind & Wake.POD_PLACED else ANTI
        if any(t.kind == wanted and t.selects(namespace, labels, self.objects) for t in own):
            return True
        if change.kind & Wake.POD_GONE:
            # If the last matching pod is removed, the shape may match its own affinity term.
            if any(t.kind == REQUIRED and t.selects(namespace, labels, self.objects) for t in own):
                return True
            rules = self.index.rules_of(record)
            for term in rules.terms if rules is not None else ():
                if term.kind == ANTI and term.selects_incoming(shape.namespace, shape.labels, self.objects):
                    return True
        return False


def _has_preferences(shape: Shape) -> bool:
    return any(part is not None and part.preferred for part in (shape.affinity, shape.anti_affinity))


class _Counter:
    """Count pods per domain of one topology key; domain 0 (label missing) is never counted."""

    __slots__ = ("column", "counts")

    def __init__(self, column: LabelColumn) -> None:
        self.column = column
        self.counts: Counts = np.zeros(column.size, dtype=np.int64)

    def add_rows(self, by_row: Counts) -> None:
        more = np.bincount(self.column.ids, by_row, minlength=len(self.counts)).astype(np.int64)
        more[0] = 0
        self.counts += more

    def add(self, row: int, sign: int, turned: set[tuple[int, int]], number: int) -> None:
        """Add or remove one pod; record the domain in `turned` if it became empty or non-empty."""
        domain = int(self.column.ids[row])
        if domain == 0:
            return
        before = self.counts[domain]
        self.counts[domain] = before + sign
        if before == 0 or before + sign == 0:
            turned.add((number, domain))

    def any_pod(self) -> Bools:
        """Return (capacity,) the rows whose domain has at least one pod."""
        found: Bools = (self.counts > 0)[self.column.ids]
        return found


class AffinityFilter(PodTracker[Meaning]):
    def __init__(self, plugin: InterPodAffinity, shape: Shape, columns: Columns) -> None:
        self.plugin = plugin
        self.shape = shape
        self.columns = columns
        self.objects = plugin.objects
        own = plugin.own_terms(shape)
        self._near = [term for term in own if term.kind == REQUIRED]
        self._away = [term for term in own if term.kind == ANTI]
        self._self_match = all(t.selects(shape.namespace, shape.labels, self.objects) for t in self._near)
        self.mask: Bools = np.zeros(0, dtype=np.bool_)
        self._counters: list[_Counter] = []  # affinity terms, anti-affinity terms, then keys of placed pods' terms
        self._forbidding: dict[str, int] = {}  # topology key -> number of its counter
        self._anywhere = 0  # pods that match all affinity terms and are in a domain of at least one
        super().__init__(TrackerWatch(plugin.index, self._flags if own else None, self._against))
        self._namespaces_version = -1

    # ---- rebuild

    def rebuild(self) -> None:
        columns, shape = self.columns, self.shape
        self._namespaces_version = self.plugin.namespaces_version
        self._forbidding = {}
        self._counters = [_Counter(columns.label(term.key)) for term in (*self._near, *self._away)]
        self._self_match = all(t.selects(shape.namespace, shape.labels, self.objects) for t in self._near)
        self._anywhere = 0
        for pods, meaning in self._watch.begin(self._one_matcher()):
            by_row = per_row(pods.rows, columns.capacity)
            if isinstance(meaning, int):
                self._add_class(meaning, by_row)
            else:
                for key in meaning:
                    self._counters[self._counter_of(key)].add_rows(by_row)
        self._key_versions = [(counter.column, counter.column.version) for counter in self._counters]
        self._fill_mask()

    def _add_class(self, flags: int, by_row: Counts) -> None:
        if flags & 1:
            labelled: Bools = np.zeros(self.columns.capacity, dtype=np.bool_)
            for counter in self._counters[: len(self._near)]:
                counter.add_rows(by_row)
                labelled |= counter.column.ids > 0
            self._anywhere += int(by_row[labelled].sum())
        for i in range(len(self._away)):
            if flags & (2 << i):
                self._counters[len(self._near) + i].add_rows(by_row)

    def _one_matcher(self) -> LabelMatcher | None:
        """Return the selector that every relevant pod matches, if there is one."""
        matchers = {term.matcher for term in (*self._near[:1], *self._away)}
        return matchers.pop() if len(matchers) == 1 else None

    def _flags(self, pods: LabelClass) -> int | None:
        """Return bit flags. Bit 0: matches all affinity terms; bit i + 1: matches anti-affinity term i."""
        flags = 0
        if self._near and all(t.selects(pods.namespace, pods.labels, self.objects) for t in self._near):
            flags = 1
        for i, term in enumerate(self._away):
            if term.selects(pods.namespace, pods.labels, self.objects):
                flags |= 2 << i
        return flags or None

    def _against(self, rules: RuleSet) -> tuple[str, ...] | None:
        """Return the topology keys of the anti-affinity terms in a rule set that select this shape."""
        shape, keys = self.shape, []
        for term in rules.terms:
            if term.kind == ANTI and term.selects_incoming(shape.namespace, shape.labels, self.objects):
                keys.append(term.key)
        return tuple(keys) or None

    def _counter_of(self, key: str) -> int:
        number = self._forbidding.get(key)
        if number is None:
            number = self._forbidding[key] = len(self._counters)
            column = self.columns.label(key)
            self._counters.append(_Counter(column))
            self._key_versions.append((column, column.version))
        return number

    def _fill_mask(self) -> None:
        mask = self._near_mask()
        if mask is None:
            mask = np.ones(self.columns.capacity, dtype=np.bool_)
        for counter in self._counters[len(self._near) :]:
            mask &= ~counter.any_pod()
        self.mask = mask

    def _near_mask(self) -> Bools | None:
        if not self._near:
            return None
        mask: Bools = np.ones(self.columns.capacity, dtype=np.bool_)
        alone = self._anywhere == 0
        for counter in self._counters[: len(self._near)]:
            if not alone:
                mask &= counter.any_pod()
            elif self._self_match:
                # The first pod that matches its own affinity terms may go to any node that has the labels.
                mask &= counter.column.ids > 0
            else:
                mask[:] = False
        return mask

    # ---- incremental update

    def _apply_updates(self, updates: Updates[Meaning]) -> Sequence[int] | None:
        if not updates:
            return ()
        was_alone = self._anywhere == 0
        turned: set[tuple[int, int]] = set()  # (counter, domain) that became empty or non-empty
        for meaning, row, sign in updates:
            if isinstance(meaning, int):
                self._count_own(meaning, row, sign, turned)
            else:
                for key in meaning:
                    number = self._counter_of(key)
                    self._counters[number].add(row, sign, turned, number)
        if self._near and was_alone != (self._anywhere == 0):
            self._fill_mask()
            return None
        if not turned:
            return ()
        self._fill_mask()
        rows: dict[int, None] = {}
        for number, domain in sorted(turned):
            rows.update(dict.fromkeys(np.flatnonzero(self._counters[number].column.ids == domain).tolist()))
        return list(rows)

    def _count_own(self, meaning: int, row: int, sign: int, turned: set[tuple[int, int]]) -> None:
        """Count a placed or removed pod that this shape's terms select. meaning: flags of `_flags`."""
        near = len(self._near)
        if meaning & 1:
            for number in range(near):
                self._counters[number].add(row, sign, turned, number)
            if any(counter.column.ids[row] for counter in self._counters[:near]):
                self._anywhere += sign
        for i in range(len(self._away)):
            if meaning & (2 << i):
                self._counters[near + i].add(row, sign, turned, near + i)

    def _stale(self, changes: Sequence[Change]) -> bool:
        return self._namespaces_version != self.plugin.namespaces_version or super()._stale(changes)

    def explain(self, rows: Rows) -> Sequence[Finding]:
        findings = []
        left = rows
        near = self._near_mask()
        if near is not None:
            findings.append(Finding(left[~near[left]], AFFINITY, unresolvable=True))
            left = left[near[left]]
        first = len(self._near)
        for reason, counters in (
            (OWN_ANTI, self._counters[first : first + len(self._away)]),
            (EXISTING_ANTI, self._counters[first + len(self._away) :]),
        ):
            blocked: Bools = np.zeros(self.columns.capacity, dtype=np.bool_)
            for counter in counters:
                blocked |= counter.any_pod()
            findings.append(Finding(left[blocked[left]], reason))
            left = left[~blocked[left]]
        return [finding for finding in findings if len(finding.rows)]
