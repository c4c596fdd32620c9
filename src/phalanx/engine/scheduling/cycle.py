"""One attempt of one root, from the popped root to a Bind decision or a verdict people can read.

The cycle owns no state of its own besides what is under way (`holding`): pods that are assumed but wait for Permit or
PreBind. Group roots are handed to `Groups.attempt`, which uses the same parts: `evaluation`, `commit`, `reject`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.engine import decisions as d
from phalanx.engine.framework import ClusterChange, Code, Emit, Status, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.profile import Profile
from phalanx.engine.scheduling.answers import Placed, PlacedAfter, Refused
from phalanx.engine.scheduling.attempt import Attempts
from phalanx.engine.scheduling.evictions import Evictions
from phalanx.engine.scheduling.pod_preemption import PodPreemption
from phalanx.engine.scheduling.pod_status import SCHEDULER_ERROR, UNSCHEDULABLE, PodStatus
from phalanx.engine.scheduling.queue import Queue
from phalanx.engine.scheduling.reservations import ask, reserve, unreserve
from phalanx.engine.scheduling.roots import Root
from phalanx.engine.scheduling.waiting import Waiting, twins_of
from phalanx.engine.state.records import PodRecord

if TYPE_CHECKING:
    from phalanx.engine.scheduling.group_roots import Groups


@dataclass(slots=True)
class Held:
    """An assumed pod that is not bound yet because a plugin says wait."""

    root: Root
    record: PodRecord
    row: int
    stage: str  # "permit" or "preBind"
    deadline: float


class Cycle:
    def __init__(
        self,
        state: ClusterState,
        queue: Queue,
        status: PodStatus,
        preemption: PodPreemption,
        evictions: Evictions,
        attempts: Attempts,
        emit: Emit,
    ) -> None:
        self.cluster = state
        self.columns = state.columns
        self.nominations = state.nominations
        self.profiles = state.profiles
        self.queue = queue
        self.status = status
        self.say = status.say
        self.nominate = status.nominate
        self.preemption = preemption
        self.evictions = evictions
        self.attempts = attempts
        self.emit = emit
        self.groups: Groups  # set by the scheduler before the first event: groups are made of cycles
        self.holding: dict[str, Held] = {}
        self.homeless: dict[str, dict[str, PodRecord]] = {}  # node name -> pods assumed or bound on a node not known
        self.root_of: dict[str, Root] = {}  # pod key -> root, of pods that are assumed (to come back after a failure)
        self.departed: list[Callable[[PodRecord], None]] = []  # told of every pod that is gone or finished
        self.waiting = Waiting(state, queue, preemption)

    @property
    def now(self) -> float:
        return self.cluster.now

    # ---- attempts

    def attempt(self, root: Root) -> None:
        """Work on a popped root. Never raises for a plugin's fault."""
        came_from = root.bucket
        root.bucket = None
        if root.kind == "Pod":
            self._attempt_pod(root, root.record)
        else:
            self.groups.attempt(root, self)
        self.queue.attempted(root, came_from)

    def _attempt_pod(self, root: Root, record: PodRecord) -> None:
        # Pods of a failed shape fail like their twin did, until something wakes the bucket.
        bucket = self.queue.sleeping(twins_of(record))
        if bucket is not None and not record.nominated:
            self.queue.join(root, bucket)
            self.say(record, UNSCHEDULABLE, bucket.message)
            return
        if root.key in self.evictions.plans:
            self.evictions.of(root.key)  # one that came to nothing is no reason to wait
        answer = self.attempts.pod(record, emit=self.emit)
        if isinstance(answer, Placed):
            self.commit(root, record, answer.seats[0][1])
        elif isinstance(answer, PlacedAfter):
            self.preemption.carry_out(record, answer)
            self._unschedulable(root, record, answer.refused, victims_go=True)
        elif answer.diagnosis is None:
            self.fail(root, record, answer.message)
        else:
            if answer.leaving:
                self.preemption.await_leaving(record, answer.leaving)
            self._unschedulable(root, record, answer, victims_go=answer.victims_go)

    # ---- success

    def commit(self, root: Root, record: PodRecord, row: int) -> bool:
        """Assume a pod on a row and set its binding in motion. False if Reserve or Permit refused (the pod is then
        back in the queue, with its verdict said)."""
        profile = self.profiles[record.scheduler_name]
        self.assume(root, record, row)
        if profile.reserve or profile.permit or profile.pre_bind:
            status = reserve(self.cluster, record, row)
            if status is None:
                status = self._advance(root, record, row, "permit", 0.0)
            if status is not None:
                self.refuse(root, record, status)
                return False
            return True
        status = self._bind(profile, record)
        if status is not None:
            self.refuse(root, record, status)
        return status is None

    def assume(self, root: Root, record: PodRecord, row: int) -> None:
        """Count a pod on a node although the API server does not know yet."""
        self.columns.place(record, row)
        record.node_name = self.columns.names[row]
        record.assumed = True
        promised = self.nominations.clear(record)
        if promised and promised != record.node_name:
            self.queue.wake(ClusterChange(Wake.NOMINATION, self.columns.row_of.get(promised, -1), record))
        self.waiting.placed(record.priority)
        self.queue.wake(ClusterChange(Wake.POD_PLACED, row, record))
        self.root_of[record.key] = root
        root.records.pop(record.key, None)
        if not root.records:
            self.queue.remove(root)
        self.groups.placed(record)

    def advance(self, root: Root, record: PodRecord, row: int) -> Status | None:
        """PreBind and Bind of a pod that is reserved and permitted; a Status if a plugin refused."""
        return self._advance(root, record, row, "preBind", 0.0)

    def _advance(self, root: Root, record: PodRecord, row: int, stage: str, deadline: float) -> Status | None:
        """Permit, then PreBind, then Bind, as far as plugins let it go; a Status if one refused."""
        profile = self.profiles[record.scheduler_name]
        if stage == "permit":
            for plugin in profile.permit:
                status = ask(plugin, plugin.permit, record, row)
                if status is None:
                    continue
                if status.code is Code.WAIT:
                    limit = deadline or self.now + (status.timeout or 900.0)
                    self.holding[record.key] = Held(root, record, row, "permit", limit)
                    return None
                return status
            deadline = 0.0
        for plugin in profile.pre_bind:
            status = ask(plugin, plugin.pre_bind, record, row, self.emit)
            if status is None:
                continue
            if status.code is Code.WAIT:
                limit = deadline or self.now + (status.timeout or 600.0)
                self.holding[record.key] = Held(root, record, row, "preBind", limit)
                return None
            return status
        self.holding.pop(record.key, None)
        return self._bind(profile, record)

    def _bind(self, profile: Profile, record: PodRecord) -> Status | None:
        for plugin in profile.bind:
            try:
                record.bind = int(plugin.bind(record, record.node_name, self.emit))
            except BaseException as problem:
                text = f"plugin {plugin.name}: {type(problem).__name__}: {problem}"
                return Status(Code.ERROR, (text,), plugin.name)
            if record.bind:
                return None
        return Status(Code.ERROR, ("no plugin of the profile binds pods",))

    def poll(self) -> None:
        """Ask again the plugins that said wait; give up on those that waited too long."""
        for held in list(self.holding.values()):
            if self.holding.get(held.record.key) is not held:
                continue
            if self.now >= held.deadline:
                word = "permit" if held.stage == "permit" else "volumes to be ready"
                status: Status | None = Status(Code.UNSCHEDULABLE, (f"timed out waiting for {word}",))
            else:
                status = self._advance(held.root, held.record, held.row, held.stage, held.deadline)
            if status is not None:
                self.refuse(held.root, held.record, status)

    def bound(self, record: PodRecord) -> None:
        """The API server acknowledged the Bind."""
        record.bind = 0
        self.groups.bound(record)
        self.emit(
            d.RecordEvent,
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            reason="Scheduled",
            action="Binding",
            message=f"Successfully assigned {record.key} to {record.node_name}",
        )
        profile = self.profiles.get(record.scheduler_name)
        for plugin in profile.post_bind if profile else ():
            try:
                plugin.post_bind(record, record.node_name)
            except BaseException:  # the pod is bound; nothing a plugin does now may change that
                continue

    # ---- failure

    def forget(self, record: PodRecord) -> None:
        """Undo an assumption; the pod is pending again but in no place of the queue yet."""
        row = record.row
        self.holding.pop(record.key, None)
        unreserve(self.cluster, record, row)
        self.unhouse(record)
        record.assumed = False
        record.bind = 0
        record.node_name = ""
        if row >= 0:
            self.columns.unplace(record)
            self.queue.wake(ClusterChange(Wake.POD_GONE, row, record))

    def unhouse(self, record: PodRecord) -> None:
        """A pod no longer waits for its node to appear."""
        pods = self.homeless.get(record.node_name)
        if pods is not None and pods.get(record.key) is record:
            del pods[record.key]
            if not pods:
                del self.homeless[record.node_name]

    def refuse(self, root: Root, record: PodRecord, status: Status) -> None:
        """Reserve, Permit or PreBind said no after the pod was assumed."""
        self.forget(record)
        self.root_of.pop(record.key, None)
        reason = UNSCHEDULABLE if status.rejected else SCHEDULER_ERROR
        self.say(record, reason, status.message)
        if self.groups.claims(record):
            self.groups.pending(record)
            return
        root.records[record.key] = record
        self.queue.back_off(root, self.now)

    def fail(self, root: Root, record: PodRecord, message: str) -> None:
        """An error, not a verdict: try again after a while."""
        self.say(record, SCHEDULER_ERROR, message)
        self.queue.back_off(root, self.now)

    def _unschedulable(self, root: Root, record: PodRecord, refused: Refused, *, victims_go: bool) -> None:
        """`victims_go`: room is being made for it."""
        diagnosis, profile = refused.diagnosis, self.profiles[record.scheduler_name]
        assert diagnosis is not None
        if refused.nominate is not None:
            self.nominate(record, refused.nominate)
        message = refused.message
        self.say(record, UNSCHEDULABLE, message)
        if victims_go and all(profile.plugins.get(name) in profile.row_filters for name in diagnosis.plugins):
            self.evictions.sleep(root, message)  # only the row itself decides about a row
            return
        shared = refused.alike and not record.nominated
        self.waiting.sleep(
            root, record, profile, diagnosis.plugins, message, self.now, shared=shared, asks=refused.asks
        )
