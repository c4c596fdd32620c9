"""Pods that a group will have and that nobody has made yet (LeaderWorkerSet with LeaderReady, KEP-407).

The annotation `scheduling.phalanx.dev/pods-to-come` on a PodGroup says how many pods the whole has and what those look
like that come later. An attempt places them as well, beside what other groups that have started still lack; only the
pods that exist are bound. So no first pod starts where the others can never follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import KNOWN, Group, GroupKey
from phalanx.model.objects import Pod

TO_COME = "scheduling.phalanx.dev/pods-to-come"
MOST = 10_000  # pods of one group


@dataclass(frozen=True, slots=True)
class Whole:
    """How many pods a group must have places for, and those of them that do not exist yet."""

    size: int
    records: list[PodRecord]


@dataclass(frozen=True, slots=True)
class Coming:
    wholes: Mapping[GroupKey, Whole] = field(default_factory=dict)
    beside: tuple[Group, ...] = ()  # groups of others that have started and are not complete


@lru_cache(maxsize=1024)  # replicas repeat each other's words
def _parsed(text: str) -> tuple[int, Pod] | None:
    """Nothing where the words make no sense: the group is then placed as it is."""
    try:
        found = json.loads(text)
        size, template = int(found["size"]), msgspec.convert(found["template"], Pod)
    except (ValueError, TypeError, KeyError, msgspec.ValidationError):
        return None
    return (size, template) if 0 < size <= MOST else None


def said(group: Group) -> tuple[int, Pod] | None:
    text = group.source.metadata.annotations.get(TO_COME) if group.source is not None else None
    return _parsed(text) if text else None


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


def coming(state: ClusterState, leaves: Iterable[Group], others: Iterable[Group], priority: int) -> Coming | None:
    """What an attempt of these leaves has to place besides their pods; None: nothing."""
    wholes = {leaf.key: whole for leaf in leaves if (whole := whole_of(state, leaf)) is not None}
    if not wholes:
        return None
    beside = []
    for other in others:
        # Who is less important has to take what is left.
        if other.key in wholes or not other.placed or other.spec is None or (other.spec.priority or 0) < priority:
            continue
        whole = whole_of(state, other)
        if whole is not None:
            wholes[other.key] = whole
            beside.append(other)
    return Coming(wholes, tuple(beside))
