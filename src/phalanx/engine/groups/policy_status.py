"""Write the status of WorkloadPolicies: whether each is in effect as written, and for how many groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.groups.co_placement import cycle, partner
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.model.gates import COUNTS_OF_BASIC, Gates
from phalanx.model.groups import Group, GroupForest, GroupKey
from phalanx.model.groups.policies import Name, PolicyEntry
from phalanx.model.groups.policy import FieldProblem
from phalanx.model.objects import WorkloadPolicy

KIND = "WorkloadPolicy"
ACCEPTED = "Accepted"
MOST_SHOWN = 5  # problems in one message
MOST_TOUCHED = 10  # policies with one target whose status follows a change of another

WrittenStatus = tuple[str, str, str, int, int]  # status, reason, message, generation, matched groups


class PolicyStatuses:
    def __init__(self, forest: GroupForest, conditions: GroupConditions, gates: Gates, emit: Emit) -> None:
        self._forest, self._conditions, self._gates, self._emit = forest, conditions, gates, emit
        self._chosen: dict[GroupKey, Name] = {}  # group -> its effective policy
        self._matched: Counter[Name] = Counter()
        self._found: dict[GroupKey, tuple[FieldProblem, ...]] = {}  # problems found when the policy was applied
        self._written_statuses: dict[Name, tuple[str, WrittenStatus | None]] = {}  # uid and last written status
        self._reported: dict[GroupKey, tuple[str, ...]] = {}  # annotation problems already reported by an event
        self._touched: dict[Name, None] = {}

    def seen(self, name: Name, policy: WorkloadPolicy | None) -> None:
        """Handle a policy that was added, changed or deleted (None)."""
        self._touched[name] = None
        if policy is None:
            self._written_statuses.pop(name, None)
            return
        known = self._written_statuses.get(name)
        if known is None or known[0] != policy.metadata.uid:
            self._written_statuses[name] = (policy.metadata.uid, _written(policy))
        self._touch_same_target(name)

    def _touch_same_target(self, name: Name) -> None:
        """Write the oldest policies with the same target again: each says which one is older than it.

        Many policies for one object would else cost a write of each for a change of one.
        """
        entry = self._forest.policies.entries.get(name)
        for other in self._forest.policies.with_target(entry)[:MOST_TOUCHED] if entry is not None else ():
            self._touched[other.name] = None

    def refused(self, key: GroupKey) -> str:
        """Return what of the policy of a group is not in effect, and why; empty if all of it is."""
        name = self._chosen.get(key)
        written = self._written_statuses.get(name, ("", None))[1] if name is not None else None
        return f"WorkloadPolicy {name[1]}: {written[2]}" if name and written and written[0] == "False" else ""

    @property
    def has_reports(self) -> bool:
        return bool(self._found)

    def report(self, group: Group, problems: Sequence[FieldProblem]) -> None:
        """Report problems of applying a policy, such as a duplicate rank. Replaces earlier reports."""
        if self._found.get(group.key, ()) == tuple(problems):
            return
        if problems:
            self._found[group.key] = tuple(problems)
        else:
            del self._found[group.key]
        if group.key in self._chosen:
            self._touched[self._chosen[group.key]] = None

    def write_failed(self, write: d.SetGroupCondition) -> None:
        """Handle a failed write: the status is written again on the next occasion."""
        name = (write.namespace, write.name)
        if name in self._written_statuses:
            self._written_statuses[name] = (self._written_statuses[name][0], None)

    def rewrite(self, name: Name) -> None:
        self._touched[name] = None

    def notify(self) -> None:
        """Write changed statuses, once per step."""
        for key, found in self._forest.policies.take_looked_up().items():
            group = self._forest.group(key)
            self._match(key, found.object if group is not None else None)
            self._annotations(key, group, found.problems)
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        for name in touched:
            entry = self._forest.policies.entries.get(name)
            if entry is not None:
                self._report(entry)

    def _match(self, key: GroupKey, new: Name | None) -> None:
        old = self._chosen.pop(key, None)
        if new is not None:
            self._chosen[key] = new
        for name, change in ((old, -1), (new, +1)):
            if name is not None:
                self._matched[name] += change
                self._touched[name] = None

    def _annotations(self, key: GroupKey, group: Group | None, problems: tuple[FieldProblem, ...]) -> None:
        announced = tuple(map(str, problems))
        if group is None or group.spec is None or not announced:
            self._reported.pop(key, None)
            return
        if self._reported.get(key) == announced:
            return
        self._reported[key] = announced
        for problem in announced:
            self._conditions.annotation_ignored(key, group.spec.uid, f"annotation {problem}; it is ignored")

    def _problems(self, entry: PolicyEntry) -> list[FieldProblem]:
        found = list(entry.parsed.problems)
        for key, name in self._chosen.items():
            if name != entry.name:
                continue
            found += self._found.get(key, ())
            group = self._forest.group(key)
            if group is not None and "co_place_with" in entry.parsed.fields:
                found += self._co_placement(group, alone=self._matched[entry.name] == 1)
        return list(dict.fromkeys(found))

    def _co_placement(self, group: Group, *, alone: bool) -> list[FieldProblem]:
        """`alone`: the policy is for this group only, so that it may not name the group itself."""
        if group.composite:
            return []
        if alone and group.policy.co_place_with == group.key.name:
            return [FieldProblem("spec.ranks.coPlaceWith", f"is a cycle: {group.key} with itself")]
        circle = [str(each.key) for each in cycle(self._forest, group)]
        if circle:
            return [FieldProblem("spec.ranks.coPlaceWith", f"is a cycle: {' with '.join([*circle, circle[0]])}")]
        wanted = group.policy.co_place_with
        if partner(self._forest, group) is None and wanted not in (group.key.name, group.spec and group.spec.template):
            return [FieldProblem("spec.ranks.coPlaceWith", f"no group {wanted} is in the tree of {group.key}")]
        return []

    def _report(self, entry: PolicyEntry) -> None:
        uid, before = self._written_statuses.get(entry.name, ("", None))
        status, reason, message = self._verdict(entry)
        generation, matched = entry.policy.metadata.generation, self._matched[entry.name]
        new: WrittenStatus = (status, reason, message, generation, matched)
        if before == new:
            return
        self._written_statuses[entry.name] = (uid, new)
        self._emit(
            d.SetGroupCondition,
            namespace=entry.name[0],
            name=entry.name[1],
            uid=uid,
            kind=KIND,
            type=ACCEPTED,
            status=status,
            reason=reason,
            message=message,
            observed_generation=generation,
            counts={"observedGeneration": generation, "matchedGroups": matched},
        )

    def _verdict(self, entry: PolicyEntry) -> tuple[str, str, str]:
        target = entry.policy.spec.target_ref
        older = self._forest.policies.older(entry)
        if older is not None:
            text = f"WorkloadPolicy {older.name[1]} is older and has the same target, {target.kind} {target.name}"
            return "False", "Conflicted", f"spec.targetRef: {text}; this policy has no effect"
        problems = self._problems(entry)
        if problems:
            shown = "; ".join(map(str, problems[:MOST_SHOWN]))
            more = f" (and {len(problems) - MOST_SHOWN} more)" if len(problems) > MOST_SHOWN else ""
            return "False", "InvalidValue", f"{shown}{more}; such values are ignored, the others are in effect"
        if not self._matched[entry.name]:
            text = f"no group of {target.kind} {target.name} is known in namespace {entry.name[0]}"
            return "False", "TargetNotFound", f"spec.targetRef: {text}"
        text = f"in effect for {target.kind} {target.name}"
        return "True", ACCEPTED, "; ".join([text, *entry.parsed.notes, *self._without_counts(entry)])

    def _without_counts(self, entry: PolicyEntry) -> list[str]:
        """Return a note if the policy's counts have no effect on some of its groups."""
        if self._gates(COUNTS_OF_BASIC) or not {"desired_count", "max_count"} & entry.parsed.fields.keys():
            return []
        groups = [self._forest.group(key) for key, name in self._chosen.items() if name == entry.name]
        basic = any(each is not None and each.spec is not None and not each.spec.gang for each in groups)
        note = f"spec.counts has no effect on groups with the Basic policy (feature gate {COUNTS_OF_BASIC})"
        return [note] if basic else []


def _written(policy: WorkloadPolicy) -> WrittenStatus | None:
    for condition in policy.status.conditions or ():
        if condition.type == ACCEPTED:
            status = policy.status
            verdict = (condition.status, condition.reason, condition.message)
            return (*verdict, status.observed_generation, status.matched_groups)
    return None
