"""The OpenAPI v2 document as a protobuf message (gnostic's), the form that client-go's discovery asks for."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from phalanx.model.protobuf_writer import block, integer

_TEXTS = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_DOUBLES = {"multipleOf": 6, "maximum": 7, "minimum": 9}
_NUMBERS = {
    "exclusiveMaximum": 8, "exclusiveMinimum": 10, "maxLength": 11, "minLength": 12, "maxItems": 14, "minItems": 15,
    "uniqueItems": 16, "maxProperties": 17, "minProperties": 18,
}  # fmt: skip


def document(title: str, version: str, definitions: Iterable[bytes]) -> bytes:
    """Encode an OpenAPI v2 document without paths.

    `definitions`: what `definition` made of each.
    """
    info = block(1, title.encode()) + block(2, version.encode())
    return block(1, b"2.0") + block(2, info) + block(8, b"") + block(9, b"".join(definitions))


def definition(name: str, schema: Mapping[str, Any]) -> bytes:
    """Encode one entry of the definitions."""
    return block(1, _named(name, _schema(schema)))


def _named(name: str, value: bytes) -> bytes:
    return block(1, name.encode()) + block(2, value)


def _any(value: Any) -> bytes:
    return block(2, msgspec.json.encode(value))  # YAML, which JSON is


def _schema(written: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    for name, value in written.items():
        if name in _TEXTS:
            parts.append(block(_TEXTS[name], str(value).encode()))
        elif name in _NUMBERS:
            parts.append(integer(_NUMBERS[name], int(value)))
        elif name in _DOUBLES:
            parts.append(bytes((_DOUBLES[name] << 3 | 1,)) + struct.pack("<d", value))
        elif name.startswith("x-"):
            parts.append(block(31, _named(name, _any(value))))
        else:
            parts.append(_structure(name, value))
    return b"".join(parts)


def _structure(name: str, value: Any) -> bytes:
    match name:
        case "default":
            return block(5, _any(value))
        case "required":
            return b"".join(block(19, each.encode()) for each in value)
        case "enum":
            return b"".join(block(20, _any(each)) for each in value)
        case "additionalProperties":
            return block(21, integer(2, int(value)) if isinstance(value, bool) else block(1, _schema(value)))
        case "type":
            return block(22, block(1, str(value).encode()))
        case "items":
            return block(23, block(1, _schema(value)))
        case "properties":
            return block(25, b"".join(definition(inner, schema) for inner, schema in value.items()))
        case "example":
            return block(30, _any(value))
    return b""  # nothing that v2 has a word for
