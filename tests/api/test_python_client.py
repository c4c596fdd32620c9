"""The official Kubernetes client for Python, used as its documentation says."""

from __future__ import annotations

import pytest

from support.local_cluster import LocalCluster

kubernetes = pytest.importorskip("kubernetes")


@pytest.fixture
def api(server: LocalCluster):
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    with kubernetes.client.ApiClient(configuration) as client:
        yield client


def pod(name: str):
    client = kubernetes.client
    container = client.V1Container(name="main", image="busybox")
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": name}), spec=client.V1PodSpec(containers=[container])
    )


def test_create_list_patch_and_delete(api, namespace: str) -> None:
    core = kubernetes.client.CoreV1Api(api)
    created = core.create_namespaced_pod(namespace, pod("a"))
    assert created.metadata.uid and created.status.phase == "Pending"
    core.create_namespaced_pod(namespace, pod("b"))
    listed = core.list_namespaced_pod(namespace, limit=1)
    assert [item.metadata.name for item in listed.items] == ["a"]
    rest = core.list_namespaced_pod(namespace, _continue=listed.metadata._continue)
    assert [item.metadata.name for item in rest.items] == ["b"]
    patched = core.patch_namespaced_pod("a", namespace, {"metadata": {"labels": {"x": "y"}}})
    assert patched.metadata.labels == {"app": "a", "x": "y"}
    assert [p.metadata.name for p in core.list_namespaced_pod(namespace, label_selector="x=y").items] == ["a"]
    core.delete_namespaced_pod("a", namespace)
    with pytest.raises(kubernetes.client.ApiException) as caught:
        core.read_namespaced_pod("a", namespace)
    assert caught.value.status == 404 and caught.value.reason


def test_watch(api, namespace: str) -> None:
    core = kubernetes.client.CoreV1Api(api)
    core.create_namespaced_pod(namespace, pod("a"))
    watch = kubernetes.watch.Watch()
    seen = []
    for event in watch.stream(core.list_namespaced_pod, namespace, timeout_seconds=20):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 1:
            core.create_namespaced_pod(namespace, pod("b"))
        elif len(seen) == 2:
            core.delete_namespaced_pod("a", namespace)
        elif event["type"] == "DELETED":
            watch.stop()
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_custom_objects_and_replace(api, namespace: str) -> None:
    custom = kubernetes.client.CustomObjectsApi(api)
    where = ("scheduling.k8s.io", "v1beta1", namespace, "workloads")
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": {"basic": {}}}]},
    }
    created = custom.create_namespaced_custom_object(*where, body)
    created["metadata"]["labels"] = {"a": "b"}
    replaced = custom.replace_namespaced_custom_object(*where, "w", created)
    assert replaced["metadata"]["labels"] == {"a": "b"}
    with pytest.raises(kubernetes.client.ApiException) as caught:
        custom.replace_namespaced_custom_object(*where, "w", created)
    assert caught.value.status == 409


def test_bind_and_evict(api, namespace: str) -> None:
    client = kubernetes.client
    core = client.CoreV1Api(api)
    core.create_namespaced_pod(namespace, pod("a"))
    target = client.V1ObjectReference(kind="Node", name="n1")
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name="a"), target=target)
    core.create_namespaced_pod_binding("a", namespace, binding, _preload_content=False)
    assert core.read_namespaced_pod("a", namespace).spec.node_name == "n1"
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="a"))
    core.create_namespaced_pod_eviction("a", namespace, eviction, _preload_content=False)
    assert core.read_namespaced_pod("a", namespace).metadata.deletion_timestamp is not None
