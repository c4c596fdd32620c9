"""Write the condition scheduling.phalanx.dev/Healthy of groups, with their pod counts, when the state changes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.conditions import GroupConditions, set_condition
from phalanx.engine.groups.group_state import HEALTHY as GOOD
from phalanx.engine.groups.group_state import Facts, GroupState, Phase, group_state
from phalanx.engine.groups.losses import NOT_REPLACED, RESTARTS, Loss, LossCause, Losses
from phalanx.engine.groups.restarts import NO_RESTARTS, RestartConditions, Restarts, seconds_of, stored_restarts
from phalanx.model.groups import Group, GroupKey, MemberState
from phalanx.model.groups.group import PENDING
from phalanx.model.groups.policy import DEFAULT
from phalanx.model.objects import CompositePodGroup, Pod, PodGroup
from phalanx.model.objects.pod import not_ready_since
from phalanx.model.printing.groups import HEALTHY

MOST_LOST = 5  # members named in one message per cause
QUIET_SECONDS = 1.0  # between two writes that only change counts, and before the first write for an untried group


class _Written(msgspec.Struct):
    uid: str
    status: str = ""
    reason: str = ""
    message: str = ""
    at: float = 0.0  # seconds; of the last write
    since: float | None = None  # seconds; last change of `status`
    waits_since: float | None = None  # seconds; when its pods were first seen, until the first write

    def same(self, status: str, reason: str, message: str) -> bool:
        return (self.status, self.reason, self.message) == (status, reason, message)


class GroupHealth:
    def __init__(self, state: ClusterState, conditions: GroupConditions, losses: Losses, emit: Emit) -> None:
        self._cluster, self._forest = state, state.forest
        self._conditions, self._emit = conditions, emit
        self.losses = losses
        self.timed_out: dict[GroupKey, str] = {}  # group -> message about the time limit that has passed
        self.restarts: dict[GroupKey, Restarts] = {}  # restarted gangs
        self.unready: dict[GroupKey, dict[str, Loss]] = {}  # leaf -> members not ready in time, by uid
        self.changed: dict[GroupKey, float] = {}  # groups to check again, see `Maintenance`, and since when
        self.followed: dict[GroupKey, None] = {}  # groups that `Maintenance` has state of
        self.restarted = RestartConditions(emit)
        self._ran: dict[GroupKey, None] = {}  # groups that ran when an earlier process ended, until they run again
        self._written_conditions: dict[GroupKey, _Written] = {}
        self._touched: dict[GroupKey, None] = {}
        self._later: dict[GroupKey, float] = {}  # time of a delayed write, in seconds
        self._due: list[tuple[float, GroupKey]] = []  # heap of the same; outdated entries are skipped

    # ---- queries

    def state(self, group: Group) -> GroupState:
        return group_state(self._forest, group, self._facts(group))

    def _facts(self, group: Group) -> Facts:
        key = group.key
        started = self._conditions.is_true(key)
        disrupted = key in self._conditions.targets or (started and self._all_preempted(key))
        return Facts(started, disrupted, key in self.timed_out, self.unready)

    def _all_preempted(self, key: GroupKey) -> bool:
        """Return True if a group has lost all its members to preemption, one by one."""
        lost: list[Loss] = []
        for leaf in self._forest.leaves(key):
            if leaf.on_nodes or leaf.counts[MemberState.SUCCEEDED]:
                return False
            lost += self.losses.of(leaf.key)
        if not lost:  # an earlier process has seen them
            return self.has_reason(key, Phase.PREEMPTED)
        return all(loss.cause is LossCause.PREEMPTED for loss in lost)

    def message(self, group: Group, state: GroupState) -> str:
        """Return one sentence: the placed and required numbers, and the lost members with causes."""
        what = "child groups have their minimum" if group.composite else "pods have a node"
        if not group.composite and self.unready.get(group.key):
            what = "pods have a node and are ready, or still in time"
        text = f"{state.placed} of {state.wanted} {what}"
        if state.placed < state.minimum and group.spec is not None and group.spec.gang:
            text += f", {state.minimum} are needed"
        if group.key in self.timed_out and state.phase is Phase.TIMED_OUT:
            text += f"; {self.timed_out[group.key]}"
        if state.phase in GOOD:
            return text
        if group.key in self.restarts:
            text += f"; restarted {self.restarts[group.key].count} of {group.policy.max_restarts} times"
        lost = self.lost(group)
        return f"{text}; lost: {lost}" if lost else text

    def lost(self, group: Group) -> str:
        """Return the lost members without a replacement, by cause; "" if none."""
        lost: dict[str, Loss] = {}  # by uid: a member that is not ready may also terminate
        for leaf in self._forest.leaves(group.key):
            lost |= self.unready.get(leaf.key, {}) | {loss.uid: loss for loss in self.losses.of(leaf.key)}
        return lost_in_words(lost.values())

    def returns(self, leaf: GroupKey) -> bool:
        """Return True if the pods of a group come again because members were lost, not because it was started again.

        A group that has timed out goes behind the others instead.
        """
        if leaf in self.timed_out:
            return False
        return leaf in self._ran or any(loss.cause not in NOT_REPLACED for loss in self.losses.of(leaf))

    def unhealthy_since(self, key: GroupKey) -> float | None:
        """Return since when the condition is False, in seconds; None if it is not."""
        written = self._written_conditions.get(key)
        return written.since if written is not None and written.status == "False" else None

    def has_reason(self, key: GroupKey, phase: Phase) -> bool:
        """Return True if the written condition has this phase as its reason."""
        written = self._written_conditions.get(key)
        return written is not None and written.reason == phase

    def _counted_restarts(self, key: GroupKey) -> dict[str, int | str]:
        found = self.restarts.get(key)
        return {"restarts": found.count, "lastRestartTime": rfc3339(found.last)} if found is not None else {}

    # ---- events

    def seen(self, key: GroupKey, obj: PodGroup | CompositePodGroup) -> None:
        known = self._written_conditions.get(key)
        self.touch(key)
        if known is not None and known.uid == obj.metadata.uid:
            return
        written = self._written_conditions[key] = _Written(obj.metadata.uid)
        self.restarts.pop(key, None)
        if (restarts := stored_restarts(obj)) != NO_RESTARTS:
            self.restarts[key] = restarts
            self.restarted.seen(key, restarts)
        for condition in obj.status.conditions or ():
            if condition.type == HEALTHY:
                written.status, written.reason, written.message = condition.status, condition.reason, condition.message
                written.since = seconds_of(condition.last_transition_time)
        if written.reason in (Phase.RUNNING, Phase.DEGRADED) and _restarts_itself(obj):
            self._ran[key] = None
        if written.reason == Phase.TIMED_OUT or key in self.restarts:
            self._check_again(key)  # continue before it is tried: its backoff may not be over

    def readiness(self, group: Group, old: Pod, new: Pod) -> None:
        """Handle a new version of a member: whether it is ready matters to a time limit."""
        if group.policy is DEFAULT or not group.policy.ready_seconds:
            return
        if (not_ready_since(old) is None) != (not_ready_since(new) is None):
            self._check_again(group.key)

    def forget(self, key: GroupKey) -> None:
        self._written_conditions.pop(key, None)
        self.timed_out.pop(key, None)
        self.restarts.pop(key, None)
        self._ran.pop(key, None)
        self.restarted.forget(key)
        self.unready.pop(key, None)
        self.losses.forget(key)
        if key in self.followed:
            self._check_again(key)

    def _check_again(self, key: GroupKey) -> None:
        self.changed.setdefault(key, self._cluster.now)

    def set_unready(self, leaf: GroupKey, late: dict[str, Loss]) -> None:
        """Set the bound members that exceeded the policy's limit for readiness."""
        self.unready.pop(leaf, None)
        if late:
            self.unready[leaf] = late
        self.touch(leaf)

    def touch(self, *keys: GroupKey) -> None:
        self._touched.update(dict.fromkeys(keys))

    def write_failed(self, key: GroupKey) -> None:
        """Handle a failed write: the condition is written again on the next occasion."""
        if key in self._written_conditions:
            self._written_conditions[key].status = ""

    def next_time(self) -> float | None:
        self._skip_superseded()
        return self._due[0][0] if self._due else None

    def _delay(self, key: GroupKey, until: float) -> None:
        if key not in self._later:
            self._later[key] = until
            heapq.heappush(self._due, (until, key))

    def _skip_superseded(self) -> None:
        while self._due and self._later.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)

    def _take_due(self) -> Iterator[GroupKey]:
        while (due := self.next_time()) is not None and due <= self._cluster.now:
            key = heapq.heappop(self._due)[1]
            del self._later[key]
            yield key

    def notify(self, leaves: Iterable[GroupKey]) -> dict[GroupKey, Group | None]:
        """Write changed conditions, once per step; return the groups whose state may have changed, None if deleted.

        `leaves`: leaves whose members changed.
        """
        touched, self._touched = self._touched, {}
        touched.update(dict.fromkeys(leaves))
        if self._later:
            touched.update(dict.fromkeys(self._take_due()))
        forest = self._forest
        groups = {key: forest.group(key) for key in touched}
        for group in list(groups.values()):
            if group is not None and group.spec is not None and group.spec.parent is not None:
                groups |= {above.key: above for above in forest.above(group.key) if above.spec is not None}
        for key, group in groups.items():
            if group is None:
                continue
            if (group.policy is not DEFAULT and group.policy.maintained) or key in self.followed:
                self._check_again(key)
            if not group.binding and (written := self._written_conditions.get(key)) is not None:
                self._report(group, written)
        return groups

    def _report(self, group: Group, written: _Written) -> None:
        assert group.spec is not None
        key, leaves = group.key, self._forest.leaves(group.key) if group.composite else (group,)
        pending = on_nodes = 0
        for leaf in leaves:
            if leaf.binding:
                return  # binds in progress are one change, written after the last one
            pending += leaf.counts[PENDING]
            on_nodes += leaf.on_nodes
        if not written.status and not on_nodes and (not pending or self._untried(key, written)):
            return
        if key in self.restarts:
            self.restarted.report(group, self.restarts[key])
        state = self.state(group)
        if state.phase in GOOD and not group.composite:  # its groups may lack members: each is reported itself
            self.losses.forget(key)
            self._ran.pop(key, None)
        status = "True" if state.phase in GOOD else "False"
        message = self.message(group, state)
        if written.same(status, state.phase, message):
            return
        now = self._cluster.now
        if (written.status, written.reason) == (status, state.phase) and now < written.at + QUIET_SECONDS:
            self._delay(key, written.at + QUIET_SECONDS)
            return
        if written.status != status:
            written.since = now
        written.status, written.reason, written.message, written.at = status, str(state.phase), message, now
        self._later.pop(key, None)
        counts = {"pods": state.pods, "scheduledPods": state.placed_pods, **self._counted_restarts(key)}
        set_condition(self._emit, group, HEALTHY, status, str(state.phase), message, counts)

    def _untried(self, key: GroupKey, written: _Written) -> bool:
        """Return True for a moment after its first pods arrived, unless it is known to wait.

        Most groups are placed at once and need no earlier condition.
        """
        if self._conditions.last_written(key).status:
            return False
        if written.waits_since is None:
            written.waits_since = self._cluster.now
        self._delay(key, written.waits_since + QUIET_SECONDS)
        return self._cluster.now < written.waits_since + QUIET_SECONDS


def _restarts_itself(group: PodGroup | CompositePodGroup) -> bool:
    return any(owner.controller and owner.kind in RESTARTS for owner in group.metadata.owner_references or ())


def lost_in_words(lost: Iterable[Loss]) -> str:
    """Return the lost members as text, grouped by cause."""
    by_cause: dict[str, list[str]] = {}
    for loss in lost:
        by_cause.setdefault(loss.why, []).append(loss.pod)
    parts = []
    for why, pods in by_cause.items():
        more = f" and {len(pods) - MOST_LOST} more" if len(pods) > MOST_LOST else ""
        names = f"{', '.join(pods[:MOST_LOST])}{more}"
        parts.append(f"{len(pods)} pods {why}: {names}" if len(pods) > 1 else f"{names} ({why})")
    return "; ".join(parts)
