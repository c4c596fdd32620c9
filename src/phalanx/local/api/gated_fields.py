"""Fields of new objects that a feature gate may take away: of their spec, and of the templates in it.

The response to such a write carries a warning, and an event on the object says so later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.base.clock import rfc3339
from phalanx.model.gates import DROPPED
from phalanx.model.kinds import Json

FieldPath = tuple[str | int, ...]
# Fields that hold templates of pods and groups; no other field is searched.
_TEMPLATES = (
    "template",
    "jobTemplate",
    "replicatedJobs",
    "leaderWorkerTemplate",
    "leaderTemplate",
    "workerTemplate",
    "podGroupTemplates",
    "compositePodGroupTemplates",
)


def gated_fields(obj: Json) -> list[FieldPath]:
    found: list[FieldPath] = []
    _collect_dropped(obj.get("spec"), ("spec",), found)
    return found


def _collect_dropped(node: Any, path: FieldPath, found: list[FieldPath]) -> None:
    if isinstance(node, list):
        for index, item in enumerate(node):
            _collect_dropped(item, (*path, index), found)
    elif isinstance(node, dict):
        found += [(*path, name) for name in DROPPED if name in node]
        for name in _TEMPLATES:
            if name in node:
                _collect_dropped(node[name], (*path, name), found)
        if path[-1] != "spec" and "spec" in node:
            _collect_dropped(node["spec"], (*path, "spec"), found)


def is_controlled(obj: Json) -> bool:
    return any(owner.get("controller") for owner in obj["metadata"].get("ownerReferences") or ())


def event_of(kind: str, version: str, obj: Json, warnings: Sequence[str], now: float) -> Json:
    """Return the event that repeats the warning of the write."""
    meta, time = obj["metadata"], rfc3339(now)
    namespace = meta.get("namespace") or "default"
    about = {"apiVersion": version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}
    if "namespace" in meta:
        about["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name'][:200]}.{meta['uid'][:8]}", "namespace": namespace},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FeatureGateOff",
        "message": "; ".join(warnings)[:1000],
        "source": {"component": "apiserver"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def exists(obj: Json, path: FieldPath) -> bool:
    node: Any = obj
    for step in path:
        inside = step in node if isinstance(node, dict) else isinstance(step, int) and step < len(node or ())
        if not inside:
            return False
        node = node[step]
    return True


def shown(path: FieldPath) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
