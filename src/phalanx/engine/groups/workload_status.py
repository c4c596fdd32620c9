"""Write the status of a Workload: the counts of all its groups, updated incrementally when a group changes.

Kubernetes has no such status; without it a client could not wait for a Workload whose groups are not API objects
(KEP-4671).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.groups.group_state import HEALTHY as GOOD
from phalanx.engine.groups.group_state import GroupState, Phase
from phalanx.model.groups import Group, GroupForest, GroupKey
from phalanx.model.objects import Workload
from phalanx.model.printing.groups import HEALTHY

WHOLE = "Scheduled"
# The phase of a Workload is the first one in this list that any of its groups has.
WORST_FIRST = (
    Phase.DEGRADED,
    Phase.PREEMPTING,
    Phase.PREEMPTED,
    Phase.TIMED_OUT,
    Phase.INVALID,
    Phase.SCHEDULING,
    Phase.WAITING,
    Phase.RUNNING,
    Phase.COMPLETED,
)
WorkloadKey = tuple[str, str]  # (namespace, name) of a Workload
WrittenCondition = tuple[str, str, str]  # status, reason, message
# Contribution of a leaf: its Workload, its template, and counts by status field.
Part = tuple[WorkloadKey, str, tuple[tuple[str, int], ...]]


class WorkloadStatuses:
    def __init__(self, forest: GroupForest, state: Callable[[Group], GroupState], emit: Emit) -> None:
        self._forest, self._state, self._emit = forest, state, emit
        self._parts: dict[GroupKey, Part] = {}
        self._sums: dict[WorkloadKey, dict[str, Counter[str]]] = {}  # Workload -> template -> numbers
        self._written_statuses: dict[
            WorkloadKey, tuple[str, dict[str, WrittenCondition]]
        ] = {}  # uid, condition type -> condition last written
        self._touched: dict[WorkloadKey, None] = {}

    def seen(self, place: WorkloadKey, workload: Workload | None) -> None:
        """Handle a Workload that was added, changed or deleted (None)."""
        self._touched[place] = None
        if workload is None:
            self._written_statuses.pop(place, None)
            return
        uid = workload.metadata.uid
        known = self._written_statuses.get(place)
        if known is None or known[0] != uid:
            written = {c.type: (c.status, c.reason, c.message) for c in workload.status.conditions or ()}
            self._written_statuses[place] = (uid, written)

    def write_failed(self, write: d.SetGroupCondition) -> None:
        """Handle a failed write: the status is written again on the next occasion, except for values written since."""
        _, written = self._written_statuses.get((write.namespace, write.name), ("", {}))
        if written.get(write.type) == (write.status, write.reason, write.message):
            del written[write.type]

    def rewrite(self, place: WorkloadKey) -> None:
        """Write the status again in the next step."""
        self._touched[place] = None

    def notify(self, groups: Mapping[GroupKey, Group | None]) -> None:
        """Write changed statuses, once per step. `groups`: groups whose members changed; None: deleted."""
        for key, group in groups.items():
            self._count(key, group)
        touched, self._touched = self._touched, {}
        for place in touched:
            self._report(place)

    def _count(self, leaf: GroupKey, group: Group | None) -> None:
        """Bring what a leaf adds to the counts of its Workload up to date."""
        spec = group.spec if group is not None else None
        if (spec is None or spec.workload is None) and leaf not in self._parts:
            return
        new: Part | None = None
        if group is not None and not group.composite and spec is not None and spec.workload is not None:
            state = self._state(group)
            numbers = {
                "groups": 1,
                "scheduledGroups": int(state.placed >= state.minimum),
                "pods": state.pods,
                "scheduledPods": state.placed_pods,
                str(state.phase): 1,
            }
            place = (leaf.namespace, spec.workload)
            new = (place, spec.template or "", tuple(numbers.items()))
        old = self._parts.get(leaf)
        if old == new:
            return
        for part, sign in ((old, -1), (new, +1)):
            if part is not None:
                place, template, counted = part
                sums = self._sums.setdefault(place, {}).setdefault(template, Counter())
                for name, number in counted:
                    sums[name] += sign * number
                if not sums["groups"]:
                    del self._sums[place][template]
                self._touched[place] = None
        if new is None:
            del self._parts[leaf]
        else:
            self._parts[leaf] = new

    def _report(self, place: WorkloadKey) -> None:
        sums = self._sums.get(place, {})
        if not sums:
            self._sums.pop(place, None)
        known = self._written_statuses.get(place)
        if known is None:
            return  # the groups name a missing Workload
        uid, written = known
        total: Counter[str] = Counter()
        for numbers in sums.values():
            total.update(numbers)
        templates = self._forest.leaf_templates(*place)
        empty = [name for name in templates if name not in sums]
        announced = {f"{name}/{WHOLE}": _verdict(sums[name], []) for name in templates if name in sums}
        announced[WHOLE] = _verdict(total, empty)
        announced[HEALTHY] = _health(total, empty)
        if not sums and not written:
            return  # no group uses it yet
        counts = {name: total[name] for name in ("groups", "scheduledGroups", "pods", "scheduledPods")}
        for type_, verdict in announced.items():
            if written.get(type_) != verdict:
                written[type_] = verdict
                self._emit(
                    d.SetGroupCondition,
                    namespace=place[0],
                    name=place[1],
                    uid=uid,
                    kind="Workload",
                    type=type_,
                    status=verdict[0],
                    reason=verdict[1],
                    message=verdict[2],
                    counts=counts,
                )


def _verdict(numbers: Counter[str], empty: list[str]) -> WrittenCondition:
    groups, scheduled = numbers["groups"], numbers["scheduledGroups"]
    placed = f"{numbers['scheduledPods']} of {numbers['pods']} pods have a node"
    text = f"{scheduled} of {groups} groups have their minimum; {placed}"
    if empty:
        return "False", "WaitingForGroups", f"{text}; no group of {', '.join(empty)} yet"
    if groups and scheduled == groups:
        return "True", "Scheduled", text
    return "False", "WaitingForMembers" if not groups else "NotScheduled", text


def _health(numbers: Counter[str], empty: list[str]) -> WrittenCondition:
    """Return the condition scheduling.phalanx.dev/Healthy: the worst phase of any group, with counts of all phases."""
    found = [phase for phase in WORST_FIRST if numbers[phase]]
    text = ", ".join(f"{numbers[phase]} {phase}" for phase in found)
    if empty:
        text = f"{text or 'no group'}; no group of {', '.join(empty)} yet"
    worst = found[0] if found else Phase.WAITING
    if empty and worst in GOOD:
        worst = Phase.WAITING
    return ("True" if worst in GOOD else "False"), str(worst), f"groups: {text}"
