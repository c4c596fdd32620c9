"""Record members that a started group has lost, and why."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection

import msgspec

from phalanx.base.well_known import DISRUPTION_TARGET, NODE_LOST_TAINTS
from phalanx.model.groups import GroupKey, Member, MemberState
from phalanx.model.groups.group import PLACED
from phalanx.model.objects import Pod
from phalanx.model.objects.pod import KUBELET_REJECTIONS

REMEMBERED = 64  # losses kept per group
LOST = (MemberState.ENDING, MemberState.FAILED)  # states of members that had a node and still exist


class LossCause(enum.StrEnum):
    PREEMPTED = "preempted"
    NODE_LOST = "node lost"
    DRAINED = "drained"
    PRESSURE = "evicted by pressure"
    REJECTED = "rejected by the kubelet"
    NEVER_PULLED = "image never pulled"
    NEVER_READY = "never ready"
    FAILED = "failed"
    DELETED = "deleted"
    RELEASED = "ended with the gang"  # evicted by this scheduler together with its gang


NOT_REPLACED = (LossCause.DELETED, LossCause.RELEASED)  # the controller that deleted the pod may want fewer
# Kinds of owners that delete pods and create them again: their groups stay, and a loss is followed by replacements.
RESTARTS = ("JobSet", "LeaderWorkerSet", "StatefulSet")
# Reasons of DisruptionTarget written by policies: TerminateAll, Replace.
GANG_TERMINATED, NEVER_READY = "GangTerminated", "NeverReady"
# Reasons of the pod condition DisruptionTarget.
_TARGETS = {
    "PreemptionByScheduler": LossCause.PREEMPTED,
    "EvictionByEvictionAPI": LossCause.DRAINED,
    "DeletionByTaintManager": LossCause.NODE_LOST,
    "DeletionByPodGC": LossCause.NODE_LOST,
    "TerminationByKubelet": LossCause.PRESSURE,
    "GangIncomplete": LossCause.RELEASED,
    GANG_TERMINATED: LossCause.RELEASED,
    NEVER_READY: LossCause.NEVER_READY,
}


def node_is_lost(taints: Collection[str]) -> bool:
    return any(key in NODE_LOST_TAINTS for key in taints)


class Loss(msgspec.Struct, frozen=True):
    pod: str
    uid: str
    node: str
    cause: LossCause
    detail: str  # the preemptor or the reason
    at: float  # seconds

    @property
    def why(self) -> str:
        return f"{self.cause} {self.detail}".rstrip()


def cause_of(pod: Pod, taints: Collection[str] | None) -> tuple[LossCause, str]:
    """Return why a pod that had a node is gone or terminating. `taints`: keys of those of its node; None: no node."""
    for condition in pod.status.conditions or ():
        if condition.type == DISRUPTION_TARGET and condition.status == "True" and condition.reason in _TARGETS:
            cause = _TARGETS[condition.reason]
            if condition.reason == "DeletionByTaintManager" and taints and not node_is_lost(taints):
                return LossCause.DRAINED, f"by the taint {min(taints)}" if len(taints) == 1 else "by a taint"
            return cause, ""
    reason = pod.status.reason
    if reason == "Evicted":
        return LossCause.PRESSURE, ""
    if reason.startswith(KUBELET_REJECTIONS):
        return LossCause.REJECTED, reason
    if reason in ("NodeLost", "NodeShutdown", "Terminated") or (taints is None and pod.spec.node_name):
        return LossCause.NODE_LOST, f"({pod.spec.node_name})" if pod.spec.node_name else ""
    if pod.status.phase == "Failed":
        return LossCause.FAILED, f"({reason})" if reason else ""
    return LossCause.DELETED, ""


class Losses:
    """Losses by group, latest last. They are cleared when the group has its minimum again."""

    def __init__(self) -> None:
        self._lost: dict[GroupKey, dict[str, Loss]] = {}  # by uid of the pod
        self._noted: dict[str, None] = {}  # uids of terminating members
        self._preemptors: dict[str, str] = {}  # uid of an evicted pod -> description of the preemptor

    def preempted_by(self, uid: str, preemptor: str) -> None:
        self._preemptors[uid] = preemptor

    def note(
        self,
        leaf: GroupKey,
        old: Member | None,
        new: Member | None,
        now: float,
        taints_of: Callable[[str], Collection[str] | None],
    ) -> Loss | None:
        """Record a changed member (`new` None: deleted); return the loss if this is a new one.

        `taints_of`: returns the keys of the taints of a node, None if the node does not exist.
        """
        if old is None or (new is not None and new.state not in LOST):
            return None
        pod = (new or old).pod
        uid = pod.metadata.uid
        noted, preemptor = uid in self._noted, self._preemptors.get(uid)
        if new is None:
            self._noted.pop(uid, None)
            self._preemptors.pop(uid, None)
        if old.state not in (*PLACED, MemberState.ENDING):
            return None
        if new is not None:
            self._noted[uid] = None  # the pod still exists: that it fails or is deleted is not a second loss
        if uid in self._lost.get(leaf, {}) or (old.state is MemberState.ENDING and noted):
            return None
        cause, detail = cause_of(pod, taints_of(pod.spec.node_name))
        if preemptor is not None:
            cause, detail = LossCause.PREEMPTED, f"by {preemptor}"
        loss = Loss(pod.metadata.name, uid, old.node, cause, detail, now)
        self.add(leaf, loss)
        return loss

    def add(self, leaf: GroupKey, loss: Loss) -> None:
        known = self._lost.setdefault(leaf, {})
        known[loss.uid] = loss
        while len(known) > REMEMBERED:
            del known[next(iter(known))]

    def of(self, leaf: GroupKey) -> list[Loss]:
        return list(self._lost.get(leaf, {}).values())

    def forget(self, leaf: GroupKey) -> None:
        self._lost.pop(leaf, None)

    @property
    def remembered(self) -> int:
        """Return the number of terminating or evicted pods that are remembered besides the losses."""
        return len(self._noted) + len(self._preemptors)
