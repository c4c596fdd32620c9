"""Discovery, OpenAPI, version and health documents, and paths that lead nowhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.local_cluster import LocalCluster

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_aggregated_discovery_has_the_exact_content_type_kubectl_looks_for(server: LocalCluster) -> None:
    for path in ("/api", "/apis"):
        reply = server.ask("GET", path, accept=f"{AGGREGATED},application/json")
        assert reply.headers["content-type"] == AGGREGATED
        assert reply.json["kind"] == "APIGroupDiscoveryList"


def test_a_304_has_the_content_type_of_the_document_that_the_client_kept(server: LocalCluster) -> None:
    """kubectl writes the headers of a 304 over those it has kept, and without the content type finds no resource."""
    etag = server.ask("GET", "/apis", accept=AGGREGATED).headers["etag"]
    reply = server.ask("GET", "/apis", accept=AGGREGATED, headers={"If-None-Match": etag})
    assert reply.code == 304 and reply.headers["content-type"] == AGGREGATED and reply.headers["etag"] == etag


def test_aggregated_and_legacy_discovery_name_the_same_resources(server: LocalCluster) -> None:
    aggregated: set[tuple[str, str, str]] = set()
    for path in ("/api", "/apis"):
        for group in server.get(path, accept=AGGREGATED)["items"]:
            for version in group["versions"]:
                where = f"{group['metadata'].get('name', '')}/{version['version']}".lstrip("/")
                for resource in version["resources"]:
                    kind = resource["responseKind"]["kind"]
                    aggregated.add((where, resource["resource"], kind))
                    for sub in resource.get("subresources", ()):
                        name = f"{resource['resource']}/{sub['subresource']}"
                        aggregated.add((where, name, sub["responseKind"]["kind"]))
    legacy: set[tuple[str, str, str]] = set()
    roots = [("v1", "/api/v1")]
    for group in server.get("/apis")["groups"]:
        assert server.get(f"/apis/{group['name']}")["preferredVersion"] == group["versions"][0]
        roots += [(v["groupVersion"], f"/apis/{v['groupVersion']}") for v in group["versions"]]
    for where, path in roots:
        document = server.get(path)
        assert document["groupVersion"] == where
        legacy |= {(where, resource["name"], resource["kind"]) for resource in document["resources"]}
    assert aggregated == legacy
    assert ("v1", "pods/eviction", "Eviction") in legacy
    assert ("scheduling.k8s.io/v1alpha1", "workloads", "Workload") in legacy


def test_the_stable_version_is_preferred(server: LocalCluster) -> None:
    group = server.get("/apis/scheduling.k8s.io")
    assert [version["version"] for version in group["versions"]] == ["v1", "v1beta1", "v1alpha3", "v1alpha1"]


def test_the_version_that_upstream_has_is_preferred(server: LocalCluster) -> None:
    """KEP-1068 writes jobset.x-k8s.io/v1, which upstream does not serve."""
    assert server.get("/apis/jobset.x-k8s.io")["preferredVersion"]["version"] == "v1alpha2"


def test_a_gate_that_is_off_hides_its_kinds(start_cluster: Callable[..., LocalCluster]) -> None:
    without = start_cluster(
        gates="CompositePodGroup=false", run_nodes=False, run_controllers=False, run_scheduler=False
    )
    names = {resource["name"] for resource in without.get("/apis/scheduling.k8s.io/v1alpha3")["resources"]}
    assert "podgroups" in names and "compositepodgroups" not in names
    assert without.ask("GET", "/apis/scheduling.k8s.io/v1alpha3/compositepodgroups").code == 404


def test_a_custom_resource_appears_in_discovery_and_goes_again(server: LocalCluster) -> None:
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "lamps.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "lamps", "singular": "lamp", "kind": "Lamp", "shortNames": ["lp"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.create(path, crd)
    assert server.get("/apis/example.com/v1")["resources"][0]["shortNames"] == ["lp"]
    assert "apis/example.com/v1" in server.get("/openapi/v3")["paths"]
    server.delete(f"{path}/lamps.example.com")
    assert server.ask("GET", "/apis/example.com/v1").code == 404


def test_version_speaks_like_137(server: LocalCluster) -> None:
    version = server.get("/version")
    assert (version["major"], version["minor"]) == ("1", "37")
    assert version["gitVersion"].startswith("v1.37.0+phalanx")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/version", "/version/"])
def test_health_and_version_need_no_token(server: LocalCluster, path: str) -> None:
    assert server.ask("GET", path, token="wrong").code == 200


def test_openapi_documents_may_be_kept_for_ever_by_their_hash(server: LocalCluster) -> None:
    where = server.get("/openapi/v3")["paths"]["api/v1"]["serverRelativeURL"]
    reply = server.ask("GET", where)
    assert reply.code == 200 and "immutable" in reply.headers["cache-control"]
    assert "Pod" in reply.body.decode()
    again = server.ask("GET", where, headers={"If-None-Match": reply.headers["etag"]})
    assert again.code == 304 and again.body == b""
    moved = server.ask("GET", "/openapi/v3/api/v1", hash="OLD")
    assert moved.code == 301 and moved.headers["location"] == where


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/ponds",
        "/apis/nowhere.io/v1/things",
        "/apis/apps/v2/deployments",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/namespaces/default/pods/a/b/c",
        "/api/v1/namespaces/default/configmaps/a/status",
        "/apis/nowhere.io",
        "/nonsense",
        "/openapi/v3/apis/nowhere.io/v1",
    ],
)
def test_a_path_that_leads_nowhere(server: LocalCluster, path: str) -> None:
    reply = server.ask("GET", path)
    assert reply.code == 404
    assert reply.json["message"] == "the server could not find the requested resource"
    assert reply.json["reason"] == "NotFound"
    assert reply.json["details"] == {}  # `kubectl debug` falls over a 404 without any


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/namespaces/default/pods"),
        ("POST", "/api/v1/namespaces/default/pods/a"),
        ("POST", "/api/v1/pods"),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("GET", "/api/v1/namespaces/default/pods/a/eviction"),
    ],
)
def test_a_method_that_makes_no_sense_there(server: LocalCluster, method: str, path: str) -> None:
    reply = server.ask(method, path, b"{}" if method != "GET" else None)
    assert (reply.code, reply.json["reason"]) == (405, "MethodNotAllowed")


def test_stored_resources_tell_a_hash_of_their_storage_version(server: LocalCluster) -> None:
    found = {entry["name"]: entry.get("storageVersionHash") for entry in server.get("/api/v1")["resources"]}
    assert found["pods"] == "xPOwRZ+Yhw8="  # as every cluster says
    assert found["bindings"] is None and found["pods/status"] is None


def test_a_review_has_no_table(server: LocalCluster) -> None:
    path, body = (
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": {"verb": "get"}}},
    )
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    assert server.ask("POST", path, body, accept=table).code == 406
    assert server.ask("POST", path, body, accept=f"{table},application/json").code == 201


def test_a_timeout_that_is_no_duration_is_refused(server: LocalCluster) -> None:
    """client-go writes its own timeout into the URL."""
    for path in ("/version", "/api/v1/namespaces"):
        refused = server.ask("GET", path, timeout="invalid")
        assert refused.code == 400 and "invalid timeout specified in the request URL" in refused.json["message"]
        for text in ("3m", "0s", "1h0m0.5s"):
            assert server.ask("GET", path, timeout=text).code == 200
