"""Build templates of groups, and the Workload, CompositePodGroups and PodGroups created from them.

A `LeafTemplate` is a PodGroupTemplate, a `TemplateNode` a CompositePodGroupTemplate. A template may be instantiated
many times, such as once per replica. Unset fields stay unset, so that the server's defaults apply. Workloads with roles
(a head and workers) are one gang of all role minimums; pods beyond their role's minimum belong to the group too, but
delay no other pod.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from phalanx.base.client import Resource
from phalanx.base.resources import COMPOSITE_POD_GROUPS, POD_GROUPS, WORKLOADS
from phalanx.base.well_known import PHALANX_API
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import (
    MAX_TEMPLATES,
    WORKLOADS_V1ALPHA1,
    Grouping,
    GroupingRefused,
    Json,
    Link,
    carried_annotations,
    controller_ref,
    namespace_of,
    reference_to,
)
from phalanx.controllers.grouping.names import fitting
from phalanx.controllers.grouping.user_workload import with_hand_made
from phalanx.model import names as dns
from phalanx.model.groups.keys import DISRUPTION

BASIC: Json = {"basic": {}}


def gang(count: int) -> Json:
    return {"gang": {"minCount": count}}


def gang_of_groups(count: int) -> Json:
    return {"gang": {"minGroupCount": count}}


def disruption_of(policy: Json, asked: Json | None) -> Json | None:
    """Return the disruptionMode of a generated group: the author's choice, else a gang is evicted as a whole.

    Members left below the minimum would hold nodes without working.
    """
    return asked or ({"all": {}} if "gang" in policy else None)


@dataclass(frozen=True, slots=True)
class LeafTemplate:
    name: str
    policy: Json  # {"basic": {}} or {"gang": {"minCount": n}}
    constraints: Json | None = None  # schedulingConstraints
    disruption: Json | None = None  # disruptionMode
    claims: Sequence[Json] = ()  # resourceClaims
    priority_class: str = ""

    def template(self) -> Json:
        return {"name": self.name, **self.spec()}

    def spec(self) -> Json:
        """Return the fields that a template and a PodGroup share."""
        found: dict[str, Any] = {
            "schedulingPolicy": self.policy,
            "schedulingConstraints": self.constraints,
            "disruptionMode": self.disruption,
            "resourceClaims": list(self.claims) or None,
            "priorityClassName": self.priority_class or None,
        }
        return {key: copy.deepcopy(value) for key, value in found.items() if value is not None}


class TemplateNode(msgspec.Struct, frozen=True):
    name: str
    policy: Json  # {"basic": {}} or {"gang": {"minGroupCount": n}}
    children: Sequence[TemplateNode | LeafTemplate]
    constraints: Json | None = None
    disruption: Json | None = None
    priority_class: str = ""

    def template(self) -> Json:
        found = {"name": self.name, **self.spec()}
        composites = [child.template() for child in self.children if isinstance(child, TemplateNode)]
        leaves = [child.template() for child in self.children if isinstance(child, LeafTemplate)]
        if composites:
            found["compositePodGroupTemplates"] = composites
        if leaves:
            found["podGroupTemplates"] = leaves
        return found

    def spec(self) -> Json:
        found: dict[str, Any] = {
            "schedulingPolicy": self.policy,
            "schedulingConstraints": self.constraints,
            "disruptionMode": self.disruption,
            "priorityClassName": self.priority_class or None,
        }
        return {key: copy.deepcopy(value) for key, value in found.items() if value is not None}


def workload(owner: Json, name: str, templates: Sequence[LeafTemplate | TemplateNode]) -> Json:
    """Return the Workload of an owner: leaves or composites at the top level, not both (a rule of the API)."""
    check(templates)
    field = "compositePodGroupTemplates" if isinstance(templates[0], TemplateNode) else "podGroupTemplates"
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": _metadata(owner, name, None),
        "spec": {"controllerRef": controller_ref(owner), field: [template.template() for template in templates]},
    }


def pod_group(
    owner: Json, name: str, workload_name: str, template: LeafTemplate, *, parent: str = "", labels: Json | None = None
) -> Json:
    return _group(POD_GROUPS, owner, name, workload_name, template, parent, labels)


def composite(
    owner: Json, name: str, workload_name: str, template: TemplateNode, *, parent: str = "", labels: Json | None = None
) -> Json:
    return _group(COMPOSITE_POD_GROUPS, owner, name, workload_name, template, parent, labels)


def _group(
    resource: Resource,
    owner: Json,
    name: str,
    workload_name: str,
    template: LeafTemplate | TemplateNode,
    parent: str,
    labels: Json | None,
) -> Json:
    spec: Json = {"workloadRef": {"workloadName": workload_name, "templateName": template.name}, **template.spec()}
    if parent:
        spec["parentCompositePodGroupName"] = parent
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": _metadata(owner, name, labels),
        "spec": spec,
    }


def _metadata(owner: Json, name: str, labels: Json | None) -> Json:
    meta: Json = {"name": name, "namespace": namespace_of(owner), "ownerReferences": [reference_to(owner)]}
    if annotations := carried_annotations(owner):
        meta["annotations"] = annotations
    return {**meta, "labels": dict(labels)} if labels else meta


def check(templates: Sequence[LeafTemplate | TemplateNode]) -> None:
    """Refuse what the API server would reject, with a message about the author's own fields."""
    _check_width(templates, "the Workload")
    every = list(_walk(templates))
    for template in every:
        if problems := dns.dns_label(template.name):
            raise GroupingRefused(
                f"group template name {template.name!r} is not a DNS label ({problems[0]}); choose a shorter name"
            )
        # In a tree the API allows both: parts that start separately and are disrupted together.
        alone = isinstance(template, LeafTemplate) and template in templates
        if alone and "basic" in template.policy and "all" in (template.disruption or {}):
            raise GroupingRefused(
                f"group {template.name}: disruptionMode all needs a gang policy, or use disruptionMode single"
            )
        gang_policy = template.policy.get("gang")
        if gang_policy is not None and min(gang_policy.values(), default=0) < 1:
            raise GroupingRefused(
                f"group {template.name}: a gang needs at least 1 member; use the basic policy instead"
            )
    classes = sorted({template.priority_class for template in every})
    if len(classes) > 1:
        shown = ", ".join(repr(name) for name in classes)
        raise GroupingRefused(f"all pods of one Workload need the same priorityClassName, found {shown}")


