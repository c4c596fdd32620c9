"""Convert OpenAPI schemas to CEL types, and objects to CEL values."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from phalanx.base.well_known import EMBEDDED_RESOURCE, INT_OR_STRING, LIST_MAP_KEYS, LIST_TYPE
from phalanx.model.schema import ListOf, MapOf, Scalar
from phalanx.model.schema import Type as ModelType

from . import types as t
from .functions.times import parse_duration, parse_timestamp
from .values import EvaluationError, MapList, SetList

Json = Mapping[str, Any]


_KEYWORDS = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"}
    | {"import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_SPECIAL = re.compile(r"__|[./-]")
_STRINGS = {"byte": t.BYTES, "duration": t.DURATION, "date": t.TIMESTAMP, "date-time": t.TIMESTAMP}
_SCALARS = {"boolean": t.BOOL, "number": t.DOUBLE, "integer": t.INT}
_TEXT: Json = {"type": "string"}
HEAD: Json = {
    "apiVersion": _TEXT,
    "kind": _TEXT,
    "metadata": {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}},
}


def escaped(name: str) -> str | None:
    """Return the name of a property in expressions; None if it cannot be named."""
    if name in _KEYWORDS:
        return f"__{name}__"
    found = _SPECIAL.sub(lambda match: _ESCAPES[match.group()], name)
    return found if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", found) else None


class SchemaTypes:
    """Object types of a schema, named by their paths."""

    def __init__(self) -> None:
        self.objects: dict[str, t.ObjectFields] = {}

    def type_of(self, schema: Any, name: str, root: bool = False) -> t.Type | None:
        """Return the type of a schema; None if rules cannot read inside. `root`: it has a kind and metadata."""
        if not isinstance(schema, Mapping):
            return None
        if schema.get(INT_OR_STRING):
            return t.DYN
        kind = schema.get("type")
        if kind == "array":
            element = self.type_of(schema.get("items"), f"{name}.@items")
            return t.list_of(element) if element else None
        if kind == "object":
            return self._object(schema, name, root)
        if kind == "string":
            return _STRINGS.get(schema.get("format") or "", t.STRING)
        return _SCALARS.get(kind or "")

    def _object(self, schema: Json, name: str, root: bool) -> t.Type | None:
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            value = self.type_of(extra, f"{name}.@values")
            return t.map_of(t.STRING, value) if value else None
        properties = dict(schema.get("properties") or {})
        if (root or schema.get(EMBEDDED_RESOURCE)) and not _has_head(properties):
            properties.update(HEAD)
        fields: dict[str, tuple[str, t.Type]] = {}
        for key, part in properties.items():
            short = escaped(key)
            found = self.type_of(part, f"{name}.{short}") if short else None
            if short and found:
                fields[short] = (key, found)
                if key in _KEYWORDS:  # `self.namespace` means the same as `self.__namespace__`
                    fields[key] = (key, found)
        self.objects[name] = t.ObjectFields(name, fields)
        return t.object_type(name)


def _has_head(properties: Json) -> bool:
    """Return True if a schema declares what every object has; metadata may then have more fields than usual."""
    meta = properties.get("metadata") or {}
    texts = [properties.get("kind"), properties.get("apiVersion")]
    texts += [(meta.get("properties") or {}).get(name) for name in ("name", "generateName")]
    return meta.get("type") == "object" and all(
        isinstance(part, Mapping) and part.get("type") == "string" for part in texts
    )


def value_of(value: Any, schema: Any) -> Any:
    """Return a value for rules: texts with a format become times and bytes, lists keep their list type."""
    if value is None or not isinstance(schema, Mapping) or schema.get(INT_OR_STRING):
        return value
    if isinstance(value, list):
        return _list(value, schema)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        # A field that is null is absent; values of maps and items of lists can be null.
        return {
            k: value_of(v, properties.get(k, extra)) for k, v in value.items() if v is not None or k not in properties
        }
    if isinstance(value, str):
        return _text(value, schema.get("format"))
    if schema.get("type") == "number" and type(value) is int:
        return float(value)
    return value


def _list(value: list[Any], schema: Json) -> list[Any]:
    items = [value_of(v, schema.get("items")) for v in value]
    listed = schema.get(LIST_TYPE)
    if listed == "set":
        return SetList(items)
    if listed == "map":
        return MapList(items, tuple(schema.get(LIST_MAP_KEYS) or ()))
    return items


def _text(value: str, form: str | None) -> Any:
    try:
        if form == "byte":
            return base64.b64decode(value, validate=True)
        if form == "duration":
            return parse_duration(value)
        if form == "date-time":
            return parse_timestamp(value)
        if form == "date":
            return parse_timestamp(f"{value}T00:00:00Z")
    except (EvaluationError, binascii.Error, ValueError):
        return value  # schema validation rejects it
    return value


_MODEL_SCALARS: dict[str, t.Type] = {
    "string": t.STRING,
    "bool": t.BOOL,
    "int32": t.INT,
    "int64": t.INT,
    "double": t.DOUBLE,
    "bytes": t.BYTES,
    "time": t.TIMESTAMP,
    "microtime": t.TIMESTAMP,
    "duration": t.STRING,
    "quantity": t.DYN,
    "intorstring": t.DYN,
    "json": t.DYN,
}


def model_type(schema: ModelType, objects: dict[str, t.ObjectFields]) -> t.Type:
    """Return the type of a built-in kind or of a part of it; its object types are added to `objects`."""
    if isinstance(schema, Scalar):
        return _MODEL_SCALARS[schema.name]
    if isinstance(schema, ListOf):
        return t.list_of(model_type(schema.item, objects))
    if isinstance(schema, MapOf):
        return t.map_of(t.STRING, model_type(schema.value, objects))
    if schema.name not in objects:
        fields: dict[str, tuple[str, t.Type]] = {}
        objects[schema.name] = t.ObjectFields(schema.name, fields)  # before its fields: types may be recursive
        for name, part in schema.fields.items():
            short = escaped(name)
            if short:
                fields[short] = fields[name] = (name, model_type(part.type, objects))
    return t.object_type(schema.name)
