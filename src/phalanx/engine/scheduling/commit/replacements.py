"""Reserve room for the replacement of a lost member until its controller has created it.

Used by the policy Replace, and for replicas that roll or restart (`Rollouts`). The room is on the node of the lost
member if possible, else on another node of the domain that the group shares. It is reserved like a nomination, against
pods of equal and lower priority. The next pod of the group with the same requests takes it over, else the next pod. An
unclaimed reservation expires. Until its pod is bound, a reservation is written to the status of the group, so that a
new scheduler process restores it before it tries any unit.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
import numpy as np

from phalanx.engine.framework.adapters import PluginFailure
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.losses import RESTARTS, Loss, LossCause
from phalanx.engine.groups.reserved_room import Reserved, ends, model_of, stored_room
from phalanx.engine.groups.restarts import seconds_of
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.pod_lifecycle import PodLifecycle
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.groups import Group, GroupForest, GroupKey, Member
from phalanx.model.groups.group import PLACED
from phalanx.model.objects import Pod
from phalanx.model.objects.meta import OwnerReference
from phalanx.model.objects.pod import bound_since

RESERVED_SECONDS = 600.0
UNCLAIMED = ("", "")
REPLICA_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
RESTART_SECONDS = 60.0  # for deleted pods after their grace period: their controller may also want fewer
Replica = tuple[str, str, str, str]  # namespace, uid of the owner, index, and subgroup


class Replacements:
    def __init__(self, state: ClusterState, members: Members, pods: PodLifecycle) -> None:
        self._cluster, self._members, self._pods = state, members, pods
        self._room = members.statuses.room
        self._reserved: list[Reserved] = []  # by expiry, earliest first
        self._known: dict[tuple[GroupKey, str], None] = {}  # leaf and lost pod
        self._number = 0

    def reserve(
        self, group: Group, lost: Pod, node: str, seconds: float = RESERVED_SECONDS, *, rolls: bool = False
    ) -> None:
        """Reserve the room of a lost member for a pod of the group. `node`: the node of the lost member."""
        if lost.spec.scheduler_name not in self._cluster.profiles or (group.key, lost.metadata.name) in self._known:
            return
        self._number += 1
        name = f"{group.key.name}/replacement-{self._number}"  # no pod can have this name
        meta = msgspec.structs.replace(lost.metadata, name=name, uid="", deletion_timestamp=None)
        spec = msgspec.structs.replace(lost.spec, node_name="")
        pod = Pod(metadata=meta, spec=spec)
        record = PodRecord(pod, self._cluster.shapes.of(pod), 0, self._cluster.now)
        chosen = self._node(group, record, node)
        if not chosen:
            return
        self._cluster.shapes.keep(record.shape)
        self._pods.nominate(record, chosen, write=False, wake=False)
        until = self._cluster.now + seconds
        self._reserved.append(Reserved(group.key, lost.metadata.name, record, until, chosen, rolls))
        self._reserved.sort(key=lambda each: each.until)
        self._known[group.key, lost.metadata.name] = None
        self._room.touch(group.key)

    def restore(self, group: Group) -> None:
        """Restore reservations of an earlier scheduler process that no pod has taken over."""
        stored = stored_room(group)
        if stored is None:
            return
        self._room.restored(group, stored)
        now, priority = self._cluster.now, self._members.forest.priority(group.key)
        there = {key.name: member for key, member in group.members.items() if member.state in PLACED}
        stored_names = {name for place in stored.places for name in place.pods}
        left = [(place, name) for place in stored.places for name in place.pods if name not in there]
        came = [each for name, each in there.items() if name not in stored_names and _bound_after(each, stored.at)]
        for node in [member.node for member in came][: len(left)]:
            del left[next((index for index, (place, _) in enumerate(left) if place.node == node), 0)]
        for place, name in left:
            seconds = ends(place, now) - now
            if seconds > 0 and not (place.rolls and group.satisfied):
                self.reserve(group, model_of(place, group, name, priority), place.node, seconds, rolls=place.rolls)

    def held(self, leaf: GroupKey) -> int:
        """Return the number of reservations for a group."""
        return sum(each.leaf == leaf for each in self._reserved)

    def _node(self, group: Group, record: PodRecord, before: str) -> str:
        columns = self._cluster.columns
        try:
            feasible = self._cluster.evaluation(record).feasible[: columns.n]
        except PluginFailure:
            return ""
        row = columns.row_of.get(before, -1)
        if row >= 0 and (feasible[row] or self._still_uses_room(row, before)):
            return before
        allowed = feasible & self._domain(group)
        rows = np.flatnonzero(allowed)
        return columns.names[int(rows[0])] if len(rows) else ""

    def _still_uses_room(self, row: int, node: str) -> bool:
        """Return True if the lost member still uses its room while it terminates."""
        found = self._cluster.columns.nodes[row]
        return found is not None and not found.spec.unschedulable and not found.spec.taints

    def _domain(self, group: Group) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return the nodes in the domain of the other members; all nodes if there is no topology constraint."""
        columns, spec = self._cluster.columns, group.spec
        key = spec.topology_key if spec is not None else None
        allowed = np.ones(columns.n, dtype=np.bool_)
        if key is None:
            return allowed
        labels = [node.metadata.labels.get(key) if node is not None else None for node in columns.nodes[: columns.n]]
        rows = [columns.row_of.get(member.node, -1) for member in group.members.values() if member.node]
        shared = {labels[row] for row in rows if row >= 0}
        return np.array([label is not None and label in shared for label in labels], dtype=np.bool_)

    # ---- events

    def settle(self, beyond: Container[str] = ()) -> None:
        """Assign reservations to created pods, and end expired reservations.

        `beyond`: keys of the placeholders for pods that a quota does not allow.
        """
        left = []
        for each in self._reserved:
            if each.claimed_by == UNCLAIMED and each.record.key in beyond:
                each.until = self._cluster.now
            if self._update(each):
                self._end(each)
            else:
                left.append(each)
        self._reserved = left
        self._room.notify(left, self._cluster.now)

    def _update(self, each: Reserved) -> bool:
        """Let an arrived pod claim a reservation; return True if the reservation has ended."""
        if each.claimed_by == UNCLAIMED:
            over = each.until <= self._cluster.now or self._has_expired(each)
            if over:
                self._withdraw(each)
            return over or not self._claim(each)
        record = self._cluster.records.get(each.claimed_by[0])
        if record is None or record.uid != each.claimed_by[1]:  # deleted: another pod will come
            each.claimed_by = UNCLAIMED
            self._cluster.shapes.keep(each.record.shape)
            self._pods.nominate(each.record, each.node, write=False, wake=False)
            return self._update(each)
        if record.state is PodState.PENDING and record.nominated == each.node and each.until > self._cluster.now:
            return False
        self._end_claimed(each)
        return True

    def _end_claimed(self, each: Reserved) -> None:
        """End a claimed reservation and the nomination of its pod, if that still waits."""
        record = self._cluster.records.get(each.claimed_by[0])
        self._pods.reserved.pop(each.claimed_by[0], None)
        if record is not None and record.state is PodState.PENDING and record.nominated == each.node:
            self._pods.nominate(record, "", write=False)

    def _end(self, each: Reserved) -> None:
        del self._known[each.leaf, each.lost]
        self._room.touch(each.leaf)

    def _has_expired(self, reserved: Reserved) -> bool:
        group = self._members.forest.group(reserved.leaf)
        if group is None or not reserved.rolls:
            return group is None
        going = group.source is not None and group.source.metadata.deletion_timestamp is not None
        return going or group.satisfied

    def _claim(self, reserved: Reserved) -> bool:
        """Assign a reservation to an arrived pod, if there is one; return False if its node is gone."""
        if reserved.node not in self._cluster.columns.row_of:
            self._withdraw(reserved)
            return False
        waiting = self._members.waiting_pods.get(reserved.leaf, {})
        asked = reserved.record.shape.requests
        for record in sorted(waiting.values(), key=lambda each: (each.shape.requests != asked, each.key)):
            if not record.nominated and record.state is PodState.PENDING:
                self._withdraw(reserved, wake=record.shape.requests != asked)  # others may use what it leaves
                self._pods.nominate(record, reserved.node, write=False, wake=False)
                self._pods.reserved[record.key] = None
                reserved.claimed_by = (record.key, record.uid)
                break
        return True

    def release(self, leaf: GroupKey, *, rolls: bool = True) -> None:
        """End the reservations for a group; `rolls`: including those for a rolled or restarted replica."""
        for each in [each for each in self._reserved if each.leaf == leaf and (rolls or not each.rolls)]:
            if each.claimed_by == UNCLAIMED:
                self._withdraw(each)
            else:
                self._end_claimed(each)
            self._reserved.remove(each)
            self._end(each)

    def _withdraw(self, reserved: Reserved, *, wake: bool = True) -> None:
        self._pods.nominate(reserved.record, "", write=False, wake=wake)
        self._cluster.shapes.drop(reserved.record.shape)

    def next_time(self) -> float | None:
        return self._reserved[0].until if self._reserved else None

    @property
    def of_deleted_pods(self) -> list[PodRecord]:
        """Return the placeholders whose lost pods do not exist, so that no quota counts those."""
        return [
            each.record
            for each in self._reserved
            if each.claimed_by == UNCLAIMED and f"{each.leaf.namespace}/{each.lost}" not in self._cluster.records
        ]

    @property
    def records(self) -> list[PodRecord]:
        return [each.record for each in self._reserved if each.claimed_by == UNCLAIMED]


