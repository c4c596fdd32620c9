"""Workload v1alpha1 as KEP-4671 defines it (`podGroups[].policy`), over the stored v1beta1.

What v1alpha1 cannot say survives twice over. While an object is viewed as v1alpha1 it travels in a reserved annotation,
so that `to_storage(from_storage(x)) == x` and a dump can be restored; and an update through v1alpha1, whose
`podGroups` are immutable, keeps the stored templates whatever the annotation says, so that a client which drops
annotations cannot lose anything. Leaves of composite templates are shown as `podGroups`.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from phalanx.base.well_known import SCHEDULING_API
from phalanx.model import names
from phalanx.model.annotation_values import BadValue, json_object
from phalanx.model.fieldpath import all_invalid, duplicate, immutable, required, too_many
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.contract import Viewed
from phalanx.model.rules.declared import declared_errors, same

ANNOTATION = "scheduling.phalanx.dev/v1beta1-fields"
# On a Workload created as v1alpha1: its groups are fixed whichever version is used to change them.
MADE_AS = "scheduling.phalanx.dev/made-as"
MAX_POD_GROUPS = 8
_LEAVES, _COMPOSITES = "podGroupTemplates", "compositePodGroupTemplates"


def _leaves(node: Json) -> list[Json]:
    """Return the leaf templates of a tree, in the order of the object."""
    found: list[Json] = list(node.get(_LEAVES) or ())
    for template in node.get(_COMPOSITES) or ():
        found += _leaves(template)
    return found


def _pod_groups(spec: Json) -> list[Json]:
    groups = []
    for template in _leaves(spec):
        group: Json = {}
        if "name" in template:
            group["name"] = template["name"]
        if "schedulingPolicy" in template:
            group["policy"] = copy.deepcopy(template["schedulingPolicy"])
        groups.append(group)
    return groups


def _hidden(spec: Json) -> Json:
    """Return the fields that v1alpha1 cannot express."""
    hidden: Json = {}
    if spec.get(_COMPOSITES):
        hidden[_COMPOSITES] = spec[_COMPOSITES]
        if _LEAVES in spec:
            hidden[_LEAVES] = spec[_LEAVES]
        return hidden
    if _COMPOSITES in spec:
        hidden[_COMPOSITES] = spec[_COMPOSITES]
    shown = ("name", "schedulingPolicy")
    extras = {
        f"{index}/{template.get('name')}": {name: value for name, value in template.items() if name not in shown}
        for index, template in enumerate(spec.get(_LEAVES) or ())
    }
    if extras := {place: fields for place, fields in extras.items() if fields}:
        hidden["extras"] = extras
    return hidden


def from_storage(obj: Json) -> Json:
    """Return the v1alpha1 view of a stored Workload."""
    stored: Json = obj.get("spec") or {}
    spec: Json = {name: value for name, value in stored.items() if name not in (_LEAVES, _COMPOSITES)}
    if stored.get(_LEAVES) is not None or stored.get(_COMPOSITES):
        spec["podGroups"] = _pod_groups(stored)
    hidden = _hidden(stored)
    view = {**obj, "apiVersion": f"{SCHEDULING_API}/v1alpha1", "spec": spec}
    meta: Json = dict(obj.get("metadata") or {})
    annotations: Json = dict(meta.get("annotations") or {})
    if ANNOTATION in annotations:
        hidden["shadowed"] = annotations[ANNOTATION]
    if hidden:
        annotations[ANNOTATION] = json.dumps(hidden, separators=(",", ":"), sort_keys=True)
        meta["annotations"] = annotations
        view["metadata"] = meta
    return view


MAX_HIDDEN = 256 << 10  # characters: all that the annotations of an object may have


def _read_hidden(text: Any) -> Json | None:
    if not isinstance(text, str):
        return None
    try:
        hidden = json_object(text, MAX_HIDDEN)
    except BadValue:
        return None
    extras, composites = hidden.get("extras", {}), hidden.get(_COMPOSITES)
    if not isinstance(extras, dict) or not all(isinstance(fields, dict) for fields in extras.values()):
        return None
    if composites is not None and not isinstance(composites, list):
        return None
    return hidden


def to_storage(view: Json) -> Json:
    """Return the stored form of a v1alpha1 Workload, with the fields kept in its reserved annotation."""
    obj = Viewed({**view, "apiVersion": f"{SCHEDULING_API}/v1beta1"})
    obj.view = "v1alpha1"
    shown: Json = view.get("spec") or {}
    spec: Json = {name: value for name, value in shown.items() if name != "podGroups"}
    groups = shown.get("podGroups")
    hidden: Json = {}
    meta: Json = dict(view.get("metadata") or {})
    annotations: Json = dict(meta.get("annotations") or {})
    if ANNOTATION in annotations:
        read = _read_hidden(annotations[ANNOTATION])
        if read is not None:
            hidden = read
            del annotations[ANNOTATION]
            if "shadowed" in hidden:
                annotations[ANNOTATION] = hidden["shadowed"]
            if annotations:
                meta["annotations"] = annotations
            else:
                meta.pop("annotations", None)
            obj["metadata"] = meta
    if groups is not None:
        spec[_LEAVES] = [_template(group) for group in groups]
    _restore_hidden(spec, hidden)
    obj["spec"] = spec
    return obj


def _template(group: Json) -> Json:
    template: Json = {name: value for name, value in group.items() if name not in ("name", "policy")}
    if "name" in group:
        template["name"] = group["name"]
    if "policy" in group:
        template["schedulingPolicy"] = copy.deepcopy(group["policy"])
    return template


def _restore_hidden(spec: Json, hidden: Json) -> None:
    composites = hidden.get(_COMPOSITES)
    if composites:
        tree = {_COMPOSITES: composites, _LEAVES: hidden.get(_LEAVES)}
        if _pod_groups(tree) != [_group(template) for template in spec.get(_LEAVES) or ()]:
            return  # the annotation belongs to another set of groups
        spec.pop(_LEAVES, None)
        if _LEAVES in hidden:
            spec[_LEAVES] = hidden[_LEAVES]
        spec[_COMPOSITES] = composites
        return
    if _COMPOSITES in hidden:
        spec[_COMPOSITES] = composites
    templates: list[Json] = spec.get(_LEAVES) or []
    places = {f"{index}/{template.get('name')}": template for index, template in enumerate(templates)}
    for place, fields in (hidden.get("extras") or {}).items():
        if place in places:  # otherwise it was about a group that is gone
            places[place].update(fields)


def _group(template: Json) -> Json:
    (group,) = _pod_groups({_LEAVES: [template]})
    return group


def keep_hidden(new: Json, old: Json) -> None:
    """Keep every stored template if an update through v1alpha1 leaves podGroups unchanged."""
    spec, stored = new.setdefault("spec", {}), old.get("spec") or {}
    if same(_pod_groups(spec), _pod_groups(stored)):
        for field in (_LEAVES, _COMPOSITES):
            if field in stored:
                spec[field] = copy.deepcopy(stored[field])
            else:
                spec.pop(field, None)


def mark(obj: Json) -> None:
    """Mark a new Workload as created through v1alpha1.

    A Workload that a controller owns is not marked: it follows the size of its owner.
    """
    meta = obj["metadata"]
    if any(owner.get("controller") for owner in meta.get("ownerReferences") or ()):
        return
    meta["annotations"] = {**(meta.get("annotations") or {}), MADE_AS: "v1alpha1"}


def keep_mark(new: Json, old: Json) -> None:
    if _fixed(old):
        meta = new["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), MADE_AS: "v1alpha1"}


def _fixed(obj: Json) -> bool:
    return bool((obj["metadata"].get("annotations") or {}).get(MADE_AS) == "v1alpha1")


def fixed_errors(new: Json, old: Json) -> list[FieldError]:
    """Return an error if `podGroups` of a Workload created as v1alpha1 change through another version."""
    spec: Json = new.get("spec") or {}
    if not _fixed(old) or same(_pod_groups(spec), _pod_groups(old.get("spec") or {})):
        return []
    return [immutable(f"spec.{_LEAVES}", spec.get(_LEAVES))]


def create_errors(obj: Json) -> list[FieldError]:
    """Check a new Workload by the rules of KEP-4671, with the paths of v1alpha1.

    Composite trees can only come from the annotation, and the rules of v1beta1 check them.
    """
    spec: Json = obj.get("spec") or {}
    if spec.get(_COMPOSITES):
        return []
    errors: list[FieldError] = []
    if spec.get("controllerRef") is not None:
        errors += _reference(spec["controllerRef"])
    groups = _pod_groups(spec)
    if not groups:
        errors.append(required("spec.podGroups", "must have at least one item"))
    elif len(groups) > MAX_POD_GROUPS:
        errors.append(too_many("spec.podGroups", len(groups), MAX_POD_GROUPS))
    seen: set[str] = set()
    for index, group in enumerate(groups):
        at = f"spec.podGroups[{index}]"
        name = group.get("name") or ""
        if not name:
            errors.append(required(f"{at}.name"))
        else:
            errors += all_invalid(f"{at}.name", name, names.short_name(name))
            if name in seen:
                errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
        policy = "scheduling/v1beta1.PodGroupSchedulingPolicy"
        errors += declared_errors(policy, group.get("policy") or {}, None, f"{at}.policy")
    return errors


def _reference(found: Json) -> list[FieldError]:
    return declared_errors("scheduling/v1beta1.TypedLocalObjectReference", found, None, "spec.controllerRef")


def update_errors(new: Json, old: Json) -> list[FieldError]:
    """Check that `podGroups` do not change, and that `controllerRef` is set at most once."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: list[FieldError] = []
    reference, earlier = spec.get("controllerRef"), before.get("controllerRef")
    if earlier is not None:
        if not same(reference, earlier):
            errors.append(immutable("spec.controllerRef", reference))
    elif reference is not None:
        errors += _reference(reference)
    groups = _pod_groups(spec)
    if not same(groups, _pod_groups(before)):
        errors.append(immutable("spec.podGroups", groups))
    return errors
