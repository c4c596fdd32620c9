"""Place pods that a group will have but that do not exist yet (LeaderWorkerSet LeaderReady, KEP-407).

The annotation `scheduling.phalanx.dev/pods-to-come` on a PodGroup gives the number of pods of the whole group and the
template of the later ones. An attempt places these expected pods too, together with the expected pods of other started
groups; only existing pods are bound. So a first pod never starts without room for the others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec
import numpy as np

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.quota_room import allowed
from phalanx.engine.state.columns import PODS
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import KNOWN, POD_GROUP, Group, GroupKey, announced
from phalanx.model.objects import Pod

ExpectedPlacement = tuple[GroupKey, PodRecord, int]  # an expected pod that an attempt placed: group, record, row


class ExpectedGroup(msgspec.Struct, frozen=True):
    """Hold how many pods a group needs nodes for, and records of those that do not exist yet."""

    size: int
    records: list[PodRecord]


class ExpectedPods(msgspec.Struct, frozen=True):
    wholes: Mapping[GroupKey, ExpectedGroup] = msgspec.field(default_factory=dict)
    others: tuple[Group, ...] = ()  # other groups that have started and are incomplete


def announced_by(group: Group) -> tuple[int, Pod] | None:
    return announced(group.source)


def is_expected(record: PodRecord) -> bool:
    """Return whether the record stands for a pod that does not exist yet: names of real pods have no slash."""
    return "/" in record.name


def owner_of(record: PodRecord) -> GroupKey:
    """Return the group of an expected pod."""
    return GroupKey(POD_GROUP, record.namespace, record.name.rpartition("/")[0])


def is_reserved_for(record: PodRecord, groups: Container[GroupKey]) -> bool:
    """Return whether the record is an expected pod of one of these groups, which may use that room."""
    return is_expected(record) and owner_of(record) in groups


def _free_slots(state: ClusterState) -> int:
    """Return how many more pods the nodes can take by pod count; an attempt never needs more."""
    columns = state.columns
    free = columns.alloc[PODS, : columns.n] - columns.used[PODS, : columns.n]
    return int(np.maximum(free, 0.0)[columns.alive[: columns.n]].sum())


def whole_of(state: ClusterState, group: Group) -> ExpectedGroup | None:
    """Return the expected pods of a group; None without the annotation or if all its pods are placed."""
    found = announced_by(group)
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
    meta = msgspec.structs.replace(template.metadata, name=f"{group.key.name}/", namespace=group.key.namespace, uid="")
    missing = min(size - len(members), _free_slots(state) + 1)  # one more than fits is sufficient
    like_those = Pod(metadata=meta, spec=spec)
    reserved = (each for _, each in state.nominations.all() if is_expected(each) and owner_of(each) != group.key)
    here = (each for each in reserved if each.namespace == group.key.namespace)
    missing = allowed(state, group.key.namespace, like_those, missing, here)
    shape = state.shapes.of(like_those)  # one shape for all expected pods
    records = []
    for number in range(missing):
        own = msgspec.structs.replace(meta, name=f"{meta.name}{number}")  # no real pod can have this name
        records.append(PodRecord(Pod(metadata=own, spec=spec), shape, 0, state.now))
    size = min(size, len(members) + missing)
    return ExpectedGroup(size, records)


def outstanding_pods(
    state: ClusterState, leaves: Iterable[Group], others: Iterable[Group], priority: int
) -> ExpectedPods | None:
    """Return the expected pods that an attempt of these leaves must place too; None: none. `others`: started groups."""
    wholes = {leaf.key: whole for leaf in leaves if (whole := whole_of(state, leaf)) is not None}
    if not wholes:
        return None
    incomplete = []
    left = _free_slots(state) + 1 - sum(len(whole.records) for whole in wholes.values())
    for other in others:
        # Groups of lower priority do not reserve room against this one.
        if other.key in wholes or other.spec is None or (other.spec.priority or 0) < priority:
            continue
        whole = whole_of(state, other)
        if whole is not None and len(whole.records) <= left:  # larger groups cannot be completed
            left -= len(whole.records)
            wholes[other.key] = whole
            incomplete.append(other)
    return ExpectedPods(wholes, tuple(incomplete))
