"""Schemas of objects as data: fields, types, merge rules and protobuf numbers.

Everything that must agree about an object's shape (decoding, field validation, strategic merge, server-side apply,
protobuf, OpenAPI, explain) reads these values and nothing else. Tables that fill them live in `model/tables/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

ScalarName = Literal[
    "string", "bool", "int32", "int64", "double", "bytes",
    "time", "microtime", "duration", "quantity", "intorstring",
    "json",  # any JSON value, kept as it is (RawExtension, FieldsV1, CRD schema parts)
]  # fmt: skip


# How a union of the CRD schema language looks on the protobuf wire: schema or bool, one schema or many, …
Wire = Literal["", "orbool", "orarray", "orstrings"]


class Scalar(msgspec.Struct, frozen=True):
    name: ScalarName


@dataclass(slots=True, eq=False)
class Object:
    """A record. Mutable only while the tables are being linked (types refer to each other).

    `fields` is the JSON view: fields of embedded records appear here with inline=True and number 0. The protobuf
    wire nests them; `embedded` says under which number.
    """

    name: str  # "core/v1.PodSpec"
    fields: dict[str, Field] = field(default_factory=dict)
    embedded: tuple[Field, ...] = ()
    doc: str = ""
    atomic: bool = False  # x-kubernetes-map-type: atomic
    one_of: tuple[str, ...] = ()  # exactly one of these fields is set


class ListOf(msgspec.Struct, frozen=True):
    item: Type
    kind: Literal["atomic", "set", "map"] = "atomic"  # server-side apply: x-kubernetes-list-type
    keys: tuple[str, ...] = ()  # server-side apply: x-kubernetes-list-map-keys
    patch_merge: bool = False  # strategic merge: patchStrategy=merge
    patch_key: str = ""  # strategic merge: patchMergeKey ("" with patch_merge on scalars: a set)
    retain_keys: bool = False  # strategic merge: patchStrategy=retainKeys on the items


class MapOf(msgspec.Struct, frozen=True):
    value: Type
    atomic: bool = False  # x-kubernetes-map-type: atomic (label selectors' matchLabels are part of an atomic Object)


Type = Scalar | Object | ListOf | MapOf


class Checks(msgspec.Struct, frozen=True):
    """What a table declares about the values of a field, next to its limits."""

    nonempty: bool = False
    fixed: str = ""  # cannot change: "always", or while a gate is on ("+Gate") or off ("-Gate")
    fixed_items: bool = False  # a list: items change inside, and do not come or go
    kept: bool = False  # is not set or cleared after creation
    gate: str = ""  # while it is off the field is dropped, and refused if the stored object has it
    drop: str = ""  # while it is off the field is dropped

    @property
    def any(self) -> bool:
        return self != UNCHECKED


UNCHECKED = Checks()


class Field(msgspec.Struct, frozen=True):
    name: str  # JSON name
    type: Type
    number: int = 0  # protobuf field number; 0 = not on the protobuf wire
    required: bool = False  # must be present (OpenAPI "required"); emptiness is a validation rule, not schema
    pointer: bool = False  # optional pointer: an explicit zero value on the protobuf wire is kept
    retain_keys: bool = False  # strategic merge: patchStrategy=retainKeys on an object field (Deployment.strategy)
    inline: bool = False  # comes from an embedded record (e.g. VolumeSource): flat in JSON, nested in protobuf
    doc: str = ""
    default: object = None  # simple literal default for OpenAPI and CRDs; rules live in model.rules
    wire: Wire = ""
    atomic: bool = False  # server-side apply: an Object that is atomic at this place only
    limits: tuple[tuple[str, Any], ...] = ()  # as OpenAPI shows them: enum, minimum, maxItems, format, …
    checks: Checks = UNCHECKED
