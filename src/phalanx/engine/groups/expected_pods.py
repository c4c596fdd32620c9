"""Pods that a group will have and that nobody has made yet (LeaderWorkerSet with LeaderReady, KEP-407).

The annotation `scheduling.phalanx.dev/pods-to-come` on a PodGroup says how many pods the whole has and what those look
like that come later. An attempt places them as well, beside what other groups that have started still lack; only the
pods that exist are bound. So no first pod starts where the others can never follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import KNOWN, Group, GroupKey, announced
from phalanx.model.objects import Pod

ExpectedPlacement = tuple[
    GroupKey, PodRecord, int
]  # a pod that an attempt placed beside those it was about: its group, it, row


class Whole(msgspec.Struct, frozen=True):
    """How many pods a group must have places for, and those of them that do not exist yet."""

    size: int
    records: list[PodRecord]


class ExpectedPods(msgspec.Struct, frozen=True):
    wholes: Mapping[GroupKey, Whole] = msgspec.field(default_factory=dict)
    beside: tuple[Group, ...] = ()  # groups of others that have started and are not complete


def said(group: Group) -> tuple[int, Pod] | None:
    return announced(group.source)


def whole_of(state: ClusterState, group: Group) -> Whole | None:
    """None: nobody said what is to come, or all of it is there."""
    found = said(group)
    members = [member for member in group.members.values() if member.state in KNOWN]
    if found is None or not members:
        return None
    size, template = found
    like = min(members, key=lambda member: member.pod.metadata.name).pod
    if like.spec.scheduler_name not in state.profiles or group.placed >= size:
        return None
    spec = msgspec.structs.replace(
        template.spec, scheduler_name=like.spec.scheduler_name, priority=like.spec.priority, node_name=""
    )
    records = []
    for number in range(size - len(members)):
        name = f"{group.key.name}/{number}"  # no pod can have such a name
        meta = msgspec.structs.replace(template.metadata, name=name, namespace=group.key.namespace, uid="")
        pod = Pod(metadata=meta, spec=spec)
        records.append(PodRecord(pod, state.shapes.of(pod), 0, state.now))
    return Whole(size, records)


def outstanding_pods(
    state: ClusterState, leaves: Iterable[Group], others: Iterable[Group], priority: int
) -> ExpectedPods | None:
    """What an attempt of these leaves has to place besides their pods; None: nothing. `others` have begun."""
    wholes = {leaf.key: whole for leaf in leaves if (whole := whole_of(state, leaf)) is not None}
    if not wholes:
        return None
    beside = []
    for other in others:
        # Who is less important has to take what is left.
        if other.key in wholes or other.spec is None or (other.spec.priority or 0) < priority:
            continue
        whole = whole_of(state, other)
        if whole is not None:
            wholes[other.key] = whole
            beside.append(other)
    return ExpectedPods(wholes, tuple(beside))
