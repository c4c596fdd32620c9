"""Index placed pods by equivalence class of labels and affinity rules; used by topology spread and pod affinity.

A `LabelClass` holds the pods of a namespace whose labels are equivalent for every selector that the engine knows. A
`RuleSet` holds the pods with the same affinity rules. A tracker evaluates a class or rule set once and then only counts
pods. The index follows the change log and knows the rows of the pods of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.state.columns import Columns
from phalanx.engine.state.label_interest import LabelInterest
from phalanx.engine.state.pod_rules import AffinityTerm, terms_of
from phalanx.engine.state.records import PodRecord
from phalanx.model.objects.pod import PodAffinity
from phalanx.model.selectors import LabelMatcher

_encode = msgspec.json.Encoder(order="deterministic").encode
_MANY = 20_000
_RECENT = 256


class PlacedPods:
    """A set of placed pods. `rows`: row -> number of pods. Recent changes are kept for trackers."""

    __slots__ = ("_base", "_recent", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self._base = 0
        self._recent: list[tuple[int, int]] = []

    def count(self, row: int, sign: int) -> None:
        count = self.rows.get(row, 0) + sign
        if count:
            self.rows[row] = count
        else:
            del self.rows[row]
        self._recent.append((row, sign))
        if len(self._recent) > 2 * _RECENT:
            del self._recent[:_RECENT]
            self._base += _RECENT

    @property
    def position(self) -> int:
        return self._base + len(self._recent)

    def since(self, position: int) -> list[tuple[int, int]] | None:
        """Return the changes (row, sign) after `position`; None if they are no longer kept."""
        return self._recent[position - self._base :] if position >= self._base else None


class LabelClass(PlacedPods):
    """Pods that are equivalent for every known selector."""

    __slots__ = ("labels", "namespace", "terminating")

    def __init__(self, namespace: str, labels: dict[str, str], terminating: bool) -> None:
        super().__init__()
        self.namespace = namespace
        self.labels = labels
        self.terminating = terminating


class RuleSet(PlacedPods):
    """Pods with equivalent affinity rules."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[AffinityTerm, ...]) -> None:
        super().__init__()
        self.terms = terms


