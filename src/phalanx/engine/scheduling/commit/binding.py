"""Bind pods: Reserve, Permit, PreBind, Bind and its outcome; undo a rejection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from phalanx.base.well_known import SCHEDULER_ERROR, UNSCHEDULABLE
from phalanx.engine import decisions as d
from phalanx.engine.framework import Code, Emit, Status
from phalanx.engine.framework.adapters import failure_of
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.profile import Profile
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.scheduling.attempt.answers import Placed
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import LATER, OnHold, PodLifecycle
from phalanx.engine.scheduling.lifecycle.pod_status import PodStatusWriter
from phalanx.engine.scheduling.lifecycle.reserve_permit import ask
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord

PERMIT, PRE_BIND = "permit", "preBind"
PERMIT_TIMEOUT, PRE_BIND_TIMEOUT = 900.0, 600.0  # seconds, if the plugin names none
ANNOUNCED_AFTER = 0.1  # seconds of waiting until the node is written for other schedulers: most volumes are faster
NO_LONGER_WHOLE = "others of its gang are gone or could not be bound: pods without a Bind are tried again with them"


class Binding:
    def __init__(
        self,
        state: ClusterState,
        pods: PodLifecycle,
        members: Members,
        status: PodStatusWriter,
        emit: Emit,
        apply_later_version: Callable[[PodRecord], None],
    ) -> None:
        """`apply_later_version`: apply changes of a pod that arrived while it was assumed."""
        self._cluster = state
        self._pod_lifecycle = pods
        self._unit_lifecycle = pods.units
        self._members = members
        self._status = status
        self._emit = emit
        self._apply_later_version = apply_later_version
        # For metrics: seconds and result of the waits that ended, for Permit and for PreBind.
        self.permit_waits: deque[tuple[float, str]] = deque(maxlen=1000)
        self.pre_bind_waits: deque[tuple[float, str, PodRecord]] = deque(maxlen=1000)

    def commit(self, unit: SchedulingUnit, placed: Placed) -> None:
        """Assume a single pod for which Reserve and Permit have passed, and bind it or let it wait."""
        (record, _), *_ = placed.assignment
        self._pod_lifecycle.assume(unit, placed.assignment)
        if placed.wait is not None:
            deadline = self._cluster.now + (placed.wait.timeout or PERMIT_TIMEOUT)
            self._pod_lifecycle.hold(unit, record, PERMIT, deadline, placed.wait.message)
            return
        status = self._advance(unit, record, PRE_BIND, 0.0)
        if status is not None:
            self.refuse(unit, record, status)

    def bind_gang(self, unit: SchedulingUnit, assignment: Assignment) -> None:
        """Run PreBind and Bind of a gang that is assumed, reserved and permitted.

        A large gang is bound in several steps: all its pods have a node already, and Binds are answered one by one.
        """
        most = self._cluster.settings.search_slice or len(assignment)
        for record, _ in assignment[:most]:
            status = self._advance(unit, record, PRE_BIND, 0.0)
            if status is not None:
                self.refuse(unit, record, status)
        for record, _ in assignment[most:]:
            self._pod_lifecycle.queue_bind(unit, record)

    def _advance(self, unit: SchedulingUnit, record: PodRecord, stage: str, deadline: float) -> Status | None:
        """Run Permit, PreBind and Bind as far as plugins allow; return the Status of a plugin that rejects."""
        profile, now, row = self._cluster.profiles[record.scheduler_name], self._cluster.now, record.row
        if stage == PERMIT:
            for plugin in profile.for_shape(record.shape).permit:
                if (status := ask(plugin, plugin.permit, record, row)) is not None:
                    until = deadline or now + (status.timeout or PERMIT_TIMEOUT)
                    return self._hold_or_reject(unit, record, PERMIT, status, until)
            deadline = 0.0
        for plugin in profile.for_shape(record.shape).pre_bind:
            if (status := ask(plugin, plugin.pre_bind, record, row, self._emit)) is not None:
                until = deadline or now + (status.timeout or PRE_BIND_TIMEOUT)
                return self._hold_or_reject(unit, record, PRE_BIND, status, until)
        return self._bind(profile, record)

    def _hold_or_reject(
        self, unit: SchedulingUnit, record: PodRecord, stage: str, status: Status, until: float
    ) -> Status | None:
        """Let the pod wait if the plugin says so, else return the status."""
        if status.code is not Code.WAIT:
            return status
        self._pod_lifecycle.hold(unit, record, stage, min(until, status.until), status.message)
        return None

    def _bind(self, profile: Profile, record: PodRecord) -> Status | None:
        for plugin in profile.bind:
            try:
                decision = int(plugin.bind(record, record.node_name, self._emit))
            except BaseException as problem:
                text = str(failure_of(plugin, problem))
                return Status(Code.ERROR, (text,), plugin.name)
            if decision:
                self._pod_lifecycle.binding(record, decision)
                return None
        return Status(Code.ERROR, ("no plugin of the profile binds pods",))

    def poll(self) -> int:
        """Call waiting plugins again, reject pods that waited too long, and continue large gangs.

        Return the number of pods of large gangs that were bound.
        """
        most, turns = self._cluster.settings.search_slice, 0
        for held in list(self._pod_lifecycle.holding.values()):
            if held.stage == LATER:
                if turns >= most:
                    continue
                turns += 1
            if self._pod_lifecycle.holding.get(held.record.key) is held:
                status = self._continue(held)
                self._note_wait(held, status)
                if status is not None:
                    self.refuse(held.unit, held.record, status)
                elif self._needs_message(held) and self._cluster.now >= held.since + ANNOUNCED_AFTER:
                    self._pod_lifecycle.announce(held.record)
        return turns

    def _note_wait(self, held: OnHold, status: Status | None) -> None:
        """Record the time a pod waited for Permit or PreBind when the wait ends."""
        still, waited = self._pod_lifecycle.holding.get(held.record.key), self._cluster.now - held.since
        if status is None and still is not None and still.stage == held.stage:
            return
        if held.stage == PERMIT:
            result = "Success" if status is None else "Unschedulable" if status.rejected else "Error"
            self.permit_waits.append((waited, result))
        elif held.stage == PRE_BIND:
            result = "success" if status is None else "timeout" if self._cluster.now >= held.deadline else "failure"
            self.pre_bind_waits.append((waited, result, held.record))

    def _needs_message(self, held: OnHold) -> bool:
        pods, key = self._pod_lifecycle, held.record.key
        return held.stage != LATER and key not in pods.announced and key in pods.holding

    def next_time(self) -> float | None:
        """Return when `poll` has something to do even if no plugin becomes ready."""
        times = (held.since + ANNOUNCED_AFTER if self._needs_message(held) else held.deadline
                 for held in self._pod_lifecycle.holding.values())  # fmt: skip
        return min(times, default=None)

    @property
    def all_announced(self) -> bool:
        """Return True if the node of every pod that waits for a plugin is written for other schedulers."""
        return not any(map(self._needs_message, self._pod_lifecycle.holding.values()))

    def _continue(self, held: OnHold) -> Status | None:
        record = held.record
        if record.row < 0:
            return Status(Code.UNSCHEDULABLE, (f"node {record.node_name} is gone",))
        if held.stage == LATER:
            if not self._members.gang_is_satisfied(record):
                return Status(Code.UNSCHEDULABLE, (NO_LONGER_WHOLE,))
            return self._advance(held.unit, record, PRE_BIND, 0.0)
        if self._cluster.now >= held.deadline:
            return Status(Code.UNSCHEDULABLE, (f"timed out {held.words}",))
        return self._advance(held.unit, record, held.stage, held.deadline)

    def confirmed(self, record: PodRecord) -> None:
        """Handle a Bind that the API server has acknowledged."""
        self._pod_lifecycle.confirm(record)
        self._emit(
            d.RecordEvent,
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            reason="Scheduled",
            action="Binding",
            message=f"Successfully assigned {record.key} to {record.node_name}",
        )
        profile = self._cluster.profiles.get(record.scheduler_name)
        for plugin in profile.post_bind if profile else ():
            try:
                plugin.post_bind(record, record.node_name)
            except BaseException:  # the pod is bound: a failing plugin must not change that
                continue

    def refuse(self, unit: SchedulingUnit, record: PodRecord, status: Status) -> None:
        """Handle a rejection by Reserve, Permit or PreBind after the pod was assumed."""
        self._pod_lifecycle.roll_back(record, status.message)
        self._pod_lifecycle.retract(record)
        self._status.report(record, UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR, status.message)
        self._retry(unit, record)

    def failed(self, record: PodRecord, message: str) -> None:
        """Handle a failed Bind. `message`: for users, if a retry alone will not help."""
        unit = self._pod_lifecycle.roll_back(record, message or "the bind failed")
        self._pod_lifecycle.retract(record)
        if message:
            self._status.report(record, SCHEDULER_ERROR, message)
        self._retry(unit, record)

    def _retry(self, unit: SchedulingUnit | None, record: PodRecord) -> None:
        """Retry after a backoff; a member is retried with its present group, which may have changed."""
        if self._members.claims(record):
            self._members.pending(record, failed=True)
        else:
            if unit is None or unit.kind != "Pod":
                unit = SchedulingUnit("Pod", f"pod/{record.key}", record.priority, record.created, record.order)
            unit.records[record.key] = record
            self._unit_lifecycle.back_off(unit)
        self._apply_later_version(record)
