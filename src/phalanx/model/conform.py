"""Convert a decoded object in place to the form of its schema: types checked, unknown fields reported.

The result is what a Go client would send back after reading the object: no nulls, no zero values in fields that are
not pointers, no empty records where a record is optional, quantities and times in canonical notation. So a read and
write back by any client changes nothing.

Two ways through: compiled closures that know no paths, for the usual good object; and a walk that does know them,
taken from the start again as soon as anything is odd. This module must not apply defaults or validate meaning.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from phalanx.base.errors import BadRequest
from phalanx.model import quantity
from phalanx.model.kinds import Json
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

Convert = Callable[[Any], Any]
# Per field: (class of the value or None for "ask the converter", converter, whether a zero value is left out).
Entry = tuple[type | None, Convert | None, bool]

_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_DURATION = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)


class _NotSimple(Exception):
    """Something the fast way does not handle."""


def conform(
    obj: Json, schema: Object, *, prune: bool = True, zeros: bool = False, whole_floats: bool = False
) -> list[str]:
    """Check and canonicalise `obj` in place; return a text for each field that the schema lacks.

    Such a text is 'unknown field "spec.foo"'. Unknown fields are removed unless `prune` is false. `zeros` keeps zero
    values: in an applied configuration an explicit false is intended. `whole_floats` takes 1.0 for 1 in integer fields,
    as kube-apiserver does for custom resources only. Raises BadRequest, which names the field, if a type is wrong.
    """
    if not zeros:
        try:
            _compiled(schema)(obj)
            return []
        except (_NotSimple, quantity.BadQuantity):
            pass
    report = _Report(obj, schema, prune, zeros, whole_floats)
    _walk_object(obj, schema, "", report)
    return report.unknown


# The fast way

_made: dict[Object, Convert] = {}


def _compiled(schema: Object) -> Convert:
    made = _made.get(schema)
    if made is None:
        made = _made[schema] = _compile_object(schema)
    return made


def _compile_object(schema: Object) -> Convert:
    table: dict[str, Entry] = {}
    # Registered before its fields are compiled: records may contain themselves.
    _made[schema] = convert = _converter(table)
    for name, field in schema.fields.items():
        table[name] = (*_compile(field.type), _droppable(field))
    return convert


def _converter(table: dict[str, Entry]) -> Convert:
    get = table.get

    def convert(obj: Json) -> Json:
        drop: list[str] = []
        for name, value in obj.items():
            entry = get(name)
            if entry is None:
                raise _NotSimple
            cls, inner, droppable = entry
            if value:
                if value.__class__ is not cls and cls is not None:
                    raise _NotSimple
                if inner is not None:
                    new = inner(value)
                    if new is not value:
                        obj[name] = new
                    if droppable and not new:
                        drop.append(name)
            elif value is None or (droppable and (value.__class__ is cls or cls is None)):
                drop.append(name)
            elif (cls is not None and value.__class__ is not cls) or (inner is not None and cls in (str, None)):
                raise _NotSimple  # also the zero value of a time or quantity, which is rare
        for name in drop:
            del obj[name]
        return obj

    return convert


def _droppable(field: Field) -> bool:
    """Return True if Go leaves out the zero value of the field.

    Fields of custom resources, which have no number on the wire, keep what was written.
    """
    if field.required or field.pointer or not (field.number or field.inline):
        return False
    if isinstance(field.type, Scalar):
        return field.type.name in ("string", "bool", "int32", "int64", "double", "bytes")
    return True


def _compile(kind: Type) -> tuple[type | None, Convert | None]:
    if isinstance(kind, Scalar):
        return _SCALARS[kind.name]
    if isinstance(kind, Object):
        return dict, _compiled(kind)
    if isinstance(kind, ListOf):
        return list, _compile_list(*_compile(kind.item))
    return dict, _compile_map(*_compile(kind.value))


def _compile_list(cls: type | None, inner: Convert | None) -> Convert:
    def convert(items: list[Any]) -> list[Any]:
        for index, item in enumerate(items):
            if item.__class__ is not cls and (cls is not None or item is None):
                raise _NotSimple
            if inner is not None:
                new = inner(item)
                if new is not item:
                    items[index] = new
        return items

    return convert


def _compile_map(cls: type | None, inner: Convert | None) -> Convert:
    def convert(values: Json) -> Json:
        for name, value in values.items():
            if value.__class__ is not cls and (cls is not None or value is None):
                raise _NotSimple
            if inner is not None:
                new = inner(value)
                if new is not value:
                    values[name] = new
        return values

    return convert


def _int32(value: int) -> int:
    if _INT32[0] <= value <= _INT32[1]:
        return value
    raise _NotSimple


def _int64(value: int) -> int:
    if _INT64[0] <= value <= _INT64[1]:
        return value
    raise _NotSimple


def _double(value: Any) -> Any:
    if value.__class__ is float or value.__class__ is int:
        return value
    raise _NotSimple


def _int_or_string(value: Any) -> Any:
    if value.__class__ is str:
        return value
    if value.__class__ is int:
        return _int32(value)
    raise _NotSimple


def _quantity(value: Any) -> str:
    if value.__class__ is str or value.__class__ is int or value.__class__ is float:
        return quantity.canonical(value)
    raise _NotSimple


def _time(value: str) -> str:
    """Return an RFC 3339 time in UTC with whole seconds."""
    if _TIME.fullmatch(value) and _is_date(value):
        return value
    return f"{_instant(value):%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def _micro_time(value: str) -> str:
    if _MICRO_TIME.fullmatch(value) and _is_date(value):
        return value
    return f"{_instant(value):%Y-%m-%dT%H:%M:%S.%fZ}".rjust(27, "0")


def _is_date(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _instant(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None or len(value) < 20 or value[10] not in "Tt":
            raise _NotSimple
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _NotSimple from None


def is_duration(value: str) -> bool:
    """Return True if the text is a duration as Go writes it: 1h30m, 0.5s, 0."""
    return _DURATION.fullmatch(value) is not None


def duration_problem(value: str) -> str:
    """Return what Go says about a text that is no duration; "" for one."""
    if is_duration(value):
        return ""
    at = re.match(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))*", value)
    amount = re.match(r"\d+\.?\d*|\.\d+", value[at.end() :]) if at is not None else None
    if at is None or amount is None:
        return f'time: invalid duration "{value}"'
    unit = re.match(r"[^.\d]*", value[at.end() + amount.end() :])
    if unit is None or not unit.group():
        return f'time: missing unit in duration "{value}"'
    return f'time: unknown unit "{unit.group()}" in duration "{value}"'


def _duration(value: str) -> str:
    if is_duration(value):
        return value
    raise _NotSimple


def _bytes(value: str) -> str:
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        raise _NotSimple from None
    return value


_SCALARS: dict[str, tuple[type | None, Convert | None]] = {
    "string": (str, None),
    "bool": (bool, None),
    "int32": (int, _int32),
    "int64": (int, _int64),
    "double": (None, _double),
    "bytes": (str, _bytes),
    "time": (str, _time),
    "microtime": (str, _micro_time),
    "duration": (str, _duration),
    "quantity": (None, _quantity),
    "intorstring": (None, _int_or_string),
    "json": (None, None),
}


# The slow way: same rules, with paths


class _Report:
    """Collects unknown fields and words the refusal of a wrong type."""

    def __init__(self, obj: Json, schema: Object, prune: bool, zeros: bool, whole_floats: bool) -> None:
        self.unknown: list[str] = []
        self.whole_floats = whole_floats
        self.prune = prune
        self.zeros = zeros
        kind = obj.get("kind")
        version = obj.get("apiVersion")
        self.kind = kind if isinstance(kind, str) and kind else schema.name.rpartition(".")[2]
        self.version = version.rpartition("/")[2] if isinstance(version, str) and version else _version_of(schema)

    def refuse(self, detail: str) -> BadRequest:
        return BadRequest(f'{self.kind} in version "{self.version}" cannot be handled as a {self.kind}: {detail}')

    def wrong_type(self, path: str, value: Any, wanted: str) -> BadRequest:
        return self.refuse(f"json: cannot unmarshal {_found(value)} into field {path or '.'} of type {wanted}")


def _version_of(schema: Object) -> str:
    return schema.name.rpartition(".")[0].rpartition("/")[2]


def _found(value: Any) -> str:
    if value is True or value is False:
        return "bool"
    if isinstance(value, int | float):
        return f"number {value}"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "null"


def _name(kind: Type) -> str:
    if isinstance(kind, Scalar):
        return {"intorstring": "IntOrString", "quantity": "Quantity", "time": "Time"}.get(kind.name, kind.name)
    if isinstance(kind, Object):
        return kind.name.rpartition(".")[2]
    if isinstance(kind, ListOf):
        return f"[]{_name(kind.item)}"
    return f"map[string]{_name(kind.value)}"


def _walk_object(obj: Any, schema: Object, path: str, report: _Report) -> Json:
    if not isinstance(obj, dict):
        raise report.wrong_type(path, obj, _name(schema))
    for name in list(obj):
        value = obj[name]
        field = schema.fields.get(name)
        at = f"{path}.{name}" if path else name
        if field is None:
            report.unknown.append(f'unknown field "{at}"')
            if report.prune:
                del obj[name]
        elif value is None:
            del obj[name]
        else:
            new = obj[name] = _walk(value, field.type, at, report)
            if not new and not report.zeros and _droppable(field):
                del obj[name]
    return obj


def _walk(value: Any, kind: Type, path: str, report: _Report) -> Any:
    if value is None:
        value = _zero(kind)
        if value is None:
            return None
    if isinstance(kind, Object):
        return _walk_object(value, kind, path, report)
    if isinstance(kind, ListOf):
        if value.__class__ is not list:
            raise report.wrong_type(path, value, _name(kind))
        for index, item in enumerate(value):
            value[index] = _walk(item, kind.item, f"{path}[{index}]", report)
        return value
    if isinstance(kind, MapOf):
        if value.__class__ is not dict:
            raise report.wrong_type(path, value, _name(kind))
        for name, item in value.items():
            value[name] = _walk(item, kind.value, f"{path}.{name}", report)
        return value
    return _walk_scalar(value, kind, path, report)


def _walk_scalar(value: Any, kind: Scalar, path: str, report: _Report) -> Any:
    cls, convert = _SCALARS[kind.name]
    if report.whole_floats and kind.name in _INTEGERS and isinstance(value, float) and value.is_integer():
        value = int(value)
    if cls is not None and value.__class__ is not cls:
        raise report.wrong_type(path, value, _name(kind))
    if convert is None:
        return value
    try:
        return convert(value)
    except quantity.BadQuantity as problem:
        raise report.refuse(f"{path}: {problem}") from None
    except _NotSimple:
        if cls is str:
            raise report.refuse(f"{path}: {value[:64]!r} is not a valid {_TEXTS[kind.name]}") from None
        raise report.wrong_type(path, value, _name(kind)) from None


_INTEGERS = frozenset({"int32", "int64", "intorstring"})
_TEXTS = {
    "bytes": "base64 text",
    "time": "RFC 3339 time",
    "microtime": "RFC 3339 time",
    "duration": "duration such as 1h30m",
}


_ZEROS: dict[str, Any] = {
    "bool": False, "int32": 0, "int64": 0, "double": 0, "quantity": "0", "intorstring": 0, "duration": "0s",
    "string": "", "bytes": "",
}  # fmt: skip


def _zero(kind: Type) -> Any:
    """Return the zero value that Go decodes from a null in a list or a map.

    Times and free JSON stay null.
    """
    if isinstance(kind, Scalar):
        return _ZEROS.get(kind.name)
    return [] if isinstance(kind, ListOf) else {}
