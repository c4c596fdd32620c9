"""Reserve the room of a replica's old pods for its new ones while its controller rolls or restarts it.

A LeaderWorkerSet makes the PodGroup of the new revision before it deletes the replica of the old one: both have the
same owner and replica index. A JobSet that restarts keeps its PodGroups. Without the reservation, pods that wait with
equal priority would take the room between the two, and a full cluster would never be rolled.
"""

from __future__ import annotations

from phalanx.engine.groups.losses import Loss, LossCause
from phalanx.engine.scheduling.commit.replacements import RESERVED_SECONDS, Replacements
from phalanx.model.groups import Group, GroupForest
from phalanx.model.objects import Pod
from phalanx.model.objects.meta import OwnerReference

REPLICA_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
RESTARTS = "JobSet"  # kind of owners that delete all their pods and make them again
RESTART_SECONDS = 60.0  # for the pods of a restarted JobSet, which may also have failed for good
Replica = tuple[str, str, str, str]  # namespace, uid of the owner, index, and the part of a replica with subgroups


class Rollouts:
    def __init__(self, forest: GroupForest, replacements: Replacements) -> None:
        self._forest, self._replacements = forest, replacements
        self._by_replica: dict[Replica, list[Group]] | None = None  # all losses of a step share one index

    def begin(self) -> None:
        """Prepare for the losses of another step: groups may have changed."""
        self._by_replica = None

    def hand_over(self, group: Group, loss: Loss, lost: Pod) -> bool:
        """Reserve the room of a lost member for the group that follows its own; return True if there is one."""
        successor = self._successor(group) if loss.cause is not LossCause.PREEMPTED else None
        if successor is not None:
            self._replacements.reserve(successor, lost, loss.node, RESERVED_SECONDS, rolls=True)
        return successor is not None

    def keep(self, group: Group, loss: Loss, lost: Pod) -> None:
        """Reserve the room of a lost member for the next run of its own group, if its owner restarts its pods."""
        owner = _owner(group)
        if owner is None or owner.kind != RESTARTS or _is_going(group) or loss.cause is LossCause.PREEMPTED:
            return
        self._replacements.reserve(group, lost, loss.node, RESTART_SECONDS, rolls=True)

    def _successor(self, group: Group) -> Group | None:
        """Return the youngest group of the same replica that does not have its minimum."""
        replica = _replica(group)
        if replica is None:
            return None
        others = [
            other
            for other in self._index().get(replica, ())
            if other.key != group.key and not other.satisfied and not _is_going(other)
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


def _is_going(group: Group) -> bool:
    return group.source is not None and group.source.metadata.deletion_timestamp is not None
