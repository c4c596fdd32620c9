"""Write the conditions of groups when they change, with one event per change; once True, a condition stays True."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phalanx.base.clock import parse_rfc3339
from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.groups import messages
from phalanx.model.groups import WORKLOAD, Group, GroupKey
from phalanx.model.objects import CompositePodGroup, PodGroup

TYPE_OF = {"PodGroup": "PodGroupInitiallyScheduled", "CompositePodGroup": "CompositePodGroupInitiallyScheduled"}
START_PROMISED = "scheduling.phalanx.dev/StartPromised"
QUIET = frozenset({"WaitingForMembers", "WaitingForParent"})  # reasons that do not produce an event


def set_condition(
    emit: Emit,
    group: Group,
    type_: str,
    status: str,
    reason: str,
    message: str,
    counts: dict[str, int | str] | None = None,
) -> None:
    """Decide to write a condition of a group's object. `counts`: other fields of the status."""
    key, spec = group.key, group.spec
    assert spec is not None
    emit(
        d.SetGroupCondition,
        namespace=key.namespace,
        name=key.name,
        uid=spec.uid,
        kind=key.kind,
        type=type_,
        status=status,
        reason=reason,
        message=message,
        observed_generation=spec.generation,
        counts=counts,
    )


class WrittenCondition(NamedTuple):
    """A condition as last written or seen; empty if there is none."""

    status: str = ""
    reason: str = ""
    message: str = ""


NOT_WRITTEN = WrittenCondition()


