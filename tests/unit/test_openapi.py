"""OpenAPI v3 as kubectl reads it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from phalanx.model import builtin
from phalanx.model.gates import Gates
from phalanx.model.kinds import Kind, Version
from phalanx.model.openapi import OpenApi, build
from phalanx.model.schema import Object
from support.schemas import references

REGISTRY = builtin.registry(Gates())


@pytest.mark.parametrize(("group", "version"), REGISTRY.group_versions())
def test_every_reference_leads_somewhere_and_every_kind_is_found(group: str, version: str) -> None:
    document = build(REGISTRY, group, version)
    schemas = document["components"]["schemas"]
    assert set(references(document)) <= set(schemas)
    found = {
        gvk["kind"]
        for schema in schemas.values()
        for gvk in schema.get("x-kubernetes-group-version-kind", ())
        if (gvk["group"], gvk["version"]) == (group, version)
    }
    served = {
        kind.kind for kind in REGISTRY.all() if kind.group == group and version in [v.name for v in kind.versions]
    }
    assert served <= found


@pytest.mark.parametrize("kind", [kind for kind in REGISTRY.all() if "patch" in kind.verbs], ids=lambda kind: kind.key)
def test_kubectl_may_ask_for_field_validation_on_every_kind(kind: Kind) -> None:
    for version in kind.versions:
        gvk = {"group": kind.group, "version": version.name, "kind": kind.kind}
        patches = [
            item["patch"]
            for item in build(REGISTRY, kind.group, version.name)["paths"].values()
            if item.get("patch", {}).get("x-kubernetes-group-version-kind") == gvk
        ]
        assert patches
        assert all("fieldValidation" in [each["name"] for each in patch["parameters"]] for patch in patches)


def test_explain_finds_words_and_merge_rules() -> None:
    schemas = build(REGISTRY, "", "v1")["components"]["schemas"]
    pod = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert pod["nodeName"]["description"]
    assert pod["containers"]["x-kubernetes-list-map-keys"] == ["name"]
    assert pod["containers"]["x-kubernetes-patch-merge-key"] == "name"
    assert pod["volumes"]["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    assert pod["affinity"]["allOf"] == [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Affinity"}]
    assert schemas["io.k8s.api.core.v1.PodSpec"]["required"] == ["containers"]


def test_versions_of_one_shape_are_described_apart() -> None:
    for version in ("v1beta1", "v1alpha3"):
        schemas = build(REGISTRY, "scheduling.k8s.io", version)["components"]["schemas"]
        assert schemas[f"io.k8s.api.scheduling.{version}.Workload"]["x-kubernetes-group-version-kind"] == [
            {"group": "scheduling.k8s.io", "version": version, "kind": "Workload"}
        ]


def test_strategic_merge_is_not_offered_for_custom_resources() -> None:
    paths = build(REGISTRY, "jobset.x-k8s.io", "v1alpha2")["paths"]
    patch = paths["/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
    assert "application/merge-patch+json" in patch["requestBody"]["content"]


def _widget(schema: dict[str, Any]) -> Kind:
    return Kind(
        "Widget", "example.org", "widgets", (Version("v1", Object("example.org/v1.Widget"), openapi=schema),), "v1",
        strategic=False,
    )  # fmt: skip


def test_custom_resources_come_and_go_and_change() -> None:
    registry = builtin.registry(Gates())
    openapi = OpenApi(registry)
    assert openapi.document("example.org", "v1") is None
    pods = openapi.document("", "v1")
    registry.add(_widget({"type": "object", "properties": {"spec": {"type": "object", "description": "first"}}}))
    first = openapi.document("example.org", "v1")
    assert first is not None
    document = json.loads(first[0])
    widget = document["components"]["schemas"]["org.example.v1.Widget"]
    assert widget["properties"]["spec"]["description"] == "first"
    assert widget["properties"]["metadata"]
    registry.add(_widget({"type": "object", "properties": {"spec": {"type": "object", "description": "second"}}}))
    second = openapi.document("example.org", "v1")
    assert second is not None
    assert second[1] != first[1]
    assert b"second" in second[0]
    assert openapi.document("", "v1") == pods
    registry.remove("widgets.example.org")
    assert openapi.document("example.org", "v1") is None


def test_the_index_leads_to_documents_by_hash() -> None:
    openapi = OpenApi(REGISTRY)
    paths = msgspec.json.decode(openapi.index())["paths"]
    assert set(paths) >= {"api/v1", "apis/scheduling.k8s.io/v1beta1", "apis/apps/v1"}
    found = openapi.document("apps", "v1")
    assert found is not None
    assert paths["apis/apps/v1"]["serverRelativeURL"] == f"/openapi/v3/apis/apps/v1?hash={found[1]}"
    again = OpenApi(builtin.registry(Gates())).document("apps", "v1")
    assert again == found  # a restart does not make clients download everything again


@pytest.mark.parametrize(
    ("component", "field", "said"),
    [
        ("io.x-k8s.jobset.v1alpha2.ReplicatedJob", "replicas", {"default": 1, "minimum": 0}),
        ("io.x-k8s.jobset.v1alpha2.ReplicatedJob", "groupName", {"default": "default"}),
        ("io.x-k8s.jobset.v1alpha2.SuccessPolicy", "operator", {"enum": ["All", "Any"]}),
        ("io.x-k8s.jobset.v1alpha2.JobSetSpec", "volumeClaimPolicies", {"maxItems": 50}),
        (
            "io.x-k8s.leaderworkerset.v1.LeaderWorkerSetSpec",
            "replicas",
            {"default": 1, "minimum": 0, "maximum": 1000000},
        ),
        ("io.x-k8s.disaggregatedset.v1.DisaggregatedSetSpec", "roles", {"minItems": 2, "maxItems": 10}),
        ("io.x-k8s.disaggregatedset.v1.DisaggregatedRoleSpec", "name", {"minLength": 1, "maxLength": 63}),
        ("io.x-k8s.leaderworkerset.v1.NetworkConfig", "subdomainPolicy", {"enum": ["Shared", "UniquePerReplica"]}),
    ],
)
def test_defaults_values_and_bounds_are_published(component: str, field: str, said: dict[str, object]) -> None:
    group = f"{component.split('.')[2]}.x-k8s.io"
    found = build(REGISTRY, group, component.split(".")[3])["components"]["schemas"][component]["properties"][field]
    assert said.items() <= found.items()


def test_declared_rules_are_shown() -> None:
    schemas = build(REGISTRY, "scheduling.k8s.io", "v1beta1")["components"]["schemas"]
    spec = schemas["io.k8s.api.scheduling.v1beta1.PodGroupSpec"]["properties"]
    assert spec["preemptionPolicy"]["enum"] == ["Never", "PreemptLowerPriority"]
    assert spec["priority"]["maximum"] == 1_000_000_000 and spec["resourceClaims"]["maxItems"] == 4
    assert spec["priorityClassName"]["format"] == "k8s-long-name"
    assert spec["workloadRef"]["x-kubernetes-validations"][0]["rule"] == "self == oldSelf"
    policy = schemas["io.k8s.api.scheduling.v1beta1.PodGroupSchedulingPolicy"]
    assert policy["x-kubernetes-validations"][0]["rule"] == "has(self.basic) != has(self.gang)"
