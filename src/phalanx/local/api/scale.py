"""The scale subresource as an autoscaling/v1 Scale, made from the paths the kind declares."""

from __future__ import annotations

from typing import Any

from phalanx.model.kinds import Json, Kind

_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def at(obj: Json, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    here: Any = obj
    for part in path.strip(".").split("."):
        if not isinstance(here, dict):
            return None
        here = here.get(part)
    return here


def scale_of(kind: Kind, obj: Json) -> Json:
    scale = kind.scale
    assert scale is not None  # a kind that lists the subresource declares its paths
    metadata = obj.get("metadata", {})
    status: Json = {"replicas": at(obj, scale.status_replicas) or 0}
    if scale.selector:
        selector = selector_text(at(obj, scale.selector))
        if selector:
            status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in _KEPT if key in metadata},
        "spec": {"replicas": at(obj, scale.spec_replicas) or 0},
        "status": status,
    }


def selector_text(selector: Any) -> str:
    """Format a label selector object in the text form of a query parameter."""
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or ():
        key, operator = rule.get("key", ""), rule.get("operator")
        values = ",".join(sorted(rule.get("values") or ()))
        if operator == "Exists":
            parts.append(key)
        elif operator == "DoesNotExist":
            parts.append(f"!{key}")
        else:
            parts.append(f"{key} {'in' if operator == 'In' else 'notin'} ({values})")
    return ",".join(parts)
