"""Protobuf bodies, as Go clients send them, read into the same values as JSON bodies."""

from __future__ import annotations

import base64
import json
import struct
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import BadRequest
from phalanx.model import builtin, protobuf, protobuf_writer, tables
from phalanx.model.conform import conform
from phalanx.model.decode import parse
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

# A writer like Go's: every field that is not a pointer is written, zero or not. For these tests only.


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tagged(number: int, wire: int, payload: bytes) -> bytes:
    return varint(number << 3 | wire) + payload


def block(number: int, payload: bytes) -> bytes:
    return tagged(number, 2, varint(len(payload)) + payload)


def encode_time(text: str) -> bytes:
    at = datetime.fromisoformat(text)
    return tagged(1, 0, varint(int(at.timestamp()))) + tagged(2, 0, varint(at.microsecond * 1000))


def encode_scalar(number: int, name: str, value: Any) -> bytes:
    if name in ("bool", "int32", "int64"):
        return tagged(number, 0, varint(int(value)))
    if name == "double":
        return tagged(number, 1, struct.pack("<d", value))
    if name == "string":
        return block(number, value.encode())
    if name == "bytes":
        return block(number, base64.b64decode(value))
    if name in ("time", "microtime"):
        return block(number, encode_time(value))
    if name == "quantity":
        return block(number, block(1, value.encode()))
    if name == "intorstring":
        if isinstance(value, str):
            return block(number, tagged(1, 0, varint(1)) + block(3, value.encode()))
        return block(number, tagged(1, 0, b"\0") + tagged(2, 0, varint(value)) + block(3, b""))
    assert name == "json"
    return block(number, block(1, json.dumps(value).encode()))


def encode_value(number: int, kind: Type, value: Any) -> bytes:
    if isinstance(kind, Object):
        return block(number, encode(kind, value))
    if isinstance(kind, ListOf):
        return block(number, b"".join(encode_value(1, kind.item, item) for item in value))
    assert isinstance(kind, Scalar)
    return encode_scalar(number, kind.name, value)


_ZERO: dict[str, Any] = {"bool": False, "int32": 0, "int64": 0, "double": 0.0, "string": "", "bytes": ""}


def encode(schema: Object, obj: dict[str, Any]) -> bytes:
    out = b""
    for field in schema.embedded:
        assert isinstance(field.type, Object)
        out += block(field.number, encode(field.type, obj))
    for field in schema.fields.values():
        value = obj.get(field.name)
        kind = field.type
        if not field.number:
            continue
        if isinstance(kind, ListOf):
            out += b"".join(encode_value(field.number, kind.item, item) for item in value or ())
        elif isinstance(kind, MapOf):
            for name, item in (value or {}).items():
                out += block(field.number, block(1, name.encode()) + encode_value(2, kind.value, item))
        elif value is not None:
            out += encode_value(field.number, kind, value)
        elif not field.pointer and isinstance(kind, Scalar) and kind.name in _ZERO:
            out += encode_value(field.number, kind, _ZERO[kind.name])
        elif not field.pointer and isinstance(kind, Scalar) and kind.name in ("time", "microtime"):
            out += block(field.number, b"")
    return out


def enveloped(schema: Object, obj: dict[str, Any]) -> bytes:
    meta = block(1, obj.get("apiVersion", "").encode()) + block(2, obj.get("kind", "").encode())
    return b"k8s\0" + block(1, meta) + block(2, encode(schema, obj)) + block(3, b"") + block(4, b"")


_TEXT = st.text("abz-é0", max_size=5)
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": _TEXT,
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=4).map(lambda raw: base64.b64encode(raw).decode()),
    "time": st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(lambda at: f"{at:%Y-%m-%dT%H:%M:%SZ}"),
    "microtime": st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(lambda at: f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"),
    "quantity": st.sampled_from(["0", "1", "500m", "1Gi", "1500M"]),
    "intorstring": st.integers(-(2**31), 2**31 - 1) | _TEXT,
    "json": st.dictionaries(_TEXT, st.integers() | _TEXT, max_size=2).map(lambda each: json.loads(json.dumps(each))),
}


