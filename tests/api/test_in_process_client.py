"""The in-process client tells the same story as HTTP."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest

from phalanx.base.client import Resource
from phalanx.base.errors import AlreadyExists, BadRequest, Conflict, Expired, NotFound
from phalanx.local.client import LocalClient
from support.local_cluster import LocalCluster
from support.manifests import pod

PODS = Resource("", "v1", "pods", "Pod")
WORKLOADS_OLD = Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload")


@pytest.fixture
def client(server: LocalCluster) -> LocalClient:
    return server.cluster.server.client("tester")


def run(server: LocalCluster, work: Coroutine[Any, Any, bytes]) -> Any:
    return json.loads(server.call(work))


def test_objects_are_the_same_through_both_doors(server: LocalCluster, namespace: str, client: LocalClient) -> None:
    created = run(server, client.create(PODS, pod("a", labels={}), namespace))
    path = f"/api/v1/namespaces/{namespace}/pods"
    assert server.get(f"{path}/a") == created
    assert created["metadata"]["managedFields"][0]["manager"] == "tester"
    assert run(server, client.list(PODS, namespace))["items"] == server.get(path)["items"]
    patched = run(server, client.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, namespace))
    assert patched["metadata"]["labels"] == {"x": "y"}
    patched["metadata"]["labels"] = {"x": "z"}
    assert run(server, client.update(PODS, "a", patched, namespace))["metadata"]["labels"] == {"x": "z"}
    binding = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "a"}}
    server.call(client.create(PODS, binding, namespace, name="a", subresource="binding"))
    assert run(server, client.get(PODS, "a", namespace))["spec"]["nodeName"] == "n1"
    server.call(client.delete(PODS, "a", namespace, grace_seconds=0))
    assert server.ask("GET", f"{path}/a").code == 404


def test_failures_are_the_classes_of_their_reasons(server: LocalCluster, namespace: str, client: LocalClient) -> None:
    server.call(client.create(PODS, pod("a", labels={}), namespace))
    with pytest.raises(AlreadyExists):
        server.call(client.create(PODS, pod("a", labels={}), namespace))
    with pytest.raises(NotFound):
        server.call(client.get(PODS, "b", namespace))
    with pytest.raises(NotFound):
        server.call(client.list(Resource("nowhere.io", "v1", "things", "Thing")))
    with pytest.raises(BadRequest):
        server.call(client.list(PODS, fields="spec.colour=red"))
    with pytest.raises(Conflict):
        server.call(client.delete(PODS, "a", namespace, uid="another"))


def test_a_watch_sees_what_http_does(server: LocalCluster, namespace: str, client: LocalClient) -> None:
    since = server.get(f"/api/v1/namespaces/{namespace}/pods")["metadata"]["resourceVersion"]

    async def follow() -> list[tuple[str, str]]:
        seen = []
        async for event in client.watch(PODS, namespace, resource_version=since, labels="in=yes"):
            seen.append((event.type, json.loads(event.object)["metadata"]["name"]))
            if len(seen) == 2:
                break
        return seen

    server.create(f"/api/v1/namespaces/{namespace}/pods", pod("a", labels={}))
    server.patch(f"/api/v1/namespaces/{namespace}/pods/a", {"metadata": {"labels": {"in": "yes"}}})
    server.patch(f"/api/v1/namespaces/{namespace}/pods/a", {"metadata": {"labels": {"in": "no"}}})
    assert server.call(follow()) == [("ADDED", "a"), ("DELETED", "a")]


def test_an_old_revision_raises_expired(server: LocalCluster, client: LocalClient) -> None:
    async def follow() -> None:
        async for _ in client.watch(PODS, resource_version="1"):
            return

    store: Any = server.cluster.server.context.store
    floor = store._window.floor
    store._window.floor = store.revision
    try:
        with pytest.raises(Expired):
            server.call(follow())
    finally:
        store._window.floor = floor


def test_other_versions_are_views_here_too(server: LocalCluster, namespace: str, client: LocalClient) -> None:
    body = {"metadata": {"name": "w"}, "spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 2}}}]}}
    server.call(client.create(WORKLOADS_OLD, body, namespace))
    seen = server.get(f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/workloads/w")
    assert seen["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] == 2
    assert run(server, client.get(WORKLOADS_OLD, "w", namespace))["apiVersion"] == "scheduling.k8s.io/v1alpha1"
