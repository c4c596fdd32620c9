"""Versions of built-in kinds that are views of the stored version.

The Event of events.k8s.io shows the core Event with other field names. A HorizontalPodAutoscaler of v1 has only one
share of cpu; what v1 has no field for is in annotations, so that nothing is lost on the way there and back.
"""

from __future__ import annotations

import json
from typing import Any

from phalanx.model.annotation_values import BadValue, json_value
from phalanx.model.kinds import Json

_PREFIX = "autoscaling.alpha.kubernetes.io/"
METRICS, CURRENT = f"{_PREFIX}metrics", f"{_PREFIX}current-metrics"
CONDITIONS, BEHAVIOR = f"{_PREFIX}conditions", f"{_PREFIX}behavior"
# kind of metric -> v1's names of (described object, metric, its selector, value, value on average)
_WORDS = {
    "object": ("target", "metricName", "selector", "Value", "averageValue"),
    "pods": ("", "metricName", "selector", "", "AverageValue"),
    "external": ("", "metricName", "metricSelector", "Value", "AverageValue"),
    "resource": ("", "", "", "", "AverageValue"),
    "containerResource": ("", "", "", "", "AverageValue"),
}


def from_v2(obj: Json) -> Json:
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    kept: dict[str, Any] = {}
    metrics = list(spec.pop("metrics", None) or ())
    share = next((metric for metric in metrics if _cpu_share(metric, "target") is not None), None)
    if share is not None:
        spec["targetCPUUtilizationPercentage"] = _cpu_share(share, "target")
        metrics = [metric for metric in metrics if metric is not share]
    if metrics:
        kept[METRICS] = [_older(metric, "target") for metric in metrics]
    if spec.get("behavior") is not None:
        kept[BEHAVIOR] = spec["behavior"]
    spec.pop("behavior", None)
    current = list(status.pop("currentMetrics", None) or ())
    seen = next((metric for metric in current if _cpu_share(metric, "current") is not None), None)
    if seen is not None:
        status["currentCPUUtilizationPercentage"] = _cpu_share(seen, "current")
    if current:
        kept[CURRENT] = [_older(metric, "current") for metric in current]
    if status.get("conditions"):
        kept[CONDITIONS] = status["conditions"]
    status.pop("conditions", None)
    out = {**obj, "spec": spec}
    if "status" in obj:
        out["status"] = status
    if kept:
        metadata = dict(obj["metadata"])
        texts = {key: json.dumps(value, separators=(",", ":")) for key, value in kept.items()}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **texts}
        out["metadata"] = metadata
    return out


def to_v2(view: Json) -> Json:
    spec, status = dict(view.get("spec") or {}), dict(view.get("status") or {})
    metadata = dict(view.get("metadata") or {})
    annotations = dict(metadata.get("annotations") or {})
    stored = {key: _read(annotations.pop(key, None)) for key in (METRICS, CURRENT, CONDITIONS, BEHAVIOR)}
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
    share = spec.pop("targetCPUUtilizationPercentage", None)
    metrics = [_newer(metric, "target") for metric in _listed(stored[METRICS])]
    if share is not None:
        target = {"type": "Utilization", "averageUtilization": share}
        metrics.insert(0, {"type": "Resource", "resource": {"name": "cpu", "target": target}})
    if metrics:
        spec["metrics"] = metrics
    if isinstance(stored[BEHAVIOR], dict):
        spec["behavior"] = stored[BEHAVIOR]
    seen = status.pop("currentCPUUtilizationPercentage", None)
    current = [_newer(metric, "current") for metric in _listed(stored[CURRENT])]
    if seen is not None and not current:
        current = [{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": seen}}}]
    if current:
        status["currentMetrics"] = current
    if _listed(stored[CONDITIONS]):
        status["conditions"] = stored[CONDITIONS]
    out = {**view, "metadata": metadata, "spec": spec}
    if "status" in view or status:
        out["status"] = status
    return out


def _cpu_share(metric: Json, which: str) -> int | None:
    found: Json = metric.get("resource") or {}
    if metric.get("type") != "Resource" or found.get("name") != "cpu":
        return None
    return (found.get(which) or {}).get("averageUtilization")


def _kind(metric: Json) -> str:
    name = str(metric.get("type") or "")
    return name[:1].lower() + name[1:]


def _older(metric: Json, which: str) -> Json:
    """Convert a metric to the fields of v1."""
    kind = _kind(metric)
    words, found = _WORDS.get(kind), dict(metric.get(kind) or {})
    if words is None:
        return metric
    about, name, selector, value, average = words
    amount: Json = found.pop(which, None) or {}
    identity: Json = found.pop("metric", None) or {}
    out: Json = {}
    if about and found.get("describedObject") is not None:
        out[about] = found.pop("describedObject")
    if name:
        out[name] = identity.get("name", "")
        if identity.get("selector") is not None:
            out[selector] = identity["selector"]
    out |= found
    for word, given in ((value, "value"), (average, "averageValue"), ("AverageUtilization", "averageUtilization")):
        if word and amount.get(given) is not None:
            out[_amount(word, which)] = amount[given]
    return {"type": metric["type"], kind: out}


def _newer(metric: Json, which: str) -> Json:
    """Convert a metric of v1 to the fields of v2."""
    kind = _kind(metric)
    words, found = _WORDS.get(kind), _mapping(metric.get(kind))
    if words is None:
        return metric
    about, name, selector, value, average = words
    out: Json = {}
    if about and about in found:
        out["describedObject"] = found.pop(about)
    if name:
        identity: Json = {"name": found.pop(name, "")}
        if selector in found:
            identity["selector"] = found.pop(selector)
        out["metric"] = identity
    amount: Json = {}
    for word, given, sort in (
        (value, "value", "Value"),
        (average, "averageValue", "AverageValue"),
        ("AverageUtilization", "averageUtilization", "Utilization"),
    ):
        if word and _amount(word, which) in found:
            taken = found.pop(_amount(word, which))
            if which == "target":
                amount["type"] = sort
            amount[given] = taken
    out |= found
    out[which] = amount
    return {"type": metric["type"], kind: out}


def _amount(word: str, which: str) -> str:
    """Return the field of an amount: `targetValue`, `currentAverageValue`.

    The average of an object metric has no such prefix.
    """
    return word if word[0].islower() else which + word


def _read(text: Any) -> Any:
    try:
        return json_value(text) if isinstance(text, str) else None
    except BadValue:
        return None


def _mapping(value: Any) -> Json:
    return dict(value) if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# -- Event -----------------------------------------------------------------------------------------------------------

# core name -> events.k8s.io name; every other field has the same name in both
_EVENTS_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {new: old for old, new in _EVENTS_NAMES.items()}


def from_core(event: Json) -> Json:
    view = {_EVENTS_NAMES.get(name, name): value for name, value in event.items()}
    view["apiVersion"] = "events.k8s.io/v1"
    return view


def to_core(view: Json) -> Json:
    event = {_CORE_NAMES.get(name, name): value for name, value in view.items()}
    event["apiVersion"] = "v1"
    return event