class PodIndex:
    def __init__(self, columns: Columns, interest: LabelInterest) -> None:
        self.columns = columns
        self.interest = interest
        self.version = 0  # +1 when classes are rebuilt: trackers that hold classes must begin again
        self._position = -1
        self._epoch = -1
        self._restored = 0
        self._limit = _MANY
        self.classes: list[LabelClass] = []  # in order of first use
        self.rule_sets: list[RuleSet] = []
        self._classes: dict[tuple[str, bool, tuple[tuple[str, str], ...]], LabelClass] = {}
        self._by_labels: dict[tuple[object, ...], LabelClass] = {}  # all labels seen: trials look them up often
        self._having: dict[tuple[str, str], list[LabelClass]] = {}  # by label, in order of first use
        self._rule_sets: dict[bytes, RuleSet] = {}
        self._rules_of_shape: dict[tuple[int, tuple[str | None, ...]], RuleSet] = {}

    def sync(self) -> None:
        """Bring all classes and rule sets up to date with the change log."""
        log = self.columns.log
        if self._position == log.position and self._epoch == self.interest.epoch:
            return
        if self._restored != self.interest.restored:  # label values ignored since then must be ignored again
            self._restored = self.interest.restored
            self._by_labels.clear()
        changes = log.since(self._position) if self._position >= 0 else None
        if changes is None or self._epoch != self.interest.epoch or self._size() > self._limit:
            self._start_over()
        else:
            for row, record, sign in changes:
                if record is not None:
                    self._count(record, row, sign)
        self._position = log.position

    def _size(self) -> int:
        return len(self._classes) + len(self._having) + len(self._rules_of_shape)

    def _start_over(self) -> None:
        """Rebuild the classes: new label keys matter, the log was truncated, or most classes have no pods any more.

        No tracker follows the new classes yet, so their recent changes are dropped.
        """
        self._classes.clear()
        self._by_labels.clear()
        self._having.clear()
        self._rule_sets.clear()
        self._rules_of_shape.clear()
        self.classes = []
        self.rule_sets = []
        self._epoch = self.interest.epoch
        self.version += 1
        known = self._by_labels
        for row, records in enumerate(self.columns.pods):
            for record in records.values():
                labels = (record.namespace, record.terminating, *record.labels.items())
                rows = (known.get(labels) or self.class_of(record)).rows
                rows[row] = rows.get(row, 0) + 1
                rules = self.rules_of(record)
                if rules is not None:
                    rules.rows[row] = rules.rows.get(row, 0) + 1
        self._limit = max(_MANY, 2 * self._size())

    def _count(self, record: PodRecord, row: int, sign: int) -> None:
        self.class_of(record).count(row, sign)
        if sign < 0:  # most pods have labels of their own, which do not come again
            self._by_labels.pop((record.namespace, record.terminating, *record.labels.items()), None)
        rules = self.rules_of(record)
        if rules is not None:
            rules.count(row, sign)

    def class_of(self, record: PodRecord) -> LabelClass:
        labels = (record.namespace, record.terminating, *record.labels.items())
        found = self._by_labels.get(labels)
        if found is None:
            if len(self._by_labels) > _MANY:
                self._by_labels.clear()
            found = self._by_labels[labels] = self._class_of(record)
        return found

    def _class_of(self, record: PodRecord) -> LabelClass:
        seen = tuple(sorted(self.interest.seen(record.labels).items()))
        key = (record.namespace, record.terminating, seen)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = LabelClass(record.namespace, dict(seen), record.terminating)
            self.classes.append(found)
            for pair in seen:
                self._having.setdefault(pair, []).append(found)
        return found

    def candidates(self, matcher: LabelMatcher | None) -> list[list[LabelClass]]:
        """Return lists that contain every class that the matcher selects, each once, and few others.

        The lists grow with the index. matcher None: all classes. Most selectors name a label value, which few classes
        have.
        """
        best, fewest = [self.classes], len(self.classes)
        for requirement in matcher.requirements if matcher is not None else ():
            if requirement.operator == "In":
                pairs = [(requirement.key, value) for value in dict.fromkeys(requirement.values)]
                count = sum(len(self._having.get(pair, ())) for pair in pairs)
                if best[0] is self.classes or count < fewest:
                    best, fewest = [self._having.setdefault(pair, []) for pair in pairs], count
        return best

    def rules_of(self, record: PodRecord) -> RuleSet | None:
        """Return the rule set of a pod; None if it has no affinity rules."""
        shape = record.shape
        if shape.affinity is None and shape.anti_affinity is None:
            return None
        labels = record.labels
        mentioned = _own_label_keys(shape.affinity, shape.anti_affinity)
        values = tuple(labels.get(key) for key in mentioned)
        found = self._rules_of_shape.get((shape.id, values))
        if found is None:
            key = _encode((record.namespace, shape.affinity, shape.anti_affinity, values))
            found = self._rule_sets.get(key)
            if found is None:
                terms = terms_of(shape.affinity, shape.anti_affinity, record.namespace, labels)
                found = self._rule_sets[key] = RuleSet(terms)
                self.rule_sets.append(found)
            self._rules_of_shape[shape.id, values] = found
        return found


T = TypeVar("T")


