"""Group workloads made of roles (a head and workers, a master and workers): one gang of all role minimums.

Pods beyond a role's minimum belong to the group, too: they are placed when there is capacity, and delay no other pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json, Link
from phalanx.controllers.grouping.names import fitting
from phalanx.controllers.grouping.parts import LeafTemplate, disruption_of, gang, pod_group, workload
from phalanx.controllers.grouping.user_workload import with_hand_made


class Role(msgspec.Struct, frozen=True):
    name: str
    count: int  # pods it has now
    least: int  # of which so many must start with the others
    template: Json

    @property
    def priority_class(self) -> str:
        return str((self.template.get("spec") or {}).get("priorityClassName") or "")

    @property
    def linked(self) -> bool:
        spec = self.template.get("spec") or {}
        return spec.get("schedulingGroup") is not None or spec.get("workloadRef") is not None


def one_gang(
    owner: Json, roles: Sequence[Role], related: Sequence[Json], *, minimum: int | None = None, priority_class: str = ""
) -> Grouping:
    """Build one gang of all roles. minimum: the object's own field; an annotation takes precedence."""
    requested = workload_annotations(owner["metadata"].get("annotations"))
    free = [role for role in roles if not role.linked]
    all_pods = sum(max(role.count, role.least) for role in free)
    if requested.gang is False or not all_pods:
        return Grouping()
    classes = sorted({role.priority_class for role in free})
    if len(classes) > 1 and not priority_class:
        shown = ", ".join(f"{role.name} ({role.priority_class or 'none'})" for role in free)
        raise GroupingRefused(f"all pods of one gang need the same priorityClassName, found {shown}")
    count = requested.min_count or minimum or sum(role.least for role in free)
    if count > all_pods:
        raise GroupingRefused(f"a gang of {count} can never form: there are only {all_pods} pods; lower the minimum")
    name = fitting(owner["metadata"]["name"])
    policy = gang(max(1, count))
    mode = disruption_of(policy, requested.mode)
    leaf = LeafTemplate("all", policy, requested.constraints, mode, (), priority_class or classes[0])
    link = Link(pod_group=name, template=leaf.name)
    found = Grouping(
        workload=workload(owner, name, [leaf]),
        groups=[pod_group(owner, name, name, leaf)],
        links={role.name: link for role in free},
    )
    return with_hand_made(owner, found, related)


def templates_of(roles: Sequence[Role]) -> Iterator[Json]:
    return (role.template for role in roles)
