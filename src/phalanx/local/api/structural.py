"""Structural schemas of custom resources: prune, default and validate by the JSON schema of their definition.

Also turns such a schema into `model.schema` types, so that server-side apply treats custom objects like all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from phalanx.base.clock import parse_rfc3339
from phalanx.base.well_known import EMBEDDED_RESOURCE, INT_OR_STRING, LIST_MAP_KEYS, LIST_TYPE, PRESERVE_UNKNOWN_FIELDS
from phalanx.model import tables
from phalanx.model.decode import conform
from phalanx.model.fieldpath import child, duplicate, invalid, not_supported, required, shown, too_long, too_many
from phalanx.model.kinds import FieldError, Json, clone
from phalanx.model.pattern import compiled
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

MAP_TYPE = "x-kubernetes-map-type"
_HEAD = ("apiVersion", "kind", "metadata")


@dataclass(slots=True, eq=False)
class CustomObject(Object):
    """The record of a custom resource: knows its JSON schema too."""

    structural: Json = field(default_factory=dict)

    def shape(self, obj: Json) -> list[str]:
        """Conform the metadata and remove unknown fields, like `conform`; return texts for what was removed."""
        head = {name: obj[name] for name in _HEAD if name in obj}
        unknown = conform(head, _head_schema())
        if "metadata" in head:
            obj["metadata"] = head["metadata"]
        prune(obj, self.structural, "", unknown, root=True)
        _whole_numbers(obj)
        return unknown


_LARGEST_PLAIN = 1e21  # floats from here on are written with an exponent, as in Go


def _whole_numbers(value: Any) -> None:
    """Write 1.0 as 1, as kube-apiserver does when it writes JSON: clients send either for a whole number."""
    places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(places):
        if isinstance(item, float) and abs(item) < _LARGEST_PLAIN and item.is_integer():
            value[key] = int(item)
        elif isinstance(item, dict | list):
            _whole_numbers(item)


@lru_cache(maxsize=1)
def _head_schema() -> Object:
    text = Field("apiVersion", Scalar("string"))
    meta = tables.record("meta/v1.ObjectMeta")
    fields = {
        "apiVersion": text,
        "kind": Field("kind", Scalar("string")),
        "metadata": Field("metadata", meta, number=1),
    }
    return Object("meta/v1.CustomResource", fields)


# -- pruning and defaulting -------------------------------------------------------------------------------------


def prune(value: Any, schema: Json, path: str, unknown: list[str], *, root: bool = False) -> None:
    if isinstance(value, list):
        items = schema.get("items")
        if isinstance(items, dict):
            for i, item in enumerate(value):
                prune(item, items, f"{path}[{i}]", unknown)
        return
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    embedded = root or schema.get(EMBEDDED_RESOURCE)
    for name in list(value):
        at = child(path, name)
        if embedded and name in _HEAD:
            if name == "metadata" and not root:
                unknown += _head_errors(value, at)
            continue
        if name in properties:
            prune(value[name], properties[name], at, unknown)
        elif isinstance(extra, dict):
            prune(value[name], extra, at, unknown)
        elif extra is True or schema.get(PRESERVE_UNKNOWN_FIELDS):
            continue
        else:
            del value[name]
            unknown.append(f'unknown field "{at}"')


def _head_errors(embedded: Json, path: str) -> list[str]:
    """Conform the metadata of an embedded object; return the unknown fields, which are removed."""
    head = {"metadata": embedded["metadata"]}
    texts = conform(head, _head_schema())
    embedded["metadata"] = head["metadata"]
    return [text.replace('"metadata', f'"{path}', 1) for text in texts]


def set_defaults(value: Any, schema: Json) -> None:
    """Fill in defaults, and drop nulls where a null may not stand."""
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name, part in properties.items():
            if value.get(name, part) is None and not part.get("nullable"):
                del value[name]
            if name not in value and "default" in part:
                value[name] = clone(part["default"])
            if name in value:
                set_defaults(value[name], part)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for name in [name for name in value if name not in properties]:
                if value[name] is None and not extra.get("nullable"):
                    del value[name]
                else:
                    set_defaults(value[name], extra)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            set_defaults(item, schema["items"])


# -- validation -------------------------------------------------------------------------------------------------

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def validate(value: Any, schema: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if value is None:
        if not schema.get("nullable") and (schema.get("type") or schema.get(INT_OR_STRING)):
            wanted = schema.get("type") or "integer or string"
            errors.append(invalid(path, None, f'{path} in body must be of type {wanted}: "null"'))
        return errors
    if problem := _wrong_type(value, schema, path):
        return [problem]
    if schema.get(EMBEDDED_RESOURCE) and isinstance(value, dict):
        errors += [required(child(path, name), "must not be empty") for name in _HEAD[:2] if not value.get(name)]
    if schema.get("enum") and value not in schema["enum"]:
        errors.append(not_supported(path, value, [_enum_text(item) for item in schema["enum"]]))
    if isinstance(value, str):
        errors += _string(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        errors += _number(value, schema, path)
    elif isinstance(value, list):
        errors += _list(value, schema, path)
    elif isinstance(value, dict):
        errors += _object(value, schema, path)
    errors += _combined(value, schema, path)
    return errors


def _enum_text(item: Any) -> str:
    return item if isinstance(item, str) else shown(item)


def _wrong_type(value: Any, schema: Json, path: str) -> FieldError | None:
    if schema.get(INT_OR_STRING):
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return None
        return invalid(path, _named(value), f'{path} in body must be of type integer,string: "{_named(value)}"')
    wanted = schema.get("type")
    if not wanted or wanted not in _TYPES:
        return None
    if isinstance(value, bool) != (wanted == "boolean") and (isinstance(value, bool) or wanted == "boolean"):
        return invalid(path, _named(value), f'{path} in body must be of type {wanted}: "{_named(value)}"')
    if isinstance(value, _TYPES[wanted]) or (wanted == "integer" and isinstance(value, float) and value.is_integer()):
        return None
    return invalid(path, _named(value), f'{path} in body must be of type {wanted}: "{_named(value)}"')


def _named(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {dict: "object", list: "array", str: "string", int: "integer", float: "number"}
    return names.get(type(value), "null")


def _string(value: str, schema: Json, path: str) -> list[FieldError]:
    errors = []
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    if longest is not None and len(value) > longest:
        errors.append(too_long(path, longest))
    if shortest is not None and len(value) < shortest:
        errors.append(invalid(path, value, f"{path} in body should be at least {shortest} chars long"))
    pattern = schema.get("pattern")
    if pattern:
        matcher = compiled(pattern)
        if matcher is not None and matcher.search(value) is None:
            errors.append(invalid(path, value, f"{path} in body should match '{pattern}'"))
    if schema.get("format") == "date-time" and not _is_time(value):
        errors.append(invalid(path, value, f'{path} in body must be of type date-time: "{value}"'))
    return errors


def _is_time(value: str) -> bool:
    try:
        parse_rfc3339(value)
    except (ValueError, OverflowError):
        return False
    return "T" in value or "t" in value


_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def _number(value: float, schema: Json, path: str) -> list[FieldError]:
    errors = []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        errors.append(invalid(path, value, f"{path} in body should be {word} {_plain(low)}"))
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        errors.append(invalid(path, value, f"{path} in body should be {word} {_plain(high)}"))
    step = schema.get("multipleOf")
    if step and not _is_multiple(value, step):
        errors.append(invalid(path, value, f"{path} in body should be a multiple of {_plain(step)}"))
    bounds = _RANGES.get(schema.get("format") or "")
    if bounds and not bounds[0] <= value <= bounds[1]:
        errors.append(invalid(path, value, f"{path} in body must be of type {schema['format']}"))
    return errors


def _is_multiple(value: float, step: float) -> bool:
    try:
        return abs(value / step - round(value / step)) <= 1e-9
    except OverflowError:  # an integer that no float can represent
        return isinstance(value, int) and float(step).is_integer() and value % int(step) == 0


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _list(value: list[Any], schema: Json, path: str) -> list[FieldError]:
    errors = []
    most, least = schema.get("maxItems"), schema.get("minItems")
    if most is not None and len(value) > most:
        errors.append(too_many(path, len(value), most))
    if least is not None and len(value) < least:
        errors.append(invalid(path, len(value), f"{path} in body should have at least {least} items"))
    keys = schema.get(LIST_MAP_KEYS) if schema.get(LIST_TYPE) == "map" else None
    if keys or schema.get(LIST_TYPE) == "set":
        seen: set[str] = set()
        for i, item in enumerate(value):
            if keys:
                defaults = (schema.get("items") or {}).get("properties") or {}
                key: Any = (
                    {name: item.get(name, (defaults.get(name) or {}).get("default")) for name in keys}
                    if isinstance(item, dict)
                    else item
                )
            else:
                key = item
            text = shown(key)
            if text in seen:
                errors.append(duplicate(f"{path}[{i}]", key))
            seen.add(text)
    items = schema.get("items")
    if isinstance(items, dict):
        for i, item in enumerate(value):
            errors += validate(item, items, f"{path}[{i}]")
    return errors


def _object(value: Json, schema: Json, path: str) -> list[FieldError]:
    errors = [required(child(path, name)) for name in schema.get("required") or [] if name not in value]
    most, least = schema.get("maxProperties"), schema.get("minProperties")
    if most is not None and len(value) > most:
        errors.append(too_many(path, len(value), most))
    if least is not None and len(value) < least:
        errors.append(invalid(path, len(value), f"{path} in body should have at least {least} properties"))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name, item in value.items():
        part = properties.get(name, extra)
        if isinstance(part, dict):
            errors += validate(item, part, child(path, name))
    return errors


def _combined(value: Any, schema: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for part in schema.get("allOf") or []:
        errors += validate(value, part, path)
    choices = schema.get("anyOf")
    if choices and all(validate(value, part, path) for part in choices):
        errors.append(invalid(path, "", f'"{path}" must validate at least one schema (anyOf)'))
    choices = schema.get("oneOf")
    if choices:
        fitting = sum(not validate(value, part, path) for part in choices)
        if fitting != 1:
            found = "Found none valid" if not fitting else f"Found {fitting} valid alternatives"
            text = f'"{path}" must validate one and only one schema (oneOf). {found}'
            errors.append(invalid(path, "", text))
    refused = schema.get("not")
    if isinstance(refused, dict) and not validate(value, refused, path):
        errors.append(invalid(path, "", f'"{path}" must not validate the schema (not)'))
    return errors


# -- types ------------------------------------------------------------------------------------------------------


def custom_object(group: str, version: str, kind: str, schema: Json) -> CustomObject:
    """Build the record of a custom resource for everything that reads `model.schema`."""
    made = _type(schema, f"{group}/{version}.{kind}")
    fields = dict(made.fields) if isinstance(made, Object) else {}
    ordered = dict(_head_schema().fields)
    ordered.update({name: part for name, part in fields.items() if name not in _HEAD})
    return CustomObject(
        f"{group}/{version}.{kind}", ordered, doc=str(schema.get("description") or ""), structural=schema
    )


_SCALARS = {"string": "string", "boolean": "bool", "number": "double"}


def _type(schema: Json, name: str) -> Type:
    if schema.get(INT_OR_STRING):
        return Scalar("intorstring")
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), dict):
        item = _type(schema["items"], name)
        listed = schema.get(LIST_TYPE) or "atomic"
        if listed == "map":
            return ListOf(item, "map", tuple(schema.get(LIST_MAP_KEYS) or ()))
        return ListOf(item, "set" if listed == "set" else "atomic")
    if kind == "object":
        atomic = schema.get(MAP_TYPE) == "atomic"
        if schema.get("properties"):
            needed = schema.get("required") or []
            fields = {}
            for key, part in schema["properties"].items():
                doc = str(part.get("description") or "")
                inner = _type(part, f"{name}.{key}")
                fields[key] = Field(
                    key, inner, required=key in needed, pointer=True, doc=doc, default=part.get("default")
                )
            return Object(name, fields, doc=str(schema.get("description") or ""), atomic=atomic)
        if isinstance(schema.get("additionalProperties"), dict):
            return MapOf(_type(schema["additionalProperties"], name), atomic)
        return MapOf(Scalar("json"), atomic) if schema.get(PRESERVE_UNKNOWN_FIELDS) else Object(name, atomic=atomic)
    if kind == "integer":
        return Scalar("int32" if schema.get("format") == "int32" else "int64")
    if kind in _SCALARS:
        return Scalar(_SCALARS[kind])  # type: ignore[arg-type]
    return Scalar("json")
