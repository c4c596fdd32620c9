"""Schemas of an OpenAPI document: every record of a kind, with descriptions and merge rules."""

from __future__ import annotations

from phalanx.base.well_known import LIST_MAP_KEYS, LIST_TYPE, PRESERVE_UNKNOWN_FIELDS
from phalanx.model import tables
from phalanx.model.builtin import body_schema
from phalanx.model.kinds import Json, Kind, Version
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

PLAIN: dict[str, Json] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "json": {PRESERVE_UNKNOWN_FIELDS: True},
}
# Scalars that have a name of their own, as upstream, so that explain can show it.
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_NAMED: dict[str, tuple[str, Json]] = {
    "time": (_META + "Time", {"type": "string", "format": "date-time"}),
    "microtime": (_META + "MicroTime", {"type": "string", "format": "date-time"}),
    "duration": (_META + "Duration", {"type": "string"}),
    "quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {
            "description": "An exact amount: a number with an optional suffix, such as 500m, 2, 1.5Gi or 3e6.",
            "oneOf": [{"type": "string"}, {"type": "number"}],
        },
    ),
    "intorstring": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {
            "description": "A whole number, or text such as a percentage or the name of a port.",
            "format": "int-or-string",
            "oneOf": [{"type": "integer"}, {"type": "string"}],
        },
    ),
}
_FIXED = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
    "jobset": "io.x-k8s.jobset",
    "leaderworkerset": "io.x-k8s.leaderworkerset",
    "disaggregatedset": "io.x-k8s.disaggregatedset",
}


def component_name(record: str) -> str:
    """Return the component name of a record: "core/v1.PodSpec" → "io.k8s.api.core.v1.PodSpec"."""
    group, _, rest = record.partition("/")
    return f"{_FIXED.get(group, f'io.k8s.api.{group}')}.{rest}"


def one_of_rule(record: Object) -> Json:
    """Return the part of a schema which says that exactly one of two fields is set."""
    if not record.one_of:
        return {}
    one, other = record.one_of
    rule = {"rule": f"has(self.{one}) != has(self.{other})", "message": f"exactly one of {one} and {other} must be set"}
    return {"x-kubernetes-validations": [rule]}


class Schemas:
    """Collects the components that the added kinds need."""

    def __init__(self) -> None:
        self.components: dict[str, Json] = {}

    def add_kind(self, kind: Kind, version: Version) -> str:
        """Add the component of a served kind and return its name.

        Versions that share a schema get a name each.
        """
        gvk = {"group": kind.group, "version": version.name, "kind": kind.kind}
        if version.openapi is not None:
            name = ".".join([*reversed(kind.group.split(".")), version.name, kind.kind])
            self.components[name] = self._custom(version.openapi, gvk)
            return name
        prefix = component_name(version.schema.name).rpartition(".")[0].rpartition(".")[0]
        name = f"{prefix}.{version.name}.{kind.kind}"
        self.components[name] = {**self._record(version.schema), "x-kubernetes-group-version-kind": [gvk]}
        return name

    def add_body(self, group: str, version: str, kind: str) -> str:
        """Add the component of a kind that is only in requests and answers (Scale, Eviction, …); return its name."""
        schema = body_schema(group, version, kind)
        assert schema is not None, kind
        name = component_name(schema.name)
        gvk = {"group": group, "version": version, "kind": kind}
        self.components[name] = {**self._record(schema), "x-kubernetes-group-version-kind": [gvk]}
        return name

    def _custom(self, written: Json, gvk: Json) -> Json:
        given = tables.record("core/v1.ConfigMap")  # any kind: for the words on apiVersion, kind and metadata
        properties = dict(written.get("properties") or {})
        for name in ("apiVersion", "kind", "metadata"):
            properties[name] = self._field(given.fields[name])
        return {**written, "properties": properties, "x-kubernetes-group-version-kind": [gvk]}

    def _record(self, schema: Object) -> Json:
        found: Json = {"type": "object"}
        if schema.doc:
            found["description"] = schema.doc
        if schema.fields:
            found["properties"] = {name: self._field(field) for name, field in schema.fields.items()}
        required = [name for name, field in schema.fields.items() if field.required]
        if required:
            found["required"] = required
        if schema.atomic:
            found["x-kubernetes-map-type"] = "atomic"
        return found | one_of_rule(schema)

    def _reference(self, schema: Object) -> Json:
        name = component_name(schema.name)
        if name not in self.components:
            self.components[name] = {}  # first: records may contain themselves
            self.components[name] = self._record(schema)
        return {"$ref": f"#/components/schemas/{name}"}

    def _type(self, kind: Type) -> Json:
        if isinstance(kind, Object):
            return self._reference(kind)
        if isinstance(kind, ListOf):
            return {"type": "array", "items": self._type(kind.item)}
        if isinstance(kind, MapOf):
            return {"type": "object", "additionalProperties": self._type(kind.value)}
        return self._scalar(kind)

    def _scalar(self, kind: Scalar) -> Json:
        plain = PLAIN.get(kind.name)
        if plain is not None:
            return dict(plain)
        name, schema = _NAMED[kind.name]
        self.components[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}

    def _field(self, field: Field) -> Json:
        found = self._type(field.type)
        if "$ref" in found and field.doc:
            found = {"allOf": [found]}  # a description next to a bare $ref would be ignored
        if field.doc:
            found["description"] = field.doc
        if field.default is not None:
            found["default"] = field.default
        found |= dict(field.limits)
        if field.checks.fixed == "always":
            found["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": "field is immutable"}]
        kind = field.type
        if isinstance(kind, ListOf):
            found[LIST_TYPE] = kind.kind
            if kind.keys:
                found[LIST_MAP_KEYS] = list(kind.keys)
            strategy = [name for name, on in (("merge", kind.patch_merge), ("retainKeys", kind.retain_keys)) if on]
            if strategy:
                found["x-kubernetes-patch-strategy"] = ",".join(strategy)
            if kind.patch_key:
                found["x-kubernetes-patch-merge-key"] = kind.patch_key
        elif field.atomic or (isinstance(kind, MapOf) and kind.atomic):
            found["x-kubernetes-map-type"] = "atomic"
        if field.retain_keys:
            found["x-kubernetes-patch-strategy"] = "retainKeys"
        return found
