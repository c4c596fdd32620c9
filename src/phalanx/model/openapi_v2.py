"""OpenAPI v2 from the registry, for programs that read nothing newer: the definitions of all kinds, without paths.

v2 has fewer words than v3: no `nullable`, no junctions (`allOf`, `oneOf`, …), and readers that take the properties it
lists for all there are. What it cannot say is left out, as Kubernetes does.
"""

from __future__ import annotations

import hashlib

import msgspec

import phalanx
from phalanx.base.well_known import PRESERVE_UNKNOWN_FIELDS
from phalanx.model import openapi_v2_protobuf as protobuf
from phalanx.model.kinds import SUBRESOURCE_KINDS, Json, Registry
from phalanx.model.openapi_schema import Schemas

_JUNCTIONS = ("allOf", "oneOf", "anyOf", "not", "nullable")
_GVK = "x-kubernetes-group-version-kind"
_NAMED: dict[str, Json] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": "string"},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": "string", "format": "int-or-string"},
}


class Swagger:
    """The document of one registry. Built-in kinds are described once, custom ones again when a kind changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._built_in: dict[str, msgspec.Raw] = {}
        self._document = (b"", "")
        self._messages: dict[str, bytes] = {}  # definitions of built-in kinds in protobuf
        self._message = (-1, b"")  # generation of the registry, document

    def document(self) -> tuple[bytes, str]:
        """Return (document, its hash)."""
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            if not self._built_in:
                found = _definitions(self._registry, custom=False)
                self._built_in = {name: msgspec.Raw(msgspec.json.encode(schema)) for name, schema in found.items()}
            definitions = {**self._built_in, **_definitions(self._registry, custom=True)}
            info = {"title": "Phalanx", "version": phalanx.__version__}
            text = msgspec.json.encode({"swagger": "2.0", "info": info, "paths": {}, "definitions": definitions})
            self._document = text, hashlib.sha512(text).hexdigest().upper()
        return self._document

    def message(self) -> bytes:
        """Return the document in protobuf."""
        generation = self._registry.generation
        if self._message[0] != generation:
            if not self._messages:
                found = _definitions(self._registry, custom=False)
                self._messages = {name: protobuf.definition(name, schema) for name, schema in found.items()}
            custom = _definitions(self._registry, custom=True)
            made = {**self._messages, **{name: protobuf.definition(name, schema) for name, schema in custom.items()}}
            text = protobuf.document("Phalanx", phalanx.__version__, made.values())
            self._message = generation, text
        return self._message[1]


def _definitions(registry: Registry, *, custom: bool) -> dict[str, Json]:
    schemas = Schemas()
    roots: set[str] = set()
    for kind in registry.all():
        for version in kind.versions:
            if (version.openapi is not None) == custom:
                roots.add(schemas.add_kind(kind, version))
                for other in filter(None, map(SUBRESOURCE_KINDS.get, sorted(kind.subresources))):
                    schemas.add_body(*other)
    wanted = roots if custom else schemas.components  # what custom kinds refer to is described with the others
    found = {name: definition(schemas.components[name]) for name in sorted(wanted)}
    return found if custom else found | {name: _NAMED[name] for name in _NAMED if name in found}


def definition(written: Json) -> Json:
    """Convert a component of v3 to v2."""
    if (
        written.get(PRESERVE_UNKNOWN_FIELDS) and _GVK in written
    ):  # a kind that keeps everything: any property named here would be all
        return {"type": "object", _GVK: written[_GVK]}
    return _schema(written)


def _schema(written: Json) -> Json:
    match written.get("allOf"):
        case [{"$ref": _} as reference]:  # how v3 adds a description to a reference
            return _schema({**{name: value for name, value in written.items() if name != "allOf"}, **reference})
    found = {name: value for name, value in written.items() if name not in _JUNCTIONS}
    if "$ref" in found:
        found["$ref"] = found["$ref"].replace("#/components/schemas/", "#/definitions/")
        return found
    if written.get("nullable"):
        _drop(found, "type", "items", "properties")
    if found.get(PRESERVE_UNKNOWN_FIELDS):
        _drop(found, "items", "properties")
    if ("items" not in found and found.get("type") == "array") or (
        found.get(PRESERVE_UNKNOWN_FIELDS) and found.get("type") == "object"
    ):
        _drop(found, "type")
    if "properties" in found:
        _without_nullable(found)
        found["properties"] = {name: _schema(inner) for name, inner in found["properties"].items()}
    for name in ("items", "additionalProperties"):
        if isinstance(found.get(name), dict):
            found[name] = _schema(found[name])
    return found


def _without_nullable(schema: Json) -> None:
    """Remove nullable properties, whose type v2 cannot express, from the required ones."""
    properties: Json = schema["properties"]
    left = [name for name in schema.get("required") or () if not (properties.get(name) or {}).get("nullable")]
    if left:
        schema["required"] = left
    else:
        _drop(schema, "required")


def _drop(schema: Json, *names: str) -> None:
    for name in names:
        schema.pop(name, None)
