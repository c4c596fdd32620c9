"""Find the disruption budgets that an eviction of a pod counts against: PodDisruptionBudgets and those of replicas.

The rules are those of kube-scheduler: an empty selector protects no pod, a pod without labels is never protected, and a
pod in the budget's status.disruptedPods does not count again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import Group, GroupForest, GroupKey
from phalanx.model.groups.policies import Name
from phalanx.model.groups.whole_groups import IMPLIED_BY
from phalanx.model.objects import PodDisruptionBudget
from phalanx.model.selectors import BadSelector, LabelMatcher, from_selector


class ReplicaBudgets:
    def __init__(self, forest: GroupForest) -> None:
        self._forest = forest
        self.names: list[str] = []
        self.allowed: list[int] = []
        self.of: dict[str, int] = {}  # pod key -> number of the budget that its eviction counts against

    def refresh(self) -> bool:
        """Bring the budgets up to date; return True if they changed."""
        limits = self._forest.policies.limited()
        if not limits and not self.names:
            return False
        before = (self.names, self.allowed, self.of)
        self.names, self.allowed, self.of = [], [], {}
        for name, limit in sorted(limits.items()):
            roots = self._replicas(name)
            available = [root for root in roots if all(leaf.satisfied for leaf in self._forest.leaves(root))]
            for root in available:
                for pod in self._counted(root):
                    self.of[pod] = len(self.names)
            self.names.append(f"{name[0]}/WorkloadPolicy {name[1]}")
            self.allowed.append(max(0, limit - (len(roots) - len(available))))
        return before != (self.names, self.allowed, self.of)

    def _replicas(self, name: Name) -> list[GroupKey]:
        roots = (self._forest.root_of(key) for key, chosen in self._forest.policies.chosen.items() if chosen == name)
        return list(dict.fromkeys(root for root in roots if root is not None))

    def _counted(self, root: GroupKey) -> list[str]:
        """Return the pods of a replica that count: one if it is only evicted as a whole."""
        group = self._forest.group(root)
        leaves = list(self._forest.leaves(root))
        pods = sorted(str(key) for leaf in leaves for key, member in leaf.members.items() if member.node)
        return pods[:1] if group is not None and _whole(group) else pods


def _whole(group: Group) -> bool:
    return group.spec is not None and group.spec.disrupt_all


NONE: tuple[int, ...] = ()
Entry = tuple[int, LabelMatcher, Mapping[str, str]]  # budget number, pods it protects, status.disruptedPods


class Budgets:
    def __init__(self, objects: Objects, replicas: ReplicaBudgets) -> None:
        self._objects, self._replicas = objects, replicas
        self._first_replica = 0  # number of the first budget of replicas
        self.version = 0  # +1 when results of `of` may change
        self.spending = 0  # +1 when `allowed` changed
        self.names: list[str] = []
        self.allowed: list[int] = []
        # By namespace and a label that a pod must have; None: budgets whose selector names no label value.
        self._entries: dict[str, dict[tuple[str, str] | None, list[Entry]]] = {}
        self._stale = True
        self._known: dict[str, tuple[PodRecord, tuple[int, ...]]] = {}  # by pod key

    def changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        self._stale = True
        same = old is not None and new is not None and old.spec == new.spec
        if not same or _disrupted(old) != _disrupted(new):
            self.version += 1
        self.spending += 1

    def refresh(self) -> None:
        if self._replicas.refresh():
            self._stale = True
            self.version += 1
            self.spending += 1
        if not self._stale:
            return
        self._stale = False
        self.names, self.allowed, self._entries, self._known = [], [], {}, {}
        for budget in self._objects.all(PodDisruptionBudget):
            try:
                matcher = from_selector(budget.spec.selector)
            except BadSelector:
                continue
            if matcher.nothing or matcher.everything or IMPLIED_BY in budget.metadata.annotations:
                continue  # a budget that a gang implies: the gang is preempted as a whole
            namespace = budget.metadata.namespace
            entry = (len(self.names), matcher, budget.status.disrupted_pods or {})
            here = self._entries.setdefault(namespace, {})
            for label in _one_of(matcher):
                here.setdefault(label, []).append(entry)
            self.names.append(f"{namespace}/{budget.metadata.name}")
            self.allowed.append(max(0, budget.status.disruptions_allowed))
        self._first_replica = len(self.names)
        self.names += self._replicas.names
        self.allowed += self._replicas.allowed

    def of(self, record: PodRecord) -> tuple[int, ...]:
        """Return the numbers of the budgets that an eviction of the pod counts against. Call `refresh` first."""
        number = self._replicas.of.get(record.key)
        selected = self._selected(record)
        return selected if number is None else (*selected, self._first_replica + number)

    def _selected(self, record: PodRecord) -> tuple[int, ...]:
        entries = self._entries.get(record.namespace)
        if not entries or not record.labels:
            return NONE
        known = self._known.get(record.key)
        if known is None or known[0] is not record:  # a pod whose labels change gets a new record
            if len(self._known) > 100_000:
                self._known.clear()
            labels = record.labels
            near = [entry for label in (None, *labels.items()) for entry in entries.get(label, ())]
            found = tuple(
                sorted({n for n, matcher, gone in near if record.name not in gone and matcher.matches(labels)})
            )
            known = self._known[record.key] = (record, found)
        return known[1]


def _one_of(matcher: LabelMatcher) -> Sequence[tuple[str, str] | None]:
    """Return the labels of the first requirement with values: a matching pod has one of them."""
    for requirement in matcher.requirements:
        if requirement.operator in ("In", "=", "=="):
            return [(requirement.key, value) for value in requirement.values]
    return (None,)


def _disrupted(budget: PodDisruptionBudget | None) -> Mapping[str, str]:
    return (budget.status.disrupted_pods or {}) if budget is not None else {}