class GroupConditions:
    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._written_conditions: dict[GroupKey, WrittenCondition] = {}
        self._uids: dict[GroupKey, str] = {}
        self._implicit: dict[tuple[str, str], dict[GroupKey, None]] = {}  # (namespace, Workload) -> reported groups
        self._promised: dict[GroupKey, tuple[str, str]] = {}  # status and message of START_PROMISED
        self.targets: dict[GroupKey, float] = {}  # groups with DisruptionTarget -> since when, seconds

    def seen(self, key: GroupKey, obj: PodGroup | CompositePodGroup) -> None:
        """Record the condition that the object has already (after a restart, or written by another scheduler)."""
        uid = obj.metadata.uid
        if self._uids.get(key, uid) != uid:
            self._written_conditions.pop(key, None)  # recreated under the same name
        self._uids[key] = uid
        self._targeted(key, obj)
        if key in self._written_conditions:
            return
        for condition in obj.status.conditions or ():
            if condition.type == TYPE_OF.get(key.kind):
                self._written_conditions[key] = WrittenCondition(condition.status, condition.reason, condition.message)

    def _targeted(self, key: GroupKey, obj: PodGroup | CompositePodGroup) -> None:
        self.targets.pop(key, None)
        for condition in obj.status.conditions or ():
            if condition.type == DISRUPTION_TARGET and condition.status == "True":
                try:
                    self.targets[key] = parse_rfc3339(condition.last_transition_time or "")
                except ValueError:
                    self.targets[key] = 0.0

    def spared(self, group: Group) -> None:
        """Clear DisruptionTarget: the evicted pods were recreated and have nodes."""
        self.targets.pop(group.key, None)
        set_condition(
            self._emit, group, DISRUPTION_TARGET, "False", "Rescheduled", "its pods were created again and have nodes"
        )

    def promise(self, group: Group, status: str, reason: str, message: str) -> None:
        """Write whether room is reserved for a pending group, and from when."""
        key, spec = group.key, group.spec
        if spec is None or key.kind == WORKLOAD or self._promised.get(key, ("False", "")) == (status, message):
            return
        if status == "False" and key not in self._promised:
            return
        self._promised[key] = (status, message)
        set_condition(self._emit, group, START_PROMISED, status, reason, message)

    def parent_ignored(self, key: GroupKey, uid: str, parent: str) -> None:
        """Report that the parent group is ignored because the feature gate is off; each group is scheduled alone."""
        text = f"parentCompositePodGroupName {parent} is ignored, {key} is scheduled for itself: the feature gate"
        self._warn(key, uid, "ParentIgnored", f"{text} CompositePodGroup is off")

    def annotation_ignored(self, key: GroupKey, uid: str, problem: str) -> None:
        """Report a value that cannot be used; the group is scheduled without it."""
        self._warn(key, uid, "AnnotationIgnored", problem)

    def ranks_ignored(self, key: GroupKey, uid: str, problems: Sequence[str]) -> None:
        """Report ranks that are no numbers or occur twice; their pods were placed as pods without a rank."""
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        self._warn(key, uid, "RankIgnored", f"{'; '.join(problems[:3])}{more}: placed as pods without a rank")

    def _warn(self, key: GroupKey, uid: str, reason: str, message: str) -> None:
        self._emit(
            d.RecordEvent,
            namespace=key.namespace,
            name=key.name,
            uid=uid,
            kind=key.kind,
            type="Warning",
            reason=reason,
            action="Scheduling",
            message=message[: d.MAX_EVENT_MESSAGE],
        )

    def forget(self, key: GroupKey) -> None:
        self.targets.pop(key, None)
        self._written_conditions.pop(key, None)
        self._promised.pop(key, None)
        self._uids.pop(key, None)

    def forget_implicit(self, namespace: str, workload: str) -> None:
        """Forget the implicit groups of a deleted Workload, so that a recreated one is reported again."""
        for key in self._implicit.pop((namespace, workload), ()):
            self._written_conditions.pop(key, None)

    def last_written(self, key: GroupKey) -> WrittenCondition:
        return self._written_conditions.get(key, NOT_WRITTEN)

    def failure(self, key: GroupKey) -> str:
        """Return the message of a condition that is False; "" if it is not."""
        condition = self.last_written(key)
        return condition.message if condition.status == "False" else ""

    def is_true(self, key: GroupKey) -> bool:
        return self.last_written(key).status == "True"

    def write_failed(self, key: GroupKey, write: d.SetGroupCondition, obj: Any) -> None:
        """Handle a failed write: the condition is written again on the next occasion.

        A value written since, or of another condition type, is kept. `obj`: the group as last seen.
        """
        if write.type == DISRUPTION_TARGET:
            if isinstance(obj, PodGroup | CompositePodGroup):
                self._targeted(key, obj)
        elif self._written_conditions.get(key) == (write.status, write.reason, write.message):
            self._written_conditions.pop(key)

    def report(
        self, group: Group, status: str, reason: str, message: str, *, headline: str = "", event: bool = True
    ) -> None:
        """Set the condition of a group. `headline`: a plain sentence that the event has instead of the message."""
        key = group.key
        known, condition = self.last_written(key), WrittenCondition(status, reason, message)
        if known == condition or (known.status == "True" and status != "True"):
            return
        self._written_conditions[key] = condition
        spec = group.spec
        if spec is None:
            return
        if key.kind == WORKLOAD:  # an implicit group is not an API object and has no status
            self._implicit.setdefault((key.namespace, key.name.partition("/")[0]), {})[key] = None
        else:
            set_condition(self._emit, group, TYPE_OF[key.kind], status, reason, message)
        if event and reason not in QUIET:
            self._event(group, status, headline or message)

    def _event(self, group: Group, status: str, message: str) -> None:
        key, spec = group.key, group.spec
        assert spec is not None
        good = status == "True"
        text = messages.scheduled(key, spec.minimum) if good else message
        self._emit(
            d.RecordEvent,
            namespace=key.namespace,
            name=key.name.partition("/")[0],
            uid=spec.uid,
            kind=key.kind,
            type="Normal" if good else "Warning",
            reason="Scheduled" if good else "FailedScheduling",
            action="Binding" if good else "Scheduling",
            message=text[: d.MAX_EVENT_MESSAGE],
        )