class TrackerWatch(Generic[T]):
    """Follow the classes and rule sets that are relevant to one tracker, and their changes since its last update.

    `of_class` and `of_rules` return the meaning of a class or rule set for the tracker; None: not relevant. `begin` can
    be limited to classes that a matcher selects.
    """

    __slots__ = (
        "_classes",
        "_entries",
        "_of_class",
        "_of_rules",
        "_relevant_pods",
        "_seen",
        "_seen_rules",
        "_version",
        "index",
    )  # fmt: skip

    def __init__(
        self,
        index: PodIndex,
        of_class: Callable[[LabelClass], T | None] | None,
        of_rules: Callable[[RuleSet], T | None] | None = None,
    ) -> None:
        self.index = index
        self._of_class = of_class
        self._of_rules = of_rules
        self._entries: list[tuple[PlacedPods, T]] = []
        self._seen: list[int] = []
        self._classes: list[tuple[list[LabelClass], int]] = []  # with the number of classes already evaluated
        self._seen_rules = 0
        self._relevant_pods: dict[PlacedPods, bool] = {}  # cached results of `affects_other_nodes`
        self._version = -1

    def begin(self, matcher: LabelMatcher | None = None) -> list[tuple[PlacedPods, T]]:
        """Start again; return all relevant classes and rule sets with their meaning."""
        self.index.sync()
        self._version = self.index.version
        self._entries = []
        self._relevant_pods = {}
        self._seen = []
        some = self.index.candidates(matcher) if self._of_class is not None else ()
        self._classes = [(classes, 0) for classes in some]
        self._seen_rules = 0
        self._evaluate_new()
        self._seen = [pods.position for pods, _ in self._entries]
        return self._entries

    def _evaluate_new(self) -> None:
        """Evaluate new classes and rule sets; all their changes count as news."""
        index = self.index
        for classes, seen in self._classes:
            for pods in classes[seen:]:
                meaning = self._of_class(pods) if self._of_class is not None else None
                if meaning is not None:
                    self._entries.append((pods, meaning))
                    self._seen.append(0)
        for rules in index.rule_sets[self._seen_rules :] if self._of_rules is not None else ():
            meaning = self._of_rules(rules) if self._of_rules is not None else None
            if meaning is not None:
                self._entries.append((rules, meaning))
                self._seen.append(0)
        self._classes = [(classes, len(classes)) for classes, _ in self._classes]
        self._seen_rules = len(index.rule_sets)

    def affects_other_nodes(self, record: PodRecord) -> bool:
        """Return True if the pod is relevant to the tracker."""
        known, index = self._relevant_pods, self.index
        if self._of_class is not None:
            pods = index.class_of(record)
            if pods not in known:
                known[pods] = self._of_class(pods) is not None
            if known[pods]:
                return True
        rules = index.rules_of(record) if self._of_rules is not None else None
        if rules is None:
            return False
        if rules not in known:
            known[rules] = self._of_rules is not None and self._of_rules(rules) is not None
        return known[rules]

    def updates(self) -> list[tuple[T, int, int]] | None:
        """Return (meaning, row, sign) of every added or removed pod; None: call `begin` again."""
        index = self.index
        index.sync()
        if self._version != index.version:
            return None
        unknown = self._seen_rules != len(index.rule_sets)
        for classes, seen in self._classes:
            unknown = unknown or len(classes) != seen
        if unknown:
            self._evaluate_new()
        found: list[tuple[T, int, int]] = []
        for i, (pods, meaning) in enumerate(self._entries):
            position = pods.position
            if position != self._seen[i]:
                recent = pods.since(self._seen[i])
                if recent is None:
                    return None
                found += [(meaning, row, sign) for row, sign in recent]
                self._seen[i] = position
        return found


def _own_label_keys(*parts: PodAffinity | None) -> list[str]:
    """Return the label keys whose value on the owner is part of a term (matchLabelKeys, mismatchLabelKeys)."""
    found: list[str] = []
    for part in parts:
        if part is not None:
            for term in (*(part.required or ()), *(w.pod_affinity_term for w in part.preferred or ())):
                found += term.match_label_keys or ()
                found += term.mismatch_label_keys or ()
    return found


def per_row(rows: Mapping[int, int], capacity: int) -> npt.NDArray[np.int64]:
    """Return (capacity,) the number of pods per row."""
    counts = np.zeros(capacity, dtype=np.int64)
    if rows:
        counts[np.fromiter(rows.keys(), np.int64, len(rows))] = np.fromiter(rows.values(), np.int64, len(rows))
    return counts