@st.composite
def values(draw: st.DrawFn, kind: Type, depth: int) -> Any:
    if isinstance(kind, Scalar):
        return draw(_SCALARS[kind.name])
    if isinstance(kind, ListOf):
        return draw(st.lists(values(kind.item, depth + 1), max_size=2))
    if isinstance(kind, MapOf):
        return draw(st.dictionaries(_TEXT, values(kind.value, depth + 1), max_size=2))
    names = [
        name
        for name, field in kind.fields.items()
        if (field.number or field.inline) and not field.wire and _writable(field.type)
    ]
    if not names or depth > 5:
        return {}
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=4 if depth else 3))
    return {name: draw(values(kind.fields[name].type, depth + 1)) for name in chosen}


def _writable(kind: Type) -> bool:
    return not (isinstance(kind, Scalar) and kind.name == "duration")


_KINDS = [
    "core/v1.Pod", "core/v1.Node", "core/v1.Secret", "batch/v1.Job", "apps/v1.Deployment",
    "scheduling/v1beta1.Workload", "scheduling/v1alpha3.CompositePodGroup", "resource/v1.ResourceSlice",
    "policy/v1.PodDisruptionBudget", "authorization/v1.SelfSubjectAccessReview", "authentication/v1.SelfSubjectReview",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(_KINDS))
def test_what_go_writes_reads_as_the_same_object_as_json(data: st.DataObject, name: str) -> None:
    schema = tables.record(name)
    obj = data.draw(values(schema, 0))
    read = protobuf.decode(enveloped(schema, obj), schema)
    conform(read, schema)
    conform(obj, schema)
    assert _without_required_zeros(read, schema) == _without_required_zeros(obj, schema)


def _without_required_zeros(obj: Any, kind: Type) -> Any:
    """Go cannot tell a required zero from an absent one; neither does this comparison."""
    if isinstance(kind, Object):
        bare = {name: _without_required_zeros(value, kind.fields[name].type) for name, value in obj.items()}
        return {
            name: value
            for name, value in bare.items()
            if value or kind.fields[name].pointer or not (kind.fields[name].required or isinstance(value, dict))
        }
    if isinstance(kind, ListOf):
        return [_without_required_zeros(item, kind.item) for item in obj]
    if isinstance(kind, MapOf):
        return {name: _without_required_zeros(item, kind.value) for name, item in obj.items()}
    return obj


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(_KINDS))
def test_damaged_bodies_are_read_or_refused(data: st.DataObject, name: str) -> None:
    schema = tables.record(name)
    body = bytearray(enveloped(schema, data.draw(values(schema, 0))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(4, len(body)))
    try:
        found = protobuf.decode(bytes(body[:cut]), schema)
    except BadRequest:
        return
    json.dumps(found)


def test_an_explicit_zero_survives_in_pointer_fields_only() -> None:
    schema = tables.record("apps/v1.Deployment")
    obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 0}}
    read, _ = parse(enveloped(schema, obj), "application/vnd.kubernetes.protobuf", schema)
    conform(read, schema)
    assert read["spec"]["replicas"] == 0
    assert "minReadySeconds" not in read["spec"]
    assert "creationTimestamp" not in read["metadata"]


def test_embedded_records_are_flattened() -> None:
    schema = tables.record("core/v1.Pod")
    volume = {"name": "v", "emptyDir": {}}
    obj = {"spec": {"containers": [{"name": "c"}], "volumes": [volume]}}
    assert protobuf.decode(enveloped(schema, obj), schema)["spec"]["volumes"] == [volume]


def test_review_extras_are_lists_in_a_map() -> None:
    schema = tables.record("authorization/v1.SubjectAccessReview")
    obj = {"spec": {"user": "u", "extra": {"scopes": ["a", "b"]}}}
    assert protobuf.decode(enveloped(schema, obj), schema)["spec"]["extra"] == {"scopes": ["a", "b"]}


