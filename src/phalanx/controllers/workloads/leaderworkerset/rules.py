"""Which replicas run under rules that are no longer asked for. Pure functions.

Groups are immutable but for their counts, and a running replica is not restarted because its author asks for another
topology: it keeps the groups it has until it is made again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from phalanx.controllers.grouping.compare import Difference, difference
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.workloads.leaderworkerset import names as n
from phalanx.controllers.workloads.leaderworkerset.pods import is_grouped

Replica = tuple[str, str]  # index and revision, as in the labels of its pods and groups
Name = tuple[str, str]  # kind and name of an object


def replica_of(obj: Json) -> Replica:
    return n.label(obj, n.GROUP_INDEX), n.label(obj, n.REVISION)


def outdated(wanted: Grouping, known: Iterable[Json], pods: Iterable[Json]) -> set[Replica]:
    """Return replicas with pods whose groups differ from the wanted ones and cannot be updated in place."""
    used = {replica_of(pod) for pod in pods if is_grouped(pod)}
    here, there = _by_replica(known), _by_replica([*wanted.composites, *wanted.groups])
    found = set()
    for replica in used & here.keys():
        is_, should = here[replica], there.get(replica, {})
        same = is_.keys() == should.keys() and all(
            difference(is_[name], should[name]) is not Difference.SHAPE for name in is_
        )
        if not same:
            found.add(replica)
    return found


def without(wanted: Grouping, replicas: Collection[Replica]) -> Grouping:
    return replace(
        wanted,
        composites=[obj for obj in wanted.composites if replica_of(obj) not in replicas],
        groups=[obj for obj in wanted.groups if replica_of(obj) not in replicas],
    )


def names_of(known: Iterable[Json], replicas: Collection[Replica]) -> set[Name]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in known if replica_of(obj) in replicas}


def _by_replica(objects: Iterable[Json]) -> dict[Replica, dict[Name, Json]]:
    found: dict[Replica, dict[Name, Json]] = {}
    for obj in objects:
        if n.label(obj, n.REVISION):
            found.setdefault(replica_of(obj), {})[obj["kind"], obj["metadata"]["name"]] = obj
    return found
