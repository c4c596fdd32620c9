"""A custom resource for tests, CronTab: its definition with a bit of everything a schema may say, and its objects."""

from __future__ import annotations

import copy
from typing import Any

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{DEFINITIONS}/crontabs.stable.example.com"
CRONS = "/apis/stable.example.com/v1/namespaces/ns/crontabs"
SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties/spec"  # where a patch of the definition finds it

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["cron"],
    "properties": {
        "cron": {"type": "string", "pattern": r"^(\d+|\*)( (\d+|\*)){4}$"},
        "image": {"type": "string", "default": "busybox", "minLength": 1, "maxLength": 20},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
        "policy": {"type": "string", "enum": ["Allow", "Forbid"]},
        "port": {"x-kubernetes-int-or-string": True},
        "note": {"type": "string", "nullable": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "steps": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "run": {"type": "string", "default": "true"}},
            },
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "shape": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
}


def definition(**spec: Any) -> dict[str, Any]:
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": copy.deepcopy(SPEC), "status": status}}
        },
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "Cron", "type": "string", "jsonPath": ".spec.cron"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"]},
            "scope": "Namespaced",
            "versions": [version],
            **spec,
        },
    }


def cron(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stable.example.com/v1",
        "kind": "CronTab",
        "metadata": {"name": name},
        "spec": {"cron": "* * * * *", **spec},
    }


def properties(definition: dict[str, Any]) -> dict[str, Any]:
    """What the objects' spec may have."""
    found: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found["properties"]