def test_definitions_of_custom_kinds_keep_their_schemas() -> None:
    schema = tables.record("apiextensions/v1.JSONSchemaProps")
    number = {field.name: field.number for field in schema.fields.values()}
    text = encode(schema, {"type": "string"})
    body = encode(schema, {"type": "object"})
    body += block(number["additionalProperties"], tagged(1, 0, b"\x01"))
    body += block(number["items"], block(1, text))
    body += block(number["default"], block(1, b"false"))
    body += block(number["enum"], block(1, b'"a"')) + block(number["enum"], block(1, b"1"))
    read = protobuf.decode(b"k8s\0" + block(2, body), schema)
    assert read == {
        "type": "object", "additionalProperties": True, "items": {"type": "string"}, "default": False, "enum": ["a", 1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nanos", "text"),
    [(0, "0s"), (1, "1ns"), (1500, "1.5µs"), (30_000_000, "30ms"), (90 * 10**9, "1m30s"), (-(10**9), "-1s"),
     (3_600_500_000_000, "1h0m0.5s")],
)  # fmt: skip
def test_durations_use_go_notation(nanos: int, text: str) -> None:
    schema = Object("x/v1.X")
    schema.fields["d"] = Field("d", Scalar("duration"), 1, pointer=True)
    assert protobuf.decode(b"k8s\0" + block(2, block(1, tagged(1, 0, varint(nanos)))), schema) == {"d": text}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(_KINDS))
def test_what_we_write_reads_as_the_same_object(data: st.DataObject, name: str) -> None:
    schema = tables.record(name)
    obj = data.draw(values(schema, 0))
    conform(obj, schema)
    read = protobuf.decode(protobuf_writer.write(obj, schema), schema)
    conform(read, schema)
    assert _without_required_zeros(read, schema) == _without_required_zeros(obj, schema)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(_KINDS))
def test_objects_of_a_list_are_written_as_they_are_alone(data: st.DataObject, name: str) -> None:
    schema = tables.record(name)
    known: protobuf_writer.Known = {}
    for _ in range(3):
        obj = {key: value for key, value in data.draw(values(schema, 0)).items() if value is not None}
        raw = msgspec.Raw(msgspec.json.encode(obj))
        assert protobuf_writer.message_of_json(raw, schema, known) == protobuf_writer.message(obj, schema)
        assert protobuf_writer.message_of_json(raw, schema, known) == protobuf_writer.message(obj, schema)


def test_a_definition_with_its_schema_survives_both_ways() -> None:
    schema = tables.record("apiextensions/v1.CustomResourceDefinition")
    inner = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1.5}},
        "additionalProperties": False,
        "default": {"a": [1, "x"]},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": inner}}
    obj = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    obj |= {"metadata": {"name": "x"}, "spec": {"group": "g", "scope": "Namespaced", "versions": [version]}}
    read = protobuf.decode(protobuf_writer.write(obj, schema), schema)
    assert read["spec"]["versions"][0]["schema"]["openAPIV3Schema"] == inner


def test_delete_options_can_be_protobuf() -> None:
    schema = builtin.body_schema("apps", "v1", "DeleteOptions")
    assert schema is not None
    obj = {"kind": "DeleteOptions", "apiVersion": "apps/v1", "propagationPolicy": "Background", "gracePeriodSeconds": 0}
    assert protobuf.decode(enveloped(schema, obj), schema) == obj


def test_kinds_without_a_schema_are_asked_to_use_json() -> None:
    body = enveloped(tables.record("core/v1.Pod"), {"apiVersion": "example.org/v1", "kind": "Widget"})
    with pytest.raises(BadRequest, match="Widget in version 'example.org/v1' cannot be sent as protobuf"):
        parse(body, "application/vnd.kubernetes.protobuf", None)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(_KINDS))
def test_good_objects_conform_alike_in_the_quick_and_the_careful_way(data: st.DataObject, name: str) -> None:
    schema = tables.record(name)
    quick = data.draw(values(schema, 0))
    careful = json.loads(json.dumps(quick)) | {"unknown": 1}
    assert conform(quick, schema) == []
    assert conform(careful, schema) == ['unknown field "unknown"']
    assert quick == careful