class Rollouts:
    """Reserve the room of a replica's old pods for its new ones while its controller rolls or restarts it.

    A LeaderWorkerSet creates the PodGroup of the new revision before it deletes the replica of the old one: both have
    the same owner and replica index. A JobSet that restarts keeps its PodGroups. Without the reservation, waiting pods
    of equal priority would take the room in between, and a rollout in a full cluster would never finish.
    """

    def __init__(self, forest: GroupForest, replacements: Replacements) -> None:
        self._forest, self._replacements = forest, replacements
        self._by_replica: dict[Replica, list[Group]] | None = None  # all losses of a step share one index

    def begin(self) -> None:
        """Prepare for the losses of the next step: groups may have changed."""
        self._by_replica = None

    def hand_over(self, group: Group, loss: Loss, lost: Pod) -> bool:
        """Reserve the room of a lost member for the successor of its group; return True if there is one."""
        successor = self._successor(group) if loss.cause is not LossCause.PREEMPTED else None
        if successor is not None:
            self._replacements.reserve(successor, lost, loss.node, RESERVED_SECONDS, rolls=True)
        return successor is not None

    def keep(self, group: Group, loss: Loss, lost: Pod) -> None:
        """Reserve the room of a lost member for the next run of its own group, if its owner restarts its pods."""
        owner = _owner(group)
        if owner is None or owner.kind not in RESTARTS or _is_terminating(group) or loss.cause is LossCause.PREEMPTED:
            return
        self._replacements.reserve(group, lost, loss.node, recreation_seconds(lost), rolls=True)

    def _successor(self, group: Group) -> Group | None:
        """Return the youngest group of the same replica that is below its minimum."""
        replica = _replica(group)
        if replica is None:
            return None
        others = [
            other
            for other in self._index().get(replica, ())
            if other.key != group.key and not other.satisfied and not _is_terminating(other)
        ]
        return max(others, key=lambda other: (_created(other), other.key), default=None)

    def _index(self) -> dict[Replica, list[Group]]:
        if self._by_replica is None:
            self._by_replica = {}
            for leaf in (leaf for root in self._forest.roots() for leaf in self._forest.leaves(root)):
                replica = _replica(leaf)
                if replica is not None:
                    self._by_replica.setdefault(replica, []).append(leaf)
        return self._by_replica


def recreation_seconds(lost: Pod) -> float:
    """Return how long room is reserved for the successor of a deleted pod: some controllers wait until it is gone."""
    return RESTART_SECONDS + min(lost.metadata.deletion_grace_period_seconds or 0, RESERVED_SECONDS - RESTART_SECONDS)


def _bound_after(member: Member, when: float) -> bool:
    since = seconds_of(bound_since(member.pod)) if member.state in PLACED else None
    return since is not None and since > when


def _replica(group: Group) -> Replica | None:
    owner, source = _owner(group), group.source
    index = source.metadata.labels.get(REPLICA_INDEX) if source is not None and source.metadata.labels else None
    if owner is None or index is None or group.spec is None:
        return None
    parent = group.spec.parent
    part = group.key.name.removeprefix(parent.name) if parent is not None else ""
    return (group.key.namespace, owner.uid, index, part)


def _owner(group: Group) -> OwnerReference | None:
    references = group.source.metadata.owner_references if group.source is not None else ()
    return next((each for each in references if each.controller), None)


def _created(group: Group) -> str:
    return (group.source.metadata.creation_timestamp or "") if group.source is not None else ""


def _is_terminating(group: Group) -> bool:
    return group.source is not None and group.source.metadata.deletion_timestamp is not None
