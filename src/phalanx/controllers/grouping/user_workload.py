"""Use a Workload that a user created for a workload object instead of a generated one. It is never changed.

Groups are created from its templates with the names of the generated ones, or from its only template.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from phalanx.base.resources import COMPOSITE_POD_GROUPS, POD_GROUPS, WORKLOADS
from phalanx.controllers.grouping.core import (
    ADOPTED,
    GENERATED,
    GROUP_TEMPLATE,
    PARENT_COMPOSITE,
    Grouping,
    GroupingRefused,
    Json,
    Link,
    controller_ref,
    namespace_of,
)

COPIED = (
    "schedulingPolicy",
    "schedulingConstraints",
    "disruptionMode",
    "resourceClaims",
    "priorityClassName",
    "priority",
)


def generated(workload: Json) -> bool:
    """Return True if our controllers created it, even if it lost its owner since (`--cascade=orphan`)."""
    return (workload["metadata"].get("annotations") or {}).get(GENERATED) == "true"


def ignored_note(owner: Json, by_hand: Json, remedy: str) -> str:
    """Return the text of an event: a user's Workload names an owner that requests no group."""
    name = by_hand["metadata"]["name"]
    return (
        f"Workload {name} is about this {owner['kind']}, which asks for no group: add {remedy} to it, or delete"
        " the Workload"
    )


def made_by_hand(owner: Json, related: Sequence[Json]) -> Json | None:
    """Return a user's Workload whose `controllerRef` names the owner. A generated one takes precedence."""
    about = [
        found
        for found in related
        if found.get("kind") == WORKLOADS.kind
        and namespace_of(found) == namespace_of(owner)
        and _same_reference(found["spec"].get("controllerRef"), controller_ref(owner))
        and "deletionTimestamp" not in found["metadata"]
    ]
    by_hand = []
    for workload in about:
        controller = next(
            (ref for ref in workload["metadata"].get("ownerReferences") or () if ref.get("controller")), None
        )
        adopted = (workload["metadata"].get("annotations") or {}).get(ADOPTED) == "true"
        mine = controller is not None and controller.get("uid") == owner["metadata"].get("uid")
        if mine and not adopted:
            return None
        if mine or (controller is None and not generated(workload)):
            by_hand.append(workload)
    if len(by_hand) > 1:
        names = ", ".join(sorted(workload["metadata"]["name"] for workload in by_hand))
        raise GroupingRefused(
            f"several Workloads say they are about it: {names}; delete all but one", "AmbiguousWorkload"
        )
    return by_hand[0] if by_hand else None


def _same_reference(one: Json | None, other: Json) -> bool:
    return one is not None and (one.get("apiGroup") or "", one.get("kind"), one.get("name")) == (
        other.get("apiGroup") or "",
        other["kind"],
        other["name"],
    )


def with_hand_made(owner: Json, grouping: Grouping, related: Sequence[Json]) -> Grouping:
    """Return the groups with the policies of a user's Workload, if any. Raises Refused if they do not match."""
    workload = made_by_hand(owner, related) if grouping.workload is not None else None
    if workload is None:
        return grouping
    return from_templates_of(workload, grouping)


def from_templates_of(workload: Json, grouping: Grouping, *, only: str = "") -> Grouping:
    """Create groups from the templates of another Workload; `only`: one template for all."""
    name, templates = workload["metadata"]["name"], dict(_templates(workload["spec"]))
    composites = [_remade(obj, workload, templates, only) for obj in grouping.composites]
    groups = [_remade(obj, workload, templates, only) for obj in grouping.groups]
    chosen = {obj["metadata"]["name"]: obj["spec"]["workloadRef"]["templateName"] for obj in groups}
    links = {part: _relinked(link, name, chosen, templates) for part, link in grouping.links.items()}
    return replace(grouping, workload=None, composites=composites, groups=groups, links=links, owned_by_workload=False)


def _relinked(link: Link, workload: str, chosen: Mapping[str, str], templates: Mapping[tuple[str, str], Json]) -> Link:
    if not link.workload:
        return replace(link, template=chosen.get(link.pod_group, link.template))
    groups = [name for kind, name in templates if kind == POD_GROUPS.kind]  # KEP-4671: pods name the group in it
    if link.group not in groups and len(groups) != 1:
        raise GroupingRefused(
            f"Workload {workload} has no group {link.group!r}, and none can be added: delete it, "
            "and make it again with that group if you want one of your own",
            "WorkloadDoesNotFit",
        )
    return replace(link, workload=workload, group=link.group if link.group in groups else groups[0])


