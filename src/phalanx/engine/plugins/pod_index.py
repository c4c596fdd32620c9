"""Placed pods, sorted by what selectors and rules can tell apart; shared by spreading and affinity.

A `LabelClass` holds the pods of a namespace whose labels look the same to every selector the engine knows; a `RuleSet`
those whose own affinity rules are the same. A tracker asks a class or rule set once and then only counts. Following
the change log, the index always says on which rows the pods of a class are.
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
    """Some placed pods. `rows`: row -> how many; the last comings and goings are kept for those who follow them."""

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
        """(row, sign) after `position`; None if that is too long ago."""
        return self._recent[position - self._base :] if position >= self._base else None


class LabelClass(PlacedPods):
    """Pods no selector can tell apart."""

    __slots__ = ("labels", "namespace", "terminating")

    def __init__(self, namespace: str, labels: dict[str, str], terminating: bool) -> None:
        super().__init__()
        self.namespace = namespace
        self.labels = labels
        self.terminating = terminating


class RuleSet(PlacedPods):
    """Pods whose own affinity rules mean the same."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[AffinityTerm, ...]) -> None:
        super().__init__()
        self.terms = terms


class PodIndex:
    def __init__(self, columns: Columns, interest: LabelInterest) -> None:
        self.columns = columns
        self.interest = interest
        self.version = 0  # +1 when classes were made anew: whoever remembers classes must start over
        self._position = -1
        self._epoch = -1
        self._restored = 0
        self._limit = _MANY
        self.classes: list[LabelClass] = []  # in order of first sight
        self.rule_sets: list[RuleSet] = []
        self._classes: dict[tuple[str, bool, tuple[tuple[str, str], ...]], LabelClass] = {}
        self._by_labels: dict[tuple[object, ...], LabelClass] = {}  # all of them: trials ask often
        self._having: dict[tuple[str, str], list[LabelClass]] = {}  # by label, in order of first sight
        self._rule_sets: dict[bytes, RuleSet] = {}
        self._rules_of_shape: dict[tuple[int, tuple[str | None, ...]], RuleSet] = {}

    def sync(self) -> None:
        """Bring all classes and rule sets up to date."""
        log = self.columns.log
        if self._position == log.position and self._epoch == self.interest.epoch:
            return
        if self._restored != self.interest.restored:  # values that were hidden since must be hidden again
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
        """Make the classes anew: the interest grew, the log is lost, or most of them are of pods long gone. Nobody
        follows them yet, so that nothing is kept of how they came to be."""
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
        """Lists that hold every class the matcher selects, each class once, and few others; they grow with the index.
        None: all classes. Most selectors name a value of a label, and few classes have it."""
        best, fewest = [self.classes], len(self.classes)
        for requirement in matcher.requirements if matcher is not None else ():
            if requirement.operator == "In":
                pairs = [(requirement.key, value) for value in dict.fromkeys(requirement.values)]
                count = sum(len(self._having.get(pair, ())) for pair in pairs)
                if best[0] is self.classes or count < fewest:
                    best, fewest = [self._having.setdefault(pair, []) for pair in pairs], count
        return best

    def rules_of(self, record: PodRecord) -> RuleSet | None:
        """None for the many pods without affinity rules."""
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


class Watch(Generic[T]):
    """The classes and rule sets one tracker cares for, and what happened to them since it last looked.

    `of_class` and `of_rules` say what a class or rule set means to the tracker; None: nothing. `begin` may be told that
    only classes a matcher selects mean anything.
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
        self._classes: list[tuple[list[LabelClass], int]] = []  # with how many of them were looked at
        self._seen_rules = 0
        self._relevant_pods: dict[PlacedPods, bool] = {}  # those somebody asked about
        self._version = -1

    def begin(self, matcher: LabelMatcher | None = None) -> list[tuple[PlacedPods, T]]:
        """Everything that matters, as it is now."""
        self.index.sync()
        self._version = self.index.version
        self._entries = []
        self._relevant_pods = {}
        self._seen = []
        some = self.index.candidates(matcher) if self._of_class is not None else ()
        self._classes = [(classes, 0) for classes in some]
        self._seen_rules = 0
        self._meet()
        self._seen = [pods.position for pods, _ in self._entries]
        return self._entries

    def _meet(self) -> None:
        """Look at classes and rule sets not seen before; all that happened to them is news."""
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
        """Whether a pod means anything to the tracker."""
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

    def news(self) -> list[tuple[T, int, int]] | None:
        """(meaning, row, sign) of every pod that came or went; None: begin again."""
        index = self.index
        index.sync()
        if self._version != index.version:
            return None
        unknown = self._seen_rules != len(index.rule_sets)
        for classes, seen in self._classes:
            unknown = unknown or len(classes) != seen
        if unknown:
            self._meet()
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
    """Keys whose value on the owner is part of what a term means (matchLabelKeys, mismatchLabelKeys)."""
    found: list[str] = []
    for part in parts:
        if part is not None:
            for term in (*(part.required or ()), *(w.pod_affinity_term for w in part.preferred or ())):
                found += term.match_label_keys or ()
                found += term.mismatch_label_keys or ()
    return found


def per_row(rows: Mapping[int, int], capacity: int) -> npt.NDArray[np.int64]:
    """(capacity,) how many pods each row has."""
    counts = np.zeros(capacity, dtype=np.int64)
    if rows:
        counts[np.fromiter(rows.keys(), np.int64, len(rows))] = np.fromiter(rows.values(), np.int64, len(rows))
    return counts