def _check_width(templates: Sequence[LeafTemplate | TemplateNode], where: str) -> None:
    if len(templates) > MAX_TEMPLATES:
        raise GroupingRefused(
            f"{where} would need {len(templates)} groups and may have {MAX_TEMPLATES}; "
            f"put several parts into one group",
            "TooManyGroups",
        )
    for template in templates:
        if isinstance(template, TemplateNode):
            _check_width(template.children, f"group {template.name}")


def _walk(templates: Sequence[LeafTemplate | TemplateNode]) -> Iterator[LeafTemplate | TemplateNode]:
    for template in templates:
        yield template
        if isinstance(template, TemplateNode):
            yield from _walk(template.children)


API = f"{PHALANX_API}/api"  # annotation that requests it
ONLY_GROUP = "gg"  # the name the API design paper gives the one group of such a workload


def first_workload(owner: Json, name: str, policies: Mapping[str, Json]) -> Json:
    """Return a KEP-4671 Workload. An annotation holds the disruption mode, for which it has no field."""
    mode = workload_annotations(owner["metadata"].get("annotations")).disruption
    return {
        "apiVersion": WORKLOADS_V1ALPHA1.api_version,
        "kind": WORKLOADS_V1ALPHA1.kind,
        "metadata": {"name": name, "namespace": namespace_of(owner), "ownerReferences": [reference_to(owner)]}
        | ({"annotations": {DISRUPTION: mode}} if mode else {}),
        "spec": {
            "controllerRef": controller_ref(owner),
            "podGroups": [{"name": group, "policy": policy} for group, policy in policies.items()],
        },
    }


class Role(msgspec.Struct, frozen=True):
    name: str
    count: int  # pods it has now
    least: int  # number that must start with the other roles
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
    """Build one gang of all roles. minimum: the object's own field, unless an annotation overrides it."""
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
