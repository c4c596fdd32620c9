"""Apply the policies of running gangs: loss of members, restarts and time limits.

Only groups with a policy are checked, after an event or when a deadline passes. Times are read from objects where
possible, so that a new scheduler process continues where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.group_state import HEALTHY, GroupState, Phase, pending_phase, wanted_pods
from phalanx.engine.groups.losses import GANG_TERMINATED, NEVER_READY, NOT_REPLACED, Loss, LossCause, node_is_lost
from phalanx.engine.groups.restarts import NO_RESTARTS, Restarts, seconds_of
from phalanx.engine.placement.outcome import plural
from phalanx.engine.scheduling.commit.group_reservations import GroupReservations
from phalanx.engine.scheduling.commit.replacements import RESERVED_SECONDS, Replacements, Rollouts, recreation_seconds
from phalanx.engine.scheduling.commit.reservation_limits import QuotaChecks
from phalanx.engine.scheduling.lifecycle.members import Members, root_key
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.model.groups import Group, GroupKey, Member, MemberState
from phalanx.model.groups.policy import REPLACE, TERMINATE_ALL, Policy
from phalanx.model.objects import Pod
from phalanx.model.objects.pod import bound_since, not_ready_since

EXTRAS_SECONDS = 10.0  # between two attempts of members beyond `desired`
START_SECONDS = 10.0  # after the first step, in which what an earlier process knew is read from objects
EVICTION_SECONDS = 30.0  # after which a member that does not terminate is evicted again
MOST_DOUBLED = 30  # exponent limit of a backoff
LONGEST_BACKOFF = 600.0  # seconds between two restarts, unless the policy asks for more
RUNNING = MemberState.RUNNING
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


class _Times(msgspec.Struct):
    """Remembered times of a group in seconds."""

    degraded: float | None = None  # since when it is below its minimum
    scheduling: float | None = None  # since when it is complete without a placement
    ended: float = 0.0  # when TerminateAll last evicted the remaining members
    ending: frozenset[str] = frozenset()  # uids of the members evicted then
    unready: dict[str, float] = {}  # uid of a bound member -> since when it is not ready

    def shift(self, seconds: float) -> None:
        """Handle a clock that was set forward: what is remembered is as long ago as before."""
        self.degraded = None if self.degraded is None else self.degraded + seconds
        self.scheduling = None if self.scheduling is None else self.scheduling + seconds
        self.ended += seconds
        self.unready = {uid: since + seconds for uid, since in self.unready.items()}


class Maintenance:
    def __init__(
        self, state: ClusterState, members: Members, pods: PodLifecycle, room: GroupReservations, emit: Emit
    ) -> None:
        self._cluster, self._forest = state, state.forest
        self._members, self._pods, self._room, self._emit = members, pods, room, emit
        self._health = members.health
        self.replacements = Replacements(state, members, pods)
        self._rollouts = Rollouts(state.forest, self.replacements)
        self._quotas = QuotaChecks(state)
        self._times: dict[GroupKey, _Times] = {}
        self._due: dict[GroupKey, float] = {}
        self._backoffs: dict[GroupKey, GroupKey] = {}  # root -> the group whose restart delays it
        self._tried: dict[GroupKey, None] = {}  # groups with pending members beyond `desired`
        self._fresh = True  # reservations of an earlier process are not restored yet
        self._began = 0.0  # time of the first step

    # ---- time

    def next_time(self) -> float | None:
        """Return the time in seconds at which `step` has something to do; a time in the past means now."""
        if self._health.changed or self._members.lost_members:
            return self._cluster.now
        others = (self.replacements.next_time(), self._quotas.next_time)
        return min([*self._due.values(), *(due for due in others if due is not None)], default=None)

    def step(self) -> None:
        """Apply policies of groups; called before units are tried."""
        now = self._cluster.now
        if self._fresh:
            self._fresh, self._began = False, now
            self._restore()
        changed, self._health.changed = self._health.changed, {}
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            changed.setdefault(key, now)
        lost, self._members.lost_members = self._members.lost_members, []
        self._rollouts.begin()
        for leaf, loss, pod in lost:
            self._replace(leaf, loss, pod)
        for key, since in changed.items():
            group = self._forest.group(key)
            if group is not None and group.policy.maintained:
                self._apply_policy(group, since)
            else:
                self._forget(key)
        for root in [root for root, until in self._members.restart_after.items() if until <= now]:
            del self._members.restart_after[root]
            self._backoffs.pop(root, None)
            self._members.notes.roots_of_changed_members[root] = None

    def clock_jumped(self, seconds: float) -> None:
        """Handle a clock that was set forward: no time limit ends because of it."""
        for times in self._times.values():
            times.shift(seconds)
        self._due = {key: due + seconds for key, due in self._due.items()}
        self._health.changed = {key: since + seconds for key, since in self._health.changed.items()}
        self._began += seconds

    def settle(self) -> None:
        """End reservations that expired or are beyond a quota, and assign others to pods that have come."""
        beyond = self._quotas.overdue([*self._room.reservations, *self.replacements.of_deleted_pods])
        self._room.end(beyond)
        self.replacements.settle(beyond)

    def _restore(self) -> None:
        """Restore the reservations of an earlier process, also for members that terminate or have failed since then."""
        leaves = [leaf for root in self._forest.roots() for leaf in self._forest.leaves(root)]
        for leaf in leaves:
            self.replacements.restore(leaf)
        for leaf in leaves:
            for member in leaf.members.values() if leaf.counts[MemberState.ENDING] else ():
                if member.state is MemberState.ENDING:
                    self._members.note_loss(leaf.key, member, member)
            for member in self._failed_without_replacement(leaf) if leaf.counts[MemberState.FAILED] else ():
                self._members.note_loss(leaf.key, msgspec.structs.replace(member, state=RUNNING), member)

    def _failed_without_replacement(self, leaf: Group) -> list[Member]:
        """Return the members that failed in the last ten minutes and have no successor on a node yet, latest first."""
        missing = wanted_pods(leaf) - leaf.placed - leaf.counts[MemberState.ENDING] - self.replacements.held(leaf.key)
        since = self._cluster.now - RESERVED_SECONDS
        failed = [member for member in leaf.members.values() if member.state is MemberState.FAILED and member.node]
        failed = [member for member in failed if _failed_at(member.pod) > since]
        failed.sort(key=lambda member: (-_failed_at(member.pod), member.pod.metadata.name))
        return failed[: max(missing, 0)]

    def _forget(self, key: GroupKey) -> None:
        """End the effects of a policy: the group is gone, or its policy is empty."""
        self._times.pop(key, None)
        self._due.pop(key, None)
        self._health.followed.pop(key, None)
        if self._health.timed_out.pop(key, None) is not None:
            self._health.touch(key)
        if key in self._health.unready:
            self._health.set_unready(key, {})
        self.replacements.release(key, rolls=False)
        self._end_backoff(key)

    def _end_backoff(self, key: GroupKey) -> None:
        for root in [root for root, group in self._backoffs.items() if group == key]:
            del self._backoffs[root]
            if self._members.restart_after.pop(root, None) is not None:
                self._members.notes.roots_of_changed_members[root] = None

    def _at(self, key: GroupKey, when: float) -> None:
        self._due[key] = min(self._due.get(key, when), when)

    @property
    def remembered(self) -> int:
        """Return the number of groups with remembered times."""
        return len(self._times.keys() | self._due.keys() | self._backoffs.keys() | self._health.followed.keys())

    # ---- one group

    def _apply_policy(self, group: Group, changed: float) -> None:
        """Check a group. `changed`: when its members changed, if they did."""
        policy = group.policy
        if policy.ready_seconds and not group.composite:
            self._never_ready(group, self._times.get(group.key) or self._remember(group), changed)
        elif group.key in self._health.unready:
            self._health.set_unready(group.key, {})
        if policy.rescheduling != REPLACE:
            self.replacements.release(group.key, rolls=False)
        if policy.rescheduling != TERMINATE_ALL:
            self._end_backoff(group.key)
        times = self._times.get(group.key) or self._remember(group)
        state = self._health.state(group)
        self._limits(group, state, times)
        if policy.desired_count is not None and group.placed >= policy.desired_count:
            self._try_extras(group)
        if state.phase is not Phase.DEGRADED:
            times.degraded = None
        elif policy.rescheduling == TERMINATE_ALL and not self._ancestor_is_evicted(group):
            self._below_minimum(group, times)

    def _remember(self, group: Group) -> _Times:
        """Read the times written by an earlier scheduler process, and continue the backoff of a restart."""
        state = self._health.state(group)
        restarts = self._health.restarts.get(group.key, NO_RESTARTS)
        times = self._times[group.key] = _Times(ended=restarts.last)
        self._health.followed[group.key] = None
        if state.phase is Phase.DEGRADED and (since := self._health.unhealthy_since(group.key)) is not None:
            times.degraded = min(max(since, times.ended), self._cluster.now)
        if restarts.count and state.phase not in HEALTHY and group.policy.rescheduling == TERMINATE_ALL:
            self._back_off(group, restarts)
        return times

    def _try_extras(self, group: Group) -> None:
        """Retry members beyond `desired` periodically: other workloads may have stopped waiting."""
        root = self._forest.root_of(group.key)
        if group.counts[MemberState.PENDING] and root is not None:
            self._at(group.key, self._cluster.now + EXTRAS_SECONDS)
            if group.key in self._tried:
                self._members.notes.roots_of_changed_members[root] = None
            self._tried[group.key] = None
        else:
            self._tried.pop(group.key, None)

    def _limits(self, group: Group, state: GroupState, times: _Times) -> None:
        """Check membersSeconds and scheduleSeconds of a group that does not run."""
        policy, now, key = group.policy, self._cluster.now, group.key
        waits = state.phase
        if waits in (Phase.TIMED_OUT, Phase.PREEMPTED):
            waits = pending_phase(self._forest, group)
        passed = ""
        if waits is not Phase.SCHEDULING:
            times.scheduling = None
        if waits is Phase.WAITING and policy.members_seconds:
            since = min(self._created(group), default=None)
            if since is not None and now >= since + policy.members_seconds:
                passed = f"incomplete for {policy.members_seconds} seconds (timeouts.membersSeconds)"
            elif since is not None:
                self._at(key, since + policy.members_seconds)
        elif waits is Phase.SCHEDULING and policy.schedule_seconds:
            if times.scheduling is None:
                times.scheduling = max(self._created(group), default=now)
            if now >= times.scheduling + policy.schedule_seconds:
                passed = f"not placed for {policy.schedule_seconds} seconds (timeouts.scheduleSeconds)"
                times.scheduling = now
                self._requeue_last(key)
            elif key in self._health.timed_out:
                passed = self._health.timed_out[key]
            self._at(key, times.scheduling + policy.schedule_seconds)
        self._set_timed_out(group, passed)

    def _set_timed_out(self, group: Group, passed: str) -> None:
        known = self._health.timed_out.pop(group.key, "")
        if passed:
            self._health.timed_out[group.key] = passed
        if known != passed:
            self._health.touch(group.key)
            if passed and (known or not self._health.has_reason(group.key, Phase.TIMED_OUT)):
                self._event(group, "TimedOut", f"{group.key} is {passed}; it is tried again when it can be")

    def _created(self, group: Group) -> Iterator[float]:
        """Return when the pending pods of a group were created."""
        for leaf in self._forest.leaves(group.key):
            for member in leaf.members.values():
                if member.state is MemberState.PENDING:
                    yield _time(member.pod.metadata.creation_timestamp, self._cluster.now)

    def _requeue_last(self, key: GroupKey) -> None:
        """Clear the nominations and reservations of a group, and requeue it behind units of its priority."""
        root = self._forest.root_of(key)
        unit = self._members.root_of(key)
        if root is None or unit is None:
            return
        for leaf in self._forest.leaves(root):
            self._room.release(leaf.key)
            self.replacements.release(leaf.key)
        for record in list(unit.records.values()):
            if record.nominated:
                self._pods.nominate(record, "")
        unit.queued_at = self._cluster.now
        self._members.notes.roots_of_changed_members[root] = None

    # ---- loss

    def _ancestor_is_evicted(self, group: Group) -> bool:
        """Return True if a group above it is evicted as a whole instead."""
        return any(
            above.policy.rescheduling == TERMINATE_ALL and self._health.state(above).phase is Phase.DEGRADED
            for above in self._forest.above(group.key)
        )

    def _below_minimum(self, group: Group, times: _Times) -> None:
        now, policy, key = self._cluster.now, group.policy, group.key
        running = self._running(key)
        if not running:
            times.degraded = None  # the remaining members are terminating
            return
        if times.ending and (left := [member for member in running if member.pod.metadata.uid in times.ending]):
            self._evict_missed(key, times, left)
            return
        if times.degraded is None:
            lost = [loss.at for leaf in self._forest.leaves(key) for loss in self._health.losses.of(leaf.key)]
            times.degraded = max(min(lost, default=now), times.ended)
        before = self._health.restarts.get(key, NO_RESTARTS).count
        if before >= policy.max_restarts:
            return  # its state shows it
        if now < times.degraded + policy.grace_seconds:
            self._at(key, times.degraded + policy.grace_seconds)
            return
        times.degraded, times.ended = None, now
        times.ending = frozenset(member.pod.metadata.uid for member in running)
        restarts = self._health.restarts[key] = Restarts(before + 1, now)
        self._terminate(group, running, restarts.count)
        self._at(key, now + EVICTION_SECONDS)
        self._back_off(group, restarts)

    def _back_off(self, group: Group, restarts: Restarts) -> None:
        """Delay the tree of a group until the backoff of its last restart has passed."""
        until = self._backoff_end(group.policy, restarts)
        root = self._forest.root_of(group.key)
        if root is not None and until > self._cluster.now:
            self._members.restart_after[root], self._backoffs[root] = until, group.key
            self._at(group.key, until)

    def _backoff_end(self, policy: Policy, restarts: Restarts) -> float:
        """Return when the backoff of the last restart ends, in seconds; 0 if there was none."""
        if not restarts.count:
            return 0.0
        least = policy.backoff_seconds
        wait = min(least * 2.0 ** min(restarts.count - 1, MOST_DOUBLED), max(LONGEST_BACKOFF, least))
        return min(restarts.last, self._cluster.now) + wait  # a time in the future comes from a wrong clock

    def _running(self, key: GroupKey) -> list[Member]:
        members = (member for leaf in self._forest.leaves(key) for member in leaf.members.values())
        return [member for member in members if member.state is RUNNING]

    def _evict_missed(self, key: GroupKey, times: _Times, left: list[Member]) -> None:
        """Evict members that the first eviction missed. They do not count as another restart."""
        due = times.ended + EVICTION_SECONDS
        if self._cluster.now >= due:
            times.ended = self._cluster.now
            for member in left:
                self._evict(member, f"{key} is ended as a whole", key)
            due = times.ended + EVICTION_SECONDS
        self._at(key, due)

    def _terminate(self, group: Group, rest: list[Member], restart: int) -> None:
        """Evict the remaining members of a gang once, gracefully; its controller creates them again."""
        policy, key = group.policy, group.key
        self._health.touch(key)
        assert group.spec is not None
        why = f"{group.key} was below its minimum of {group.spec.minimum} for {policy.grace_seconds} seconds"
        count = f"restart {restart} of {policy.max_restarts}"
        for leaf in self._forest.leaves(key):
            for loss in self._health.unready.get(leaf.key, {}).values():
                self._health.losses.add(leaf.key, loss)  # an eviction by the policy is no new loss
        for member in rest:
            self._evict(member, f"{why}; {count}", key)
        self._event(group, GANG_TERMINATED, f"{why}: ended the other {plural(len(rest), 'pod')}; {count}")

    def _evict(self, member: Member, message: str, key: GroupKey, reason: str = GANG_TERMINATED) -> None:
        meta = member.pod.metadata
        self._emit(
            d.Evict,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            reason=reason,
            message=message,
            event_reason=reason,
            event_message=message[: d.MAX_EVENT_MESSAGE],
            preemptor=root_key(key),
        )

    def _replace(self, key: GroupKey, loss: Loss, pod: Pod) -> None:
        """Reserve room in the domain of the other members while the controller creates the replacement."""
        group = self._forest.group(key)
        if group is None or group.spec is None or self._rollouts.hand_over(group, loss, pod):
            return
        deleted = loss.cause in NOT_REPLACED
        if group.policy.rescheduling != REPLACE or (deleted and not group.placed):
            self._rollouts.keep(group, loss, pod)
        elif deleted and group.present >= group.spec.minimum:
            return
        elif loss.cause is not LossCause.PREEMPTED or self._forest.disruption_unit(key) is None:
            self.replacements.reserve(group, pod, loss.node, recreation_seconds(pod) if deleted else RESERVED_SECONDS)

    # ---- readiness

    def _never_ready(self, leaf: Group, times: _Times, changed: float) -> None:
        """Count bound members as lost that are not ready within the policy's limit.

        The times of objects count only when the process starts: the clocks of other machines may differ, and a
        member is evicted because of it.
        """
        limit, now = leaf.policy.ready_seconds, self._cluster.now
        late: dict[str, Loss] = {}
        known, times.unready = times.unready, {}
        for member in leaf.members.values():
            pod, lost_ready = member.pod, not_ready_since(member.pod)
            if member.state is not RUNNING or lost_ready is None:
                continue
            since = known.get(pod.metadata.uid)
            if since is None:
                bound = _time(bound_since(pod) or pod.status.start_time or pod.metadata.creation_timestamp, now)
                stored = min(max(bound, _time(lost_ready, bound)), changed)
                since = stored if changed <= self._began + START_SECONDS else changed
            times.unready[pod.metadata.uid] = since
            if now < since + limit:
                self._at(leaf.key, since + limit)
                continue
            cause = self._unready_cause(member)
            late[pod.metadata.uid] = Loss(pod.metadata.name, pod.metadata.uid, member.node, cause, "", now)
        if late:
            self._at(leaf.key, now + limit)
        if self._health.unready.get(leaf.key, {}).keys() != late.keys():
            self._health.set_unready(leaf.key, late)
        if late and leaf.policy.rescheduling == REPLACE:
            self._replace_unready(leaf, late, times)

    def _unready_cause(self, member: Member) -> LossCause:
        taints = self._cluster.evicting_taints(member.node)
        if taints is None or node_is_lost(taints):
            return LossCause.NODE_LOST
        return LossCause.NEVER_PULLED if _image_missing(member.pod) else LossCause.NEVER_READY

    def _replace_unready(self, leaf: Group, late: dict[str, Loss], times: _Times) -> None:
        """Evict members that never became ready, so that their controller replaces them.

        With backoff, and at most `maxRestarts` times: a member that cannot become ready would be evicted for ever.
        """
        new = [
            member
            for member in leaf.members.values()
            if member.pod.metadata.uid in late and member.pod.metadata.uid not in times.ending
        ]
        before = self._health.restarts.get(leaf.key, NO_RESTARTS)
        if not new or before.count >= leaf.policy.max_restarts:
            return  # its state shows it
        due = self._backoff_end(leaf.policy, before)
        if self._cluster.now < due:
            self._at(leaf.key, due)
            return
        self._health.restarts[leaf.key] = Restarts(before.count + 1, self._cluster.now)
        self._health.touch(leaf.key)
        times.ending = frozenset(member.pod.metadata.uid for member in new)
        count = f"replacement {before.count + 1} of {leaf.policy.max_restarts}"
        for member in new:
            loss = late[member.pod.metadata.uid]
            text = f"not ready for {leaf.policy.ready_seconds} seconds (timeouts.readySeconds): {loss.cause}; {count}"
            self._health.losses.add(leaf.key, loss)  # an eviction by the policy is no new loss
            self._replace(leaf.key, loss, member.pod)
            self._evict(member, text, leaf.key, NEVER_READY)

    def _event(self, group: Group, reason: str, message: str) -> None:
        if group.spec is None:
            return
        self._emit(
            d.RecordEvent,
            namespace=group.key.namespace,
            name=group.key.name.partition("/")[0],
            uid=group.spec.uid,
            kind=group.key.kind,
            type="Warning",
            reason=reason,
            action="Maintaining",
            message=message[: d.MAX_EVENT_MESSAGE],
        )


def _time(text: str | None, otherwise: float) -> float:
    found = seconds_of(text)
    return otherwise if found is None else found


def _failed_at(pod: Pod) -> float:
    """Return when a failed pod stopped being ready, in seconds; when it was bound if it never was."""
    return _time(not_ready_since(pod), _time(bound_since(pod), 0.0))


def _image_missing(pod: Pod) -> bool:
    waiting = [status.state.waiting for status in pod.status.container_statuses or ()]
    return any(each is not None and each.reason in _NO_IMAGE for each in waiting)
