"""Writes objects as Kubernetes protobuf, for the few clients that accept nothing else.

The mirror of `protobuf`: the same tables say what is written under which number. Zero values need not be written, since
readers take what is absent as zero.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from phalanx.model import tables
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

Json = dict[str, Any]
MAGIC = b"k8s\x00"
_SCHEMA_PROPS = "apiextensions/v1.JSONSchemaProps"
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_NANOS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def write(obj: Json, schema: Object) -> bytes:
    """An object in its envelope."""
    return enveloped(obj.get("apiVersion") or "", obj.get("kind") or "", message(obj, schema))


def write_list(api_version: str, kind: str, metadata: Json, items: Iterable[bytes]) -> bytes:
    """A list of objects that are messages already (without envelopes)."""
    raw = block(1, message(metadata, tables.record("meta/v1.ListMeta"))) + b"".join(block(2, each) for each in items)
    return enveloped(api_version, kind, raw)


def watch_frame(event: str, obj: bytes) -> bytes:
    """One event of a watch: its length, then the event around an object in its envelope."""
    body = block(1, event.encode()) + block(2, block(1, obj))
    return len(body).to_bytes(4, "big") + body


def enveloped(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = block(1, api_version.encode()) + block(2, kind.encode())
    return MAGIC + block(1, meta) + block(2, raw) + block(3, b"") + block(4, b"")


def message(obj: Json, schema: Object) -> bytes:
    parts: list[bytes] = []
    for inner in schema.embedded:
        assert isinstance(inner.type, Object)
        parts.append(block(inner.number, message(obj, inner.type)))
    for name, value in obj.items():
        field = schema.fields.get(name)
        if field is None or not field.number or value is None:
            continue
        kind = field.type
        if isinstance(kind, ListOf):
            parts += [_value(field.number, kind.item, item, field) for item in value]
        elif isinstance(kind, MapOf):
            for key, item in value.items():
                parts.append(block(field.number, block(1, key.encode()) + _value(2, kind.value, item, field)))
        else:
            parts.append(_value(field.number, kind, value, field))
    return b"".join(parts)


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def block(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _value(number: int, kind: Type, value: Any, field: Field) -> bytes:
    if isinstance(kind, Object):
        return block(number, message(value, kind))
    if isinstance(kind, ListOf):  # a list inside a map is a message of its own
        return block(number, b"".join(_value(1, kind.item, item, field) for item in value))
    assert isinstance(kind, Scalar), kind
    if field.wire:
        return block(number, _schema_union(value, field))
    if kind.name in ("bool", "int32", "int64"):
        return integer(number, int(value))
    if kind.name == "double":
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    return block(number, _text(kind.name, value))


def _text(name: str, value: Any) -> bytes:
    """The scalars that are blocks of bytes."""
    if name == "string":
        return str(value).encode()
    if name == "bytes":
        return base64.b64decode(value)
    if name in ("time", "microtime"):
        at = datetime.fromisoformat(value)
        return integer(1, int(at.timestamp())) + integer(2, at.microsecond * 1000)
    if name == "duration":
        return integer(1, _nanos(value))
    if name == "quantity":
        return block(1, str(value).encode())
    if name == "intorstring":
        if isinstance(value, str):
            return integer(1, 1) + block(3, value.encode())
        return integer(1, 0) + integer(2, value)
    return block(1, msgspec.json.encode(value))


def _nanos(text: str) -> int:
    total = sum(round(float(amount) * _NANOS[unit]) for amount, unit in _DURATION.findall(text))
    return -total if text.startswith("-") else total


def _schema_union(value: Any, field: Field) -> bytes:
    props = tables.record(_SCHEMA_PROPS)
    if field.wire == "orbool":
        return integer(1, value) if isinstance(value, bool) else integer(1, 1) + block(2, message(value, props))
    if isinstance(value, dict):
        return block(1, message(value, props))
    return b"".join(block(2, item.encode() if isinstance(item, str) else message(item, props)) for item in value)
