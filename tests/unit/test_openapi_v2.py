"""OpenAPI v2: every kind is defined, no reference leads nowhere, and custom kinds say what v2 can say."""

from __future__ import annotations

import json
from typing import Any

from phalanx.model import builtin, protobuf
from phalanx.model.gates import Gates
from phalanx.model.kinds import Kind, Version
from phalanx.model.openapi_v2 import Swagger, definition
from phalanx.model.schema import Object
from support.schemas import references

GVK = [{"group": "example.com", "version": "v1", "kind": "Widget"}]


def test_every_kind_is_defined_and_every_reference_leads_somewhere() -> None:
    registry = builtin.registry(Gates())
    document = json.loads(Swagger(registry).document()[0])
    definitions = document["definitions"]
    assert {name.removeprefix("#/definitions/") for name in references(document)} <= set(definitions)
    found = {
        (gvk["group"], gvk["version"], gvk["kind"])
        for schema in definitions.values()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
    }
    assert {(kind.group, version.name, kind.kind) for kind in registry.all() for version in kind.versions} <= found
    assert definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] == {"type": "string"}


def test_a_custom_kind_comes_and_goes() -> None:
    registry = builtin.registry(Gates())
    swagger = Swagger(registry)
    before = swagger.document()
    written = {"type": "object", "properties": {"spec": {"type": "object", "description": "What it is."}}}
    registry.add(custom(written))
    text, digest = swagger.document()
    found = json.loads(text)["definitions"]["com.example.v1.Widget"]
    assert found["properties"]["spec"] == written["properties"]["spec"]
    assert found["properties"]["metadata"]["$ref"] == "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    assert digest != before[1]
    registry.remove("widgets.example.com")
    assert swagger.document() == before


def test_what_v2_cannot_say_is_left_out() -> None:
    maybe = {"type": "string", "nullable": True}
    written: dict[str, Any] = {
        "type": "object",
        "required": ["a", "b"],
        "properties": {
            "a": maybe,
            "b": {"type": "integer", "anyOf": [{"minimum": 1}]},
            "c": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"d": {}}},
        },
    }
    found = definition(written)
    assert found["required"] == ["b"]
    assert found["properties"] == {
        "a": {},
        "b": {"type": "integer"},
        "c": {"x-kubernetes-preserve-unknown-fields": True},
    }
    everything = {**written, "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-group-version-kind": GVK}
    assert definition(everything) == {"type": "object", "x-kubernetes-group-version-kind": GVK}


def custom(written: dict[str, Any]) -> Kind:
    version = Version("v1", Object("example/v1.Widget", {}), openapi=written)
    return Kind("Widget", "example.com", "widgets", (version,), "v1")


def test_the_same_in_protobuf_names_every_definition_with_its_kind() -> None:
    """As client-go's discovery reads it: definitions = 9, each a name and a schema; extensions = 31, as YAML."""
    registry = builtin.registry(Gates())
    swagger = Swagger(registry)
    registry.add(custom({"type": "object", "properties": {"spec": {"type": "object", "maxProperties": 3}}}))
    (definitions,) = [value for number, _, value in protobuf._records(memoryview(swagger.message())) if number == 9]
    found = {}
    for _, _, entry in protobuf._records(definitions):
        name, schema = (value for _, _, value in protobuf._records(entry))
        found[bytes(name).decode()] = list(protobuf._records(schema))
    assert set(found) == set(json.loads(swagger.document()[0])["definitions"])
    widget = found["com.example.v1.Widget"]
    ((_, _, extension),) = [field for field in widget if field[0] == 31]
    name, value = (value for _, _, value in protobuf._records(extension))
    assert bytes(name) == b"x-kubernetes-group-version-kind"
    ((_, _, text),) = protobuf._records(value)
    assert json.loads(bytes(text)) == GVK
    registry.remove("widgets.example.com")
    assert b"com.example.v1.Widget" not in swagger.message()
