"""Zero values that Kubernetes always writes: an object has its `status`, with the fields that cannot be absent.

Records that are not pointers and required numbers are never absent on the wire there, and an Event always has its
times, null or not. Programs read these without asking and patch below them. Kinds that upstream keeps as custom
resources have no such words: there absent stays absent.
"""

from __future__ import annotations

from typing import Any

from phalanx.model.kinds import Json
from phalanx.model.schema import Object, Scalar

_ZERO: dict[str, Any] = {
    "string": "", "bool": False, "int32": 0, "int64": 0, "double": 0, "bytes": "", "time": None, "microtime": None,
}  # fmt: skip
# Written by Go though its schema calls them optional.
_ALWAYS = {
    "core/v1.Event": ("reportingComponent", "reportingInstance"),
    "apps/v1.StatefulSetStatus": ("availableReplicas",),
}


def zeros_of(schema: Object) -> Json:
    """Return what an object of this kind has at least, besides metadata. Do not change it: `fill` copies."""
    if schema.name == "core/v1.Event":
        return {name: value for name, value in _record(schema).items() if name != "metadata"}
    found: Json = {}
    spec, status = schema.fields.get("spec"), schema.fields.get("status")
    if spec is not None and spec.number and isinstance(spec.type, Object):
        found["spec"] = {}
    if status is not None and status.number and isinstance(status.type, Object):
        found["status"] = _record(status.type)
    return found


def _record(schema: Object) -> Json:
    found: Json = {}
    for name, field in schema.fields.items():
        if field.pointer or not field.number:
            continue
        if isinstance(field.type, Object):
            found[name] = _record(field.type)
        elif isinstance(field.type, Scalar) and field.type.name in _ZERO:
            moment = field.type.name in ("time", "microtime")
            if moment or field.required or name in _ALWAYS.get(schema.name, ()):
                found[name] = _ZERO[field.type.name]
    return found


def fill(obj: Json, zeros: Json) -> None:
    """Add what is missing, in place."""
    for name, zero in zeros.items():
        value = obj.get(name)
        if zero.__class__ is dict:
            if value is None:
                value = obj[name] = {}
            if zero and value.__class__ is dict:
                fill(value, zero)
        elif value is None:
            obj[name] = zero
