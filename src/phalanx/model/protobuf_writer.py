"""Writes objects as Kubernetes protobuf, for the few clients that accept nothing else.

The mirror of `protobuf`: the same tables say what is written under which number. Zero values need not be written, since
readers take what is absent as zero.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from phalanx.base.clock import NANOSECONDS
from phalanx.model import tables
from phalanx.model.kinds import Json
from phalanx.model.protobuf import SCHEMA_PROPS
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

MAGIC = b"k8s\x00"
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def write(obj: Json, schema: Object) -> bytes:
    """Encode an object in its envelope."""
    return enveloped(obj.get("apiVersion") or "", obj.get("kind") or "", message(obj, schema))


def write_list(api_version: str, kind: str, metadata: Json, items: Iterable[bytes]) -> bytes:
    """Encode a list of objects that are messages already (without envelopes)."""
    raw = block(1, message(metadata, tables.record("meta/v1.ListMeta"))) + b"".join(block(2, each) for each in items)
    return enveloped(api_version, kind, raw)


def watch_frame(event: str, obj: bytes) -> bytes:
    """Encode one event of a watch: its length, then the event around an object in its envelope."""
    body = block(1, event.encode()) + block(2, block(1, obj))
    return len(body).to_bytes(4, "big") + body


def enveloped(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = block(1, api_version.encode()) + block(2, kind.encode())
    return MAGIC + block(1, meta) + block(2, raw) + block(3, b"") + block(4, b"")


def message(obj: Json, schema: Object) -> bytes:
    plan = _plans.get(id(schema))
    if plan is None:
        plan = _planned(schema)
    parts: list[bytes] = []
    for number, inner in plan.embedded:
        parts.append(block(number, message(obj, inner)))
    writers = plan.writers
    for name, value in obj.items():
        if value is not None and (writer := writers.get(name)) is not None:
            writer(value, parts)
    return b"".join(parts)


Known = dict[tuple["Writer", bytes], bytes]  # (writer of a field, its JSON) -> the field, encoded


def message_of_json(raw: msgspec.Raw, schema: Object, known: Known, levels: int = 1) -> bytes:
    """Encode JSON. Objects of a list have much in common, so `known` keeps what fields were encoded as.

    levels: how many levels of objects are looked into; what is below is one value. `known`: for one list only.
    """
    plan = _plans.get(id(schema)) or _planned(schema)
    if plan.embedded:
        return message(msgspec.json.decode(raw), schema)
    parts: list[bytes] = []
    writers, objects = plan.writers, plan.objects
    for name, value in _fields(raw).items():
        if (writer := writers.get(name)) is None:
            continue
        text = bytes(value)
        if levels and name in objects and text != b"null":
            number, kind = objects[name]
            parts.append(block(number, message_of_json(value, kind, known, levels - 1)))
        elif (encoded := known.get((writer, text))) is not None:
            parts.append(encoded)
        elif text != b"null":
            made: list[bytes] = []
            writer(msgspec.json.decode(text), made)
            parts += made
            if name not in UNIQUE and len(known) < MOST_KNOWN:
                known[writer, text] = b"".join(made)
    return b"".join(parts)


MOST_KNOWN = 10_000  # fields
UNIQUE = frozenset({"name", "uid", "resourceVersion", "generateName", "podIP", "podIPs"})  # differ in each object
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Writer = Callable[[Any, list[bytes]], None]  # (value, parts of the message so far)


class _Plan(NamedTuple):
    """How the fields of a schema are written: decided once, since a list has thousands of objects of one schema."""

    schema: Object  # keeps its id from being used again
    embedded: tuple[tuple[int, Object], ...]
    writers: dict[str, Writer]
    objects: dict[str, tuple[int, Object]]  # the fields that are objects


_plans: dict[int, _Plan] = {}  # by id of the schema
_LENGTHS = tuple(bytes((n,) if n < 0x80 else (n & 0x7F | 0x80, n >> 7)) for n in range(0x1000))


def _planned(schema: Object) -> _Plan:
    embedded: list[tuple[int, Object]] = []
    for inner in schema.embedded:
        assert isinstance(inner.type, Object)
        embedded.append((inner.number, inner.type))
    writers = {name: _field_writer(each) for name, each in schema.fields.items() if each.number}
    objects = {name: (each.number, each.type) for name, each in schema.fields.items() if isinstance(each.type, Object)}
    plan = _plans[id(schema)] = _Plan(schema, tuple(embedded), writers, objects)
    return plan


def _field_writer(field: Field) -> Writer:
    kind = field.type
    if isinstance(kind, ListOf):
        write_item = _writer(field.number, kind.item, field)

        def write_all(value: Any, parts: list[bytes]) -> None:
            for item in value:
                write_item(item, parts)

        return write_all
    if isinstance(kind, MapOf):
        write_value = _writer(2, kind.value, field)

        def write_entries(value: Any, parts: list[bytes]) -> None:
            for key, item in value.items():
                entry = [block(1, key.encode())]
                write_value(item, entry)
                parts.append(block(field.number, b"".join(entry)))

        return write_entries
    return _writer(field.number, kind, field)


def _writer(number: int, kind: Type, field: Field) -> Writer:
    """Return the writer of one value under a number."""
    tag = _varint(number << 3 | 2)
    if isinstance(kind, Object):
        return _blocks(tag, lambda value: message(value, kind))
    if isinstance(kind, ListOf):  # a list inside a map is a message of its own
        write_item = _writer(1, kind.item, field)

        def inner(value: Any) -> bytes:
            items: list[bytes] = []
            for item in value:
                write_item(item, items)
            return b"".join(items)

        return _blocks(tag, inner)
    assert isinstance(kind, Scalar), kind
    if field.wire:
        return _blocks(tag, lambda value: _schema_union(value, field))
    if kind.name in ("bool", "int32", "int64"):
        plain = _varint(number << 3)
        return lambda value, parts: parts.append(plain + _varint(int(value)))
    if kind.name == "double":
        fixed = _varint(number << 3 | 1)
        return lambda value, parts: parts.append(fixed + struct.pack("<d", value))
    if kind.name == "string":
        return _strings(tag)
    return _blocks(tag, partial(_text, kind.name))


def _blocks(tag: bytes, encode: Callable[[Any], bytes]) -> Writer:
    def write_block(value: Any, parts: list[bytes]) -> None:
        data = encode(value)
        size = len(data)
        parts.append(tag + (_LENGTHS[size] if size < 0x1000 else _varint(size)) + data)

    return write_block


def _strings(tag: bytes) -> Writer:
    """Return a writer of strings.

    It does the same as `_blocks` without a function call per value, since most values are strings.
    """

    def write_string(value: Any, parts: list[bytes]) -> None:
        data = (value if type(value) is str else str(value)).encode()
        size = len(data)
        parts.append(tag + (_LENGTHS[size] if size < 0x1000 else _varint(size)) + data)

    return write_string


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


def _text(name: str, value: Any) -> bytes:
    """Encode a scalar that is a block of bytes but not a string."""
    if name == "bytes":
        return base64.b64decode(value)
    if name in ("time", "microtime"):
        return _time(value)
    if name == "duration":
        return integer(1, _nanos(value))
    if name == "quantity":
        return block(1, str(value).encode())
    if name == "intorstring":
        if isinstance(value, str):
            return integer(1, 1) + block(3, value.encode())
        return integer(1, 0) + integer(2, value)
    return block(1, msgspec.json.encode(value))


@lru_cache(maxsize=1024)
def _time(text: str) -> bytes:
    """Encode a time. It is cached, since many objects of a list have the same times."""
    at = datetime.fromisoformat(text)
    return integer(1, int(at.timestamp())) + integer(2, at.microsecond * 1000)


def _nanos(text: str) -> int:
    total = sum(round(float(amount) * NANOSECONDS[unit]) for amount, unit in _DURATION.findall(text))
    return -total if text.startswith("-") else total


def _schema_union(value: Any, field: Field) -> bytes:
    props = tables.record(SCHEMA_PROPS)
    if field.wire == "orbool":
        return integer(1, value) if isinstance(value, bool) else integer(1, 1) + block(2, message(value, props))
    if isinstance(value, dict):
        return block(1, message(value, props))
    return b"".join(block(2, item.encode() if isinstance(item, str) else message(item, props)) for item in value)
