"""Track which pod labels selectors can see. Other labels do not distinguish pods.

A selector that names values (`worker-index: "0"`) splits pods into those with one of the values, those with any other
value, and those without the label. So a label is kept only if a selector mentions its key, and its value only if a
selector mentions the value; `OTHER` stands for every other value. Otherwise the leaders of one LeaderWorkerSet,
selected by index 0, would give every worker of the cluster a shape of its own.

Most values are mentioned before a pod has them (a StatefulSet exists before its pods). Only a key that is new, or a
value that was already reported as `OTHER`, starts a new `epoch`, in which shapes and classes are computed again. When
the known mentions have grown so much that most may belong to deleted selectors, they are collected again from
`sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from phalanx.model.objects import Pod
from phalanx.model.objects.meta import LabelSelector

OTHER = "*"  # no label may have this value

# Key -> values that some selector names; None: every value counts.
Mentions = dict[str, set[str] | None]

_MANY_VALUES = 10_000  # a key with more values keeps every value, so that memory stays bounded
_MANY_HIDDEN = 20_000
_MANY_LATE_MENTIONS = 8  # if values of a key are often mentioned too late, keep every value: a new epoch is expensive

_FEW = 1024  # keys and values of deleted selectors that are tolerated before collecting mentions again

State = tuple[Mentions, dict[str, set[str]], dict[str, int], int, int]
Source = Callable[[], Iterable[Mentions]]


class LabelInterest:
    __slots__ = ("_hidden", "_lasting", "_late_mentions", "_most", "_size", "_values", "epoch", "restored", "sources")

    def __init__(self) -> None:
        self.epoch = 0
        self.restored = 0  # +1 by `restore`: which values were hidden in an epoch is then unknown
        self.sources: list[Source] = []  # functions that list what selectors mention now; see `learn`
        self._lasting: Mentions = {}  # mentions that no source repeats
        self._size = 0  # keys and values
        self._most = _FEW
        self._values: Mentions = {}
        self._hidden: dict[str, set[str]] = {}  # values that were reported as OTHER in this epoch
        self._late_mentions: dict[str, int] = {}

    def add(self, keys: Iterable[str]) -> bool:
        """Add keys of which the caller reads every value. Return True if a new epoch begins."""
        return self.learn(dict.fromkeys(keys))

    def learn(self, mentions: Mentions, *, repeated: bool = False) -> bool:
        """Add what a selector mentions (plugins: of a Service, of a pod's affinity term). `repeated`: one of the
        `sources` lists it when asked; otherwise it is kept for ever. Return True if a new epoch begins."""
        if not repeated:
            _merge_all(self._lasting, mentions)
        return self._learn(mentions)

    def outgrown(self) -> bool:
        """Return True if so much was mentioned that most of it may belong to deleted selectors."""
        return self._size > self._most

    def relearn(self) -> None:
        """Remove what no selector mentions any more."""
        before, hidden, epoch = self._values, self._hidden, self.epoch
        self._values, self._hidden, self._late_mentions, self._size = {}, {}, {}, 0
        self._learn(self._lasting)
        for source in self.sources:
            for mentions in source():
                self._learn(mentions)
        self.epoch = epoch + 1
        if self._values == before:
            self._hidden, self.epoch = hidden, epoch
        self._most = 2 * self._size + _FEW

    def _learn(self, mentions: Mentions) -> bool:
        again = False
        for key, wanted in mentions.items():
            if key not in self._values:
                self._values[key] = None if wanted is None else set(wanted)
                self._size += 1 + len(wanted or ())
                again = True
                continue
            known = self._values[key]
            if known is None:
                continue
            hidden = self._hidden.get(key, set())
            whole = wanted is None
            if wanted is not None:
                fresh = wanted - known
                if fresh and (len(hidden) >= _MANY_HIDDEN or not hidden.isdisjoint(fresh)):
                    again = True
                    self._late_mentions[key] = self._late_mentions.get(key, 0) + 1
                known |= fresh
                self._size += len(fresh)
                whole = len(known) > _MANY_VALUES or self._late_mentions.get(key, 0) >= _MANY_LATE_MENTIONS
            if whole:
                self._values[key] = None
                self._size -= len(known)
                again = again or bool(hidden)
        if again:
            self.epoch += 1
            self._hidden.clear()
        return again

    def project(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return labels as selectors see them. A caller that keeps the result must `hide` the original labels."""
        values = self._values
        found = {}
        for key, value in labels.items():
            if key in values:
                known = values[key]
                found[key] = value if known is None or value in known else OTHER
        return found

    def hide(self, labels: Mapping[str, str]) -> None:
        """Record which values of these labels were reported as OTHER."""
        for key, value in labels.items():
            known = self._values.get(key)
            if known is not None and value not in known:
                hidden = self._hidden.setdefault(key, set())
                if len(hidden) < _MANY_HIDDEN:
                    hidden.add(value)

    def seen(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Call `project`, and `hide` if a value is OTHER."""
        found = self.project(labels)
        if OTHER in found.values():
            self.hide(labels)
        return found

    def known(self) -> dict[str, frozenset[str] | None]:
        return {key: None if values is None else frozenset(values) for key, values in self._values.items()}

    def state(self) -> State:
        """Return a copy of everything, to `restore` after a query."""
        values: Mentions = {key: None if known is None else set(known) for key, known in self._values.items()}
        hidden = {key: set(some) for key, some in self._hidden.items()}
        return values, hidden, dict(self._late_mentions), self._size, self.epoch

    def restore(self, state: State) -> None:
        self.restored += 1
        self._values, self._hidden, self._late_mentions, self._size, self.epoch = state


def of_selector(selector: LabelSelector | None) -> Mentions:
    found: Mentions = {}
    if selector is not None:
        for key, value in (selector.match_labels or {}).items():
            _mention(found, key, (value,))
        for expression in selector.match_expressions or ():
            _mention(found, expression.key, expression.values or ())
    return found


def of_labels(labels: Mapping[str, str] | None) -> Mentions:
    """Return the mentions of an equality-based selector, as Services have it."""
    return {key: {value} for key, value in (labels or {}).items()}


def of_pod(pod: Pod) -> Mentions:
    """Return what this pod's topology spread constraints and affinity terms mention. Keys of `matchLabelKeys` and
    `mismatchLabelKeys` count with all their values, because every pod compares with its own."""
    found: Mentions = {}
    for constraint in pod.spec.topology_spread_constraints or ():
        _merge(found, of_selector(constraint.label_selector))
        found.update(dict.fromkeys(constraint.match_label_keys or ()))
    affinity = pod.spec.affinity
    for part in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if part is None:
            continue
        for term in (*(part.required or ()), *(weighted.pod_affinity_term for weighted in part.preferred or ())):
            _merge(found, of_selector(term.label_selector))
            found.update(dict.fromkeys(term.match_label_keys or ()))
            found.update(dict.fromkeys(term.mismatch_label_keys or ()))
    return found


def _merge_all(into: Mentions, more: Mentions) -> None:
    """Add `more` to `into`. None on either side stands for every value, as do too many values."""
    for key, values in more.items():
        known = into.setdefault(key, set())
        if known is None:
            continue
        known.update(values or ())
        if values is None or len(known) > _MANY_VALUES:
            into[key] = None


def _merge(into: Mentions, more: Mentions) -> None:
    for key, values in more.items():
        _mention(into, key, values or ())


def _mention(into: Mentions, key: str, values: Iterable[str]) -> None:
    known = into.setdefault(key, set())
    if known is not None:
        known.update(values)
