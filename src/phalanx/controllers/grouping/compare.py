"""Compare a stored scheduling object with the wanted one. Fields that the server defaults are ignored."""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any

from phalanx.base.resources import WORKLOADS
from phalanx.controllers.grouping.core import Json
from phalanx.model.groups.keys import PART_OF
from phalanx.model.groups.policy import SHORT_FORMS

# Fields set by defaulting or admission if the writer left them unset (priority, disruption mode, policy).
_DEFAULTED: dict[str, Any] = {"disruptionMode": {"single": {}}}
_IGNORED_WHEN_UNSET = ("priority", "priorityClassName", "preemptionPolicy")
_TEMPLATES = ("podGroupTemplates", "compositePodGroupTemplates")
_COUNTS = ("minCount", "minGroupCount")
_CARRIED = (*SHORT_FORMS, PART_OF)
DROPPED = "scheduling.phalanx.dev/dropped-fields"  # spec fields that the server dropped: a gate is off


class Difference(Enum):
    NONE = 0
    COUNTS = 1  # only minCount, minGroupCount or short forms of policies: mutable
    SHAPE = 2  # anything else: immutable, so the object must be replaced


def as_v1beta1(workload: Json) -> Json:
    """Convert a KEP-4671 Workload to the fields of the later version."""
    spec = dict(workload["spec"])
    groups = spec.pop("podGroups", None)
    if groups is None:
        return workload
    spec["podGroupTemplates"] = [{"name": g["name"], "schedulingPolicy": copy.deepcopy(g["policy"])} for g in groups]
    return {**workload, "apiVersion": WORKLOADS.api_version, "spec": spec}


def difference(known: Json, wanted: Json, default_class: str | None = None) -> Difference:
    """Compare objects. default_class: the PriorityClass of objects without one; None: treat any class as default."""
    here, there = as_v1beta1(known)["spec"], as_v1beta1(wanted)["spec"]
    dropped = frozenset(_annotation(known, DROPPED).split(","))
    found = _of_specs(here, there, default_class, dropped, defaulted=known["kind"] != "Workload")
    if found is Difference.NONE and _carried(known) != _carried(wanted):
        return Difference.COUNTS
    return found


def _carried(obj: Json) -> Json:
    """Return the annotations that are copied from the owner and may change."""
    annotations = obj["metadata"].get("annotations") or {}
    return {key: annotations[key] for key in _CARRIED if key in annotations}


def dropped_fields(stored: Json, wanted: Json) -> list[str]:
    """Return fields of a spec, or of its templates, that the server dropped when it stored the object."""
    here, there = as_v1beta1(stored)["spec"], as_v1beta1(wanted)["spec"]
    found = {key for key, value in there.items() if value not in (None, [], {}) and here.get(key) in (None, [], {})}
    for field in _TEMPLATES:
        known = {template["name"]: template for template in here.get(field) or ()}
        for template in there.get(field) or ():
            inside = {"spec": template}, {"spec": known.get(template["name"], template)}
            found.update(dropped_fields(inside[1], inside[0]))
    return sorted(found)


def _annotation(obj: Json, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key) or "")


def with_dropped_fields_annotated(stored: Json, wanted: Json) -> Json | None:
    """Return the stored object with an annotation of the fields the server dropped; None if it dropped none.

    Without the annotation the object would differ, and be deleted and recreated for ever.
    """
    fields = dropped_fields(stored, wanted)
    if not fields:
        return None
    annotations = {**(stored["metadata"].get("annotations") or {}), DROPPED: ",".join(fields)}
    return {**stored, "metadata": {**stored["metadata"], "annotations": annotations}}


def dropped_note(noted: Json) -> str:
    """Return the note for an Event on its owner."""
    fields = ", ".join(_annotation(noted, DROPPED).split(","))
    return f"{noted['kind']} {noted['metadata']['name']}: the API server does not store {fields}; a feature gate is off"


def _of_specs(
    known: Json, wanted: Json, default_class: str | None, dropped: frozenset[str], *, defaulted: bool
) -> Difference:
    worst = Difference.NONE
    for key in sorted({*known, *wanted} - dropped):
        here, there = known.get(key), wanted.get(key)
        if key in _TEMPLATES:
            found = _of_templates(here or [], there or [], default_class, dropped)
        elif key == "schedulingPolicy":
            found = _of_policies(here or {}, there or {})
        elif key in _IGNORED_WHEN_UNSET and there is None:
            if key != "priorityClassName" or default_class is None or here in (None, "", default_class):
                continue
            found = Difference.SHAPE  # the author removed the class
        else:
            if defaulted and there is None:
                there = _DEFAULTED.get(key)
            found = Difference.NONE if _same(here, there) else Difference.SHAPE
        worst = max(worst, found, key=lambda d: d.value)
    return worst


def _of_templates(
    known: list[Json], wanted: list[Json], default_class: str | None, dropped: frozenset[str]
) -> Difference:
    here = {template["name"]: template for template in known}
    there = {template["name"]: template for template in wanted}
    if here.keys() != there.keys():
        return Difference.SHAPE
    found = [_of_specs(here[name], there[name], default_class, dropped, defaulted=False) for name in there]
    return max(found, key=lambda d: d.value, default=Difference.NONE)


def _of_policies(known: Json, wanted: Json) -> Difference:
    if ("gang" in known) != ("gang" in wanted):
        return Difference.SHAPE
    return Difference.NONE if _same(known.get("gang"), wanted.get("gang")) else Difference.COUNTS


def _same(here: Any, there: Any) -> bool:
    return here == there or (here in (None, [], {}) and there in (None, [], {}))


def with_counts_of(known: Json, wanted: Json) -> Json:
    """Return the stored object with the wanted counts and short forms of policies."""
    body = copy.deepcopy(as_v1beta1(known))
    _copy_counts(body["spec"], as_v1beta1(wanted)["spec"])
    kept = {key: value for key, value in (body["metadata"].get("annotations") or {}).items() if key not in _CARRIED}
    body["metadata"]["annotations"] = {**kept, **_carried(wanted)}
    return body


def _copy_counts(known: Json, wanted: Json) -> None:
    policy = (wanted.get("schedulingPolicy") or {}).get("gang")
    if policy is not None:
        known["schedulingPolicy"]["gang"].update({key: policy[key] for key in _COUNTS if key in policy})
    for field in _TEMPLATES:
        there = {template["name"]: template for template in wanted.get(field) or ()}
        for template in known.get(field) or ():
            if template["name"] in there:
                _copy_counts(template, there[template["name"]])
