"""Requeue a whole gang when a kubelet rejects one of its pods.

A scheduler that shares nodes with others sees their binds after a delay. Both may use the same free capacity; the
kubelet then rejects the later pod (Failed, reason OutOfcpu). If that leaves a gang below its minimum, its other pods
are evicted at once, and it is placed again after a jitter, so that two gangs do not collide repeatedly. A gang that was
complete before is left alone: its policy handles later losses. A new process, which did not bind the gang itself, reads
from the pods whether they were bound together.

The rejected pod gets the condition DisruptionTarget. The Job controller counts a failed pod a second after it has seen
it, so that a `podFailurePolicy` which ignores this condition spares the Job's backoffLimit.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from phalanx.base.clock import parse_rfc3339
from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.gang_commits import release
from phalanx.engine.scheduling.lifecycle.members import Members, root_key
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.groups import Group, GroupKey, MemberState, pod_key
from phalanx.model.groups.keys import BOUND_IN_GROUP
from phalanx.model.objects import Pod
from phalanx.model.objects.pod import bound_since

REJECTION_SECONDS = 60.0  # seconds after the bind of a gang in which a rejection requeues all of it
BIND_SPAN_SECONDS = 10.0  # seconds between binds of one gang by an earlier process
SHORTEST, LONGEST = 0.1, 10.0  # seconds until a requeued gang is placed again: before the jitter, and at most
ON_NODE = (PodState.BINDING, PodState.CONFIRMED, PodState.BOUND)


class _BoundTogether(msgspec.Struct):
    pods: set[str]  # uids
    at: float


class Rejections:
    def __init__(self, state: ClusterState, members: Members, emit: Emit) -> None:
        self._cluster, self._forest = state, state.forest
        self._members, self._emit = members, emit
        self._commits: OrderedDict[GroupKey, _BoundTogether] = (
            OrderedDict()
        )  # root -> pods bound together, oldest first
        self._rejected: list[Pod] = []  # since the last step
        self._requeues: dict[GroupKey, int] = {}  # root -> number of requeues in a row
        self._held: dict[GroupKey, float] = {}  # root -> when it is placed again
        self.returned: set[str] = set()  # keys of units that were requeued and are not placed again

    def committed(self, group: Group, records: Iterable[PodRecord], *, whole: bool) -> None:
        """Record pods of a tree that are about to be bound. `whole`: none of its pods had a node before."""
        now, root = self._cluster.now, group.key
        while self._commits and now - next(iter(self._commits.values())).at > REJECTION_SECONDS:
            self._requeues.pop(self._commits.popitem(last=False)[0], None)
        self.returned.discard(root_key(root))
        if whole:
            self._commits.pop(root, None)
            self._commits[root] = _BoundTogether({record.uid for record in records}, now)

    def rejected(self, pod: Pod) -> None:
        """Record that a kubelet rejected a pod on its node."""
        self._rejected.append(pod)

    def next_time(self) -> float | None:
        """Return when `step` has something to do."""
        if self._rejected:
            return self._cluster.now
        return min(self._held.values(), default=None)

    def step(self) -> None:
        """Requeue gangs that a rejection left incomplete."""
        now = self._cluster.now
        for returned in [root for root, until in self._held.items() if until <= now]:
            del self._held[returned]
        rejected, self._rejected = self._rejected, []
        for pod in rejected:
            self._mark_rejected_by_node(pod)
            leaf = self._forest.leaf_of(pod_key(pod))
            root = self._forest.root_of(leaf) if leaf is not None else None
            group = self._forest.group(root) if root is not None else None
            if root is None or group is None or group.spec is None or group.satisfied:
                continue
            commit = self._commits.get(root) or self._of_earlier_process(root, pod)
            if commit is not None and pod.metadata.uid in commit.pods:
                self._requeue(root, group, pod, commit)

    def _mark_rejected_by_node(self, pod: Pod) -> None:
        """Write that the pod did not fail by itself, unless that is known or the rejection is old."""
        at = _bound_at(pod)
        if at is not None and self._cluster.now - at > REJECTION_SECONDS:
            return
        if pod.spec.scheduler_name not in self._cluster.profiles or any(
            each.type == DISRUPTION_TARGET for each in pod.status.conditions or ()
        ):
            return
        self._emit(
            d.SetPodCondition,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.metadata.uid,
            type=DISRUPTION_TARGET,
            status="True",
            reason="RejectedByNode",
            message=f"node {pod.spec.node_name} rejected the pod ({pod.status.reason}): its room was taken meanwhile",
        )

    def _of_earlier_process(self, root: GroupKey, rejected: Pod) -> _BoundTogether | None:
        """Return the pods that an earlier process bound together with a rejected pod.

        None: there are none, or a member was bound at another time or by another scheduler.
        """
        at = _bound_at(rejected)
        if root_key(root) in self.returned or at is None or self._cluster.now - at > REJECTION_SECONDS:
            return None
        pods: set[str] = set()
        for leaf in self._forest.leaves(root):
            for member in leaf.members.values():
                pod = member.pod
                if member.state is MemberState.RUNNING or pod.metadata.uid == rejected.metadata.uid:
                    bound = _bound_at(pod) if self._bound_by_us(pod, leaf) else None
                    if bound is None or abs(bound - at) > BIND_SPAN_SECONDS:
                        return None
                    pods.add(pod.metadata.uid)
        return _BoundTogether(pods, at)

    def _bound_by_us(self, pod: Pod, leaf: Group) -> bool:
        marked = leaf.spec is not None and pod.metadata.annotations.get(BOUND_IN_GROUP) == leaf.spec.uid
        return marked and pod.spec.scheduler_name in self._cluster.profiles

    def _requeue(self, root: GroupKey, group: Group, rejected: Pod, commit: _BoundTogether) -> None:
        self._commits.pop(root, None)
        why = f"node {rejected.spec.node_name} rejected {rejected.metadata.name} ({rejected.status.reason})"
        for leaf in self._forest.leaves(root):
            for key, member in leaf.members.items():
                record = self._cluster.records.get(str(key))
                if record is None or record.uid not in commit.pods or record.state not in ON_NODE:
                    continue
                if not record.terminating:
                    release(self._emit, member.pod.metadata, member.node, root_key(root), why)
        count = self._requeues[root] = self._requeues.get(root, 0) + 1
        assert group.spec is not None
        # The jitter comes from the uid: the same events must give the same decisions.
        jitter = zlib.crc32(f"{group.spec.uid}/{count}".encode()) / 2**32
        until = self._cluster.now + min(LONGEST, SHORTEST * 2.0**count) * (0.5 + jitter)
        self._members.restart_after[root] = self._held[root] = until
        self._members.notes.roots_of_changed_members[root] = None
        self.returned.add(root_key(root))


def _bound_at(pod: Pod) -> float | None:
    since = bound_since(pod)
    return parse_rfc3339(since) if since is not None else None