def _remade(obj: Json, source: Json, templates: Mapping[tuple[str, str], Json], only: str) -> Json:
    workload, kind = source["metadata"]["name"], obj["kind"]
    wanted = only or obj["spec"]["workloadRef"]["templateName"]
    fitting = [name for of, name in templates if of == kind]
    if (kind, wanted) not in templates and len(fitting) == 1 and not only:
        wanted = fitting[0]
    template = templates.get((kind, wanted))
    if template is None:
        field = "compositePodGroupTemplate" if kind == COMPOSITE_POD_GROUPS.kind else "podGroupTemplate"
        there = ", ".join(fitting) or "none"
        raise GroupingRefused(
            f"Workload {workload} has no {field} {wanted!r} (there is {there}), and none can be added: delete it, and "
            "make it again with that template if you want one of your own",
            "WorkloadDoesNotFit",
        )
    _check_count(source, wanted, template, obj)
    spec: Json = {"workloadRef": {"workloadName": workload, "templateName": wanted}}
    spec |= {key: copy.deepcopy(template[key]) for key in COPIED if template.get(key) is not None}
    if not any(key in spec for key in ("priorityClassName", "priority")) and obj["spec"].get("priorityClassName"):
        spec["priorityClassName"] = obj["spec"]["priorityClassName"]  # otherwise no pod could be in it
    if obj["spec"].get("parentCompositePodGroupName"):
        spec["parentCompositePodGroupName"] = obj["spec"]["parentCompositePodGroupName"]
    return {**obj, "spec": spec}


def lower_count(workload: Json, count: str) -> str:
    """Return how to lower a minimum: the groups of a Workload of v1alpha1 (KEP-4671) cannot be changed."""
    if workload["spec"].get("podGroups"):
        return f"delete the Workload and create it again with a lower {count}"
    return f"lower its {count}"


def _check_count(workload: Json, name: str, template: Json, obj: Json) -> None:
    for count in ("minCount", "minGroupCount"):
        theirs = ((template.get("schedulingPolicy") or {}).get("gang") or {}).get(count)
        ours = ((obj["spec"].get("schedulingPolicy") or {}).get("gang") or {}).get(count)
        if theirs is not None and ours is not None and int(theirs) > int(ours):
            raise GroupingRefused(
                f"template {name!r} of Workload {workload['metadata']['name']} wants {theirs} members and will only "
                f"ever have {ours}; {lower_count(workload, count)}",
                "WorkloadDoesNotFit",
            )


def _templates(node: Json) -> Iterator[tuple[tuple[str, str], Json]]:
    """Return all templates of a Workload by (kind of group, name)."""
    for template in node.get("podGroupTemplates") or ():
        yield ("PodGroup", template["name"]), template
    for group in node.get("podGroups") or ():  # KEP-4671
        yield ("PodGroup", group["name"]), {"name": group["name"], "schedulingPolicy": group.get("policy")}
    for template in node.get("compositePodGroupTemplates") or ():
        yield ("CompositePodGroup", template["name"]), template
        yield from _templates(template)


# -- below a tree ----------------------------------------------------------------------------------------------------


def workload_above(obj: Json, related: Sequence[Json]) -> Json:
    """Return the Workload whose templates a child workload uses: that of its parent group or of its owner."""
    meta = obj["metadata"]
    parent = (meta.get("annotations") or {}).get(PARENT_COMPOSITE)
    workloads = [found for found in related if found.get("kind") == WORKLOADS.kind]
    owner = next((ref for ref in meta.get("ownerReferences") or () if ref.get("controller")), None)
    if parent:
        key = (COMPOSITE_POD_GROUPS.kind, parent)
        above = next((found for found in related if (found.get("kind"), found["metadata"]["name"]) == key), None)
        if above is None:
            raise GroupingRefused(
                f"CompositePodGroup {parent} above does not exist yet; create it", "ParentWorkloadNotReady"
            )
        named = (above["spec"].get("workloadRef") or {}).get("workloadName")
        found = next((workload for workload in workloads if workload["metadata"]["name"] == named), None)
        what = f"Workload {named} of CompositePodGroup {parent}"
    elif owner is not None:
        about = {"kind": owner["kind"], "name": owner["name"], "apiGroup": owner["apiVersion"].rpartition("/")[0]}
        found = next((one for one in workloads if _same_reference(one["spec"].get("controllerRef"), about)), None)
        what = f"a Workload of {owner['kind']} {owner['name']}"
    else:
        raise GroupingRefused(
            f"annotation {GROUP_TEMPLATE} names a template of another Workload, but no object owns this "
            f"{obj['kind']}; name the group above it in {PARENT_COMPOSITE}"
        )
    if found is None:
        raise GroupingRefused(f"{what} does not exist yet; create it", "ParentWorkloadNotReady")
    return found
