"""Clients that accept nothing but protobuf get it: objects, lists, answers to writes, and framed watches."""

from __future__ import annotations

from typing import Any

from phalanx.model import protobuf, tables
from support.local_cluster import LocalCluster
from support.manifests import pod

PROTOBUF = "application/vnd.kubernetes.protobuf"
POD = tables.record("core/v1.Pod")


def fields(raw: Any) -> list[tuple[int, Any]]:
    return [(number, value) for number, _, value in protobuf._records(memoryview(raw))]


def test_objects_lists_and_writes(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = server.ask("POST", path, pod("a", labels={}), accept=PROTOBUF)
    assert made.code == 201 and made.headers["content-type"] == PROTOBUF
    stored = server.get(f"{path}/a")
    assert protobuf.decode(made.body, POD)["metadata"]["uid"] == stored["metadata"]["uid"]
    read = protobuf.decode(server.ask("GET", f"{path}/a", accept=PROTOBUF).body, POD)
    assert read["spec"]["tolerations"] == stored["spec"]["tolerations"] and read["status"] == stored["status"]
    several = protobuf.envelope(server.ask("GET", path, accept=PROTOBUF).body)
    assert (several.api_version, several.kind) == ("v1", "PodList")
    assert [number for number, _ in fields(several.raw)] == [1, 2]
    deleted = server.ask("DELETE", f"{path}/a", accept=PROTOBUF)
    assert deleted.code == 200 and protobuf.envelope(deleted.body).kind in ("Pod", "Status")
    missing = server.ask("GET", f"{path}/a", accept=PROTOBUF)
    assert missing.code == 404 and missing.headers["content-type"] == "application/json"


def test_a_watch_comes_in_frames(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    server.create(path, pod("a", labels={}))
    reply = server.ask(
        "GET", path, accept=f"{PROTOBUF};stream=watch", watch="true", resourceVersion="0", timeoutSeconds=1
    )
    assert reply.headers["content-type"] == f"{PROTOBUF};stream=watch"
    size = int.from_bytes(reply.body[:4], "big")
    event = dict(fields(reply.body[4 : 4 + size]))
    assert bytes(event[1]) == b"ADDED"
    (_, inner), *_ = fields(event[2])
    assert protobuf.decode(bytes(inner), POD)["metadata"]["name"] == "a"


def test_custom_resources_have_no_protobuf(server: LocalCluster) -> None:
    reply = server.ask("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets", accept=PROTOBUF)
    assert reply.code == 406


def test_metadata_is_sent_in_protobuf_to_clients_that_prefer_it(server: LocalCluster, namespace: str) -> None:
    """As client-go's metadata client asks; also of custom resources, whose metadata is like any other."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    uid = server.create(path, pod("a", labels={}))["metadata"]["uid"]
    form = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    accept = f"{PROTOBUF};{form},application/json;{form},application/json"
    schema = tables.record("meta/v1.PartialObjectMetadata")
    one = server.ask("GET", f"{path}/a", accept=accept)
    assert one.headers["content-type"] == PROTOBUF and protobuf.envelope(one.body).kind == "PartialObjectMetadata"
    assert protobuf.decode(one.body, schema)["metadata"]["uid"] == uid
    several = protobuf.envelope(server.ask("GET", path, accept=accept).body)
    assert (several.api_version, several.kind) == ("meta.k8s.io/v1", "PartialObjectMetadataList")
    assert [number for number, _ in fields(several.raw)] == [1, 2]
    patched = server.ask(
        "PATCH",
        f"{path}/a",
        {"metadata": {"labels": {"x": "y"}}},
        accept=accept,
        content_type="application/merge-patch+json",
    )
    assert protobuf.decode(patched.body, schema)["metadata"]["labels"] == {"x": "y"}
    watched = server.ask("GET", path, accept=accept, watch="true", resourceVersion="0", timeoutSeconds=1)
    event = dict(fields(watched.body[4 : 4 + int.from_bytes(watched.body[:4], "big")]))
    (_, inner), *_ = fields(event[2])
    assert protobuf.decode(bytes(inner), schema)["metadata"]["labels"] == {"x": "y"}
    custom = server.ask("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets", accept=accept)
    assert custom.code == 200 and protobuf.envelope(custom.body).kind == "PartialObjectMetadataList"
