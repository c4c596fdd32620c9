"""Choose the group of a set's next pods while an earlier group still has running pods.

A basic group delays no pod. One that cannot take new pods (it is terminating, or its policy or priority is outdated)
keeps its pods and is deleted with the last one; its replacement has another name and is created at once. A gang is
replaced only when the last pod has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from phalanx.controllers.grouping.compare import Difference, difference
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.grouping.names import SUBDOMAIN, fitting

RECENT = 16  # groups of a set at the same time; more than rollouts overlap
Known = Callable[[str], Json | None]  # PodGroup of a name
PriorityOf = Callable[[str], int | None]  # of a class, or of pods without one; None: the class does not exist


def with_successor(
    grouping: Grouping,
    uid: str,
    known: Known,
    priority_of: PriorityOf,
    longest: int = SUBDOMAIN,
    promised: Collection[str] = (),
) -> Grouping:
    """Return the grouping with the first usable group, or a new one. longest: characters of its name.

    promised: groups named by pods without a node. One of them that was deleted is created again first: no other
    controller creates it.
    """
    if len(grouping.groups) != 1 or "gang" in grouping.groups[0]["spec"]["schedulingPolicy"]:
        return grouping
    wanted = grouping.groups[0]
    base = wanted["metadata"]["name"]
    priority = priority_of(str(wanted["spec"].get("priorityClassName") or ""))
    names = [fitting(f"{base}-{number}", longest) if number else base for number in range(RECENT)] if promised else ()
    for name in names:
        if name in promised and known(name) is None:
            return _named(grouping, name)
    number, free = 0, ""
    while True:
        name = fitting(f"{base}-{number}", longest) if number else base
        found = known(name)
        if found is None:
            free = free or name
            if number:
                return _named(grouping, free)
        elif not _mine(found, uid) or _usable(found, wanted, priority):
            return _named(grouping, name)  # a name conflict with a foreign object is reported by the caller
        number += 1


def _mine(found: Json, uid: str) -> bool:
    return any(ref.get("controller") and ref["uid"] == uid for ref in found["metadata"].get("ownerReferences") or ())


def _usable(found: Json, wanted: Json, priority: int | None) -> bool:
    if "deletionTimestamp" in found["metadata"] or difference(found, wanted) is Difference.SHAPE:
        return False
    # A new group would have this priority; if the value differs, the next one would be no better.
    return priority is None or int(found["spec"].get("priority") or 0) == priority


def _named(grouping: Grouping, name: str) -> Grouping:
    (group,) = grouping.groups
    if group["metadata"]["name"] == name:
        return grouping
    groups = [{**group, "metadata": {**group["metadata"], "name": name}}]
    links = {part: replace(link, pod_group=name) for part, link in grouping.links.items()}
    return replace(grouping, groups=groups, links=links)
