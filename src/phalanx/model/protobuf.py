"""Decodes Kubernetes protobuf request bodies into the same JSON values that a JSON body would give.

Go writers emit the zero value of every field that is not a pointer, so zeros are dropped unless the field is one.
Anything malformed is a BadRequest. `protobuf_writer` is the way back.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from phalanx.base.errors import BadRequest
from phalanx.model import tables
from phalanx.model.kinds import Json
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type
from phalanx.model.yaml_body import MAX_VALUES, too_many_values

MAGIC = b"k8s\x00"
_MAX_DEPTH = 100  # levels of messages; real objects stay below 30
SCHEMA_PROPS = "apiextensions/v1.JSONSchemaProps"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Envelope(NamedTuple):
    api_version: str
    kind: str
    raw: bytes
    content_type: str


def envelope(body: bytes) -> Envelope:
    """Read the runtime.Unknown around an object: its apiVersion and kind, its bytes and content type."""
    if body[:4] != MAGIC:
        raise BadRequest("the body of the request is not Kubernetes protobuf: it does not start with k8s\\0")
    api_version = kind = content_type = ""
    raw = b""
    for number, wire, value in _records(memoryview(body)[4:]):
        if wire != 2:
            continue
        if number == 1:
            for inner, inner_wire, text in _records(value):
                if inner_wire == 2 and inner == 1:
                    api_version = _text(text)
                elif inner_wire == 2 and inner == 2:
                    kind = _text(text)
        elif number == 2:
            raw = bytes(value)
        elif number == 3 and len(value):
            raise BadRequest(f"protobuf content encoding {_text(value)[:64]!r} is not supported")
        elif number == 4:
            content_type = _text(value)
    return Envelope(api_version, kind, raw, content_type)


def decode(body: bytes, schema: Object | None) -> Json:
    """Decode the object in an enveloped body."""
    api_version, kind, raw, _ = envelope(body)
    if schema is None:
        raise BadRequest(f"{kind or 'this kind'} in version {api_version!r} cannot be sent as protobuf: send JSON")
    obj: Json = {}
    if api_version:
        obj["apiVersion"] = api_version
    if kind:
        obj["kind"] = kind
    _message(memoryview(raw), schema, obj, 0)
    return obj


# The wire format


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
            if shift > 63:
                raise BadRequest("error parsing protobuf: a number is longer than 64 bits")
    except IndexError:
        raise BadRequest("error parsing protobuf: unexpected end of data") from None


def _records(data: memoryview) -> list[tuple[int, int, Any]]:
    """Return (field number, wire type, value) of each field of a message.

    A value of wire type 2 is memory; the others are unsigned integers.
    """
    found: list[tuple[int, int, Any]] = []
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Any
        if number == 0:
            raise BadRequest("error parsing protobuf: field number 0")
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value = data[at : at + size]
            at += size
        elif wire == 1:
            value = int.from_bytes(data[at : at + 8], "little")
            at += 8
        elif wire == 5:
            value = int.from_bytes(data[at : at + 4], "little")
            at += 4
        else:
            raise BadRequest(f"error parsing protobuf: wire type {wire} is not used by Kubernetes")
        if at > end:
            raise BadRequest("error parsing protobuf: unexpected end of data")
        found.append((number, wire, value))
        if len(found) > MAX_VALUES:
            raise too_many_values("protobuf")
    return found


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest("error parsing protobuf: text is not UTF-8") from None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# Messages

_numbers: dict[Object, dict[int, Field]] = {}


def _fields(schema: Object) -> dict[int, Field]:
    found = _numbers.get(schema)
    if found is None:
        found = {field.number: field for field in schema.fields.values() if field.number}
        found.update((field.number, field) for field in schema.embedded)
        _numbers[schema] = found
    return found


def _message(data: memoryview, schema: Object, into: Json, depth: int) -> Json:
    if depth > _MAX_DEPTH:
        raise BadRequest(f"error parsing protobuf: nested deeper than {_MAX_DEPTH} levels")
    fields = _fields(schema)
    for number, wire, raw in _records(data):
        field = fields.get(number)
        if field is None:
            continue  # newer clients may know more fields than this server
        kind = field.type
        if field.inline:
            _expect(wire, 2, field)
            assert isinstance(kind, Object)
            _message(raw, kind, into, depth + 1)
        elif isinstance(kind, ListOf):
            _append(into.setdefault(field.name, []), kind.item, wire, raw, field, depth)
        elif isinstance(kind, MapOf):
            _expect(wire, 2, field)
            name, value = _entry(raw, kind.value, field, depth)
            into.setdefault(field.name, {})[name] = value
        else:
            value = _value(kind, wire, raw, field, depth)
            if value is not None and (field.pointer or field.required or not _is_zero(kind, value)):
                into[field.name] = value
            else:
                into.pop(field.name, None)
    return into


def _is_zero(kind: Type, value: Any) -> bool:
    return not value and not (isinstance(kind, Scalar) and kind.name in ("intorstring", "json"))


def _expect(wire: int, wanted: int, field: Field) -> None:
    if wire != wanted:
        raise BadRequest(f"error parsing protobuf: field {field.name} has wire type {wire}, expected {wanted}")


def _append(into: list[Any], item: Type, wire: int, raw: Any, field: Field, depth: int) -> None:
    if wire == 2 and isinstance(item, Scalar) and item.name in ("int32", "int64", "bool"):
        at = 0  # packed
        while at < len(raw):
            number, at = _varint(raw, at)
            into.append(bool(number) if item.name == "bool" else _signed(number))
        return
    into.append(_value(item, wire, raw, field, depth))


def _entry(raw: memoryview, kind: Type, field: Field, depth: int) -> tuple[str, Any]:
    """Decode one entry of a map: {1: key, 2: value}; a missing value is the zero value."""
    name, value = "", None
    present = False
    for number, wire, inner in _records(raw):
        if number == 1:
            _expect(wire, 2, field)
            name = _text(inner)
        elif number == 2:
            present = True
            value = _value(kind, wire, inner, field, depth)
    if not present:
        value = _value(kind, _natural_wire(kind), _empty(kind), field, depth)
    return name, value


def _natural_wire(kind: Type) -> int:
    if isinstance(kind, Scalar):
        return {"bool": 0, "int32": 0, "int64": 0, "double": 1}.get(kind.name, 2)
    return 2


def _empty(kind: Type) -> Any:
    return memoryview(b"") if _natural_wire(kind) == 2 else 0


def _value(kind: Type, wire: int, raw: Any, field: Field, depth: int) -> Any:
    _expect(wire, _natural_wire(kind), field)
    if isinstance(kind, Object):
        return _message(raw, kind, {}, depth + 1)
    if isinstance(kind, Scalar):
        if field.wire:
            return _schema_union(raw, field, depth)
        return _SCALARS[kind.name](raw)
    if isinstance(kind, ListOf):  # a list inside a map: a message of its own with the items in field 1
        items: list[Any] = []
        for number, inner_wire, inner in _records(raw):
            if number == 1:
                _append(items, kind.item, inner_wire, inner, field, depth + 1)
        return items
    raise BadRequest(f"error parsing protobuf: field {field.name} cannot hold a map here")


def _schema_union(raw: memoryview, field: Field, depth: int) -> Any:
    """Decode a union of the CRD schema language: a schema, or true / false, or several, or names."""
    schema: Any = None
    many: list[Any] = []
    allows = False
    props = tables.record(SCHEMA_PROPS)
    schema_number = 2 if field.wire == "orbool" else 1
    for number, wire, inner in _records(raw):
        if number == schema_number:
            _expect(wire, 2, field)
            schema = _message(inner, props, {}, depth + 1)
        elif field.wire == "orbool":
            _expect(wire, 0, field)
            allows = bool(inner)
        else:
            _expect(wire, 2, field)
            many.append(_text(inner) if field.wire == "orstrings" else _message(inner, props, {}, depth + 1))
    if schema is not None:
        return schema
    return allows if field.wire == "orbool" else many


# Scalars


def _double(raw: int) -> float:
    value: float = struct.unpack("<d", raw.to_bytes(8, "little"))[0]
    if value - value != 0:
        raise BadRequest("error parsing protobuf: infinity and NaN are not allowed in an object")
    return value


def _parts(raw: memoryview) -> dict[int, Any]:
    return {number: value for number, _, value in _records(raw)}


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise BadRequest("error parsing protobuf: a number was expected")
    return _signed(value)


def _bytes_of(value: Any) -> memoryview:
    if not isinstance(value, memoryview):
        raise BadRequest("error parsing protobuf: text was expected")
    return value


def _instant(raw: memoryview) -> datetime | None:
    parts = _parts(raw)
    seconds, nanos = _number(parts.get(1, 0)), _number(parts.get(2, 0))
    if not seconds and not nanos:
        return None  # Go's zero time
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise BadRequest("error parsing protobuf: a time is out of range") from None


def _time(raw: memoryview) -> str | None:
    at = _instant(raw)
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def _micro_time(raw: memoryview) -> str | None:
    at = _instant(raw)
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}".rjust(27, "0")


def _duration(raw: memoryview) -> str:
    """Format a duration as Go does: 1h2m3.5s."""
    nanos = _number(_parts(raw).get(1, 0))
    if nanos == 0:
        return "0s"
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if nanos < size * 1000:
            return f"{sign}{_fraction(nanos, size)}{unit}"
    minutes, rest = divmod(nanos, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{_fraction(rest, 1_000_000_000)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return sign + (f"{hours}h{text}" if hours else text)


def _fraction(value: int, size: int) -> str:
    whole, rest = divmod(value, size)
    return f"{whole}.{rest:0{len(str(size)) - 1}d}".rstrip("0") if rest else str(whole)


def _quantity(raw: memoryview) -> str:
    return _text(_bytes_of(_parts(raw).get(1, memoryview(b"0"))))


def _int_or_string(raw: memoryview) -> int | str:
    parts = _parts(raw)
    if _number(parts.get(1, 0)) == 1:
        return _text(_bytes_of(parts.get(3, memoryview(b""))))
    return _number(parts.get(2, 0))


def _any_json(raw: memoryview) -> Any:
    """Decode a RawExtension, FieldsV1 or JSON: encoded JSON in field 1."""
    inner = _bytes_of(_parts(raw).get(1, memoryview(b"")))
    if not len(inner):
        return None
    try:
        return msgspec.json.decode(inner)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequest(f"error parsing protobuf: embedded JSON: {problem}") from None


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "string": _text,
    "bool": bool,
    "int32": _signed,
    "int64": _signed,
    "double": _double,
    "bytes": lambda raw: base64.b64encode(raw).decode("ascii"),
    "time": _time,
    "microtime": _micro_time,
    "duration": _duration,
    "quantity": _quantity,
    "intorstring": _int_or_string,
    "json": _any_json,
}
