"""Choose the group that a set's next pods join, while an earlier group still has running pods.

A basic group delays no pod. One that cannot take new pods (it is being deleted, or its policy or priority is no longer
the requested one) keeps its pods and is deleted with the last of them; its replacement has another name and is created
at once. A gang is one group: its replacement is created only when the last pod has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from phalanx.controllers.grouping.compare import Difference, difference
from phalanx.controllers.grouping.core import Grouping, Json
from phalanx.controllers.grouping.names import SUBDOMAIN, fitting

RECENT = 16  # groups of a set at the same time; many more than roll-outs overlap
Known = Callable[[str], Json | None]  # PodGroup of a name
PriorityOf = Callable[[str], int | None]  # of a class, or without one; None: the class does not exist


def with_successor(
    grouping: Grouping,
    uid: str,
    known: Known,
    priority_of: PriorityOf,
    longest: int = SUBDOMAIN,
    promised: Collection[str] = (),
) -> Grouping:
    """Return the same grouping with the first group that can be used, or a new one. longest: characters of its name.

    promised: groups that pods without a node name. If one of them was deleted meanwhile, it is created again before any
    other: no other controller would create it.
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
            return _named(grouping, name)  # a name conflict with a foreign object is reported, not avoided
        number += 1


def _mine(found: Json, uid: str) -> bool:
    return any(ref.get("controller") and ref["uid"] == uid for ref in found["metadata"].get("ownerReferences") or ())


def _usable(found: Json, wanted: Json, priority: int | None) -> bool:
    if "deletionTimestamp" in found["metadata"] or difference(found, wanted) is Difference.SHAPE:
        return False
    # A new one would have this priority: where it has another, the next would be no better.
    return priority is None or int(found["spec"].get("priority") or 0) == priority


def _named(grouping: Grouping, name: str) -> Grouping:
    (group,) = grouping.groups
    if group["metadata"]["name"] == name:
        return grouping
    groups = [{**group, "metadata": {**group["metadata"], "name": name}}]
    links = {part: replace(link, pod_group=name) for part, link in grouping.links.items()}
    return replace(grouping, groups=groups, links=links)
