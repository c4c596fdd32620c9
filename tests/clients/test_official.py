"""The official client: version, typed objects, waiting by watch, scale, status, dynamic client, events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment

kubernetes = pytest.importorskip("kubernetes")


@pytest.fixture
def api(cluster: LocalCluster) -> Iterator[Any]:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    with kubernetes.client.ApiClient(configuration) as client:
        yield client


def test_a_deployment_from_creation_to_its_end(api: Any, place: str) -> None:
    assert kubernetes.client.VersionApi(api).get_code().minor == "37"
    apps, core = kubernetes.client.AppsV1Api(api), kubernetes.client.CoreV1Api(api)
    made = apps.create_namespaced_deployment(place, deployment("web", 2))
    assert made.status.replicas is None and made.status.conditions is None  # a status, with nothing in it yet
    watch = kubernetes.watch.Watch()
    for event in watch.stream(apps.list_namespaced_deployment, place, timeout_seconds=60):
        if event["object"].status.ready_replicas == 2:
            watch.stop()
    pods = core.list_namespaced_pod(place, label_selector="app=web").items
    assert {pod.status.phase for pod in pods} == {"Running"} and all(pod.spec.node_name for pod in pods)
    apps.patch_namespaced_deployment_scale("web", place, {"spec": {"replicas": 1}})
    assert apps.read_namespaced_deployment_scale("web", place).spec.replicas == 1
    events = core.list_namespaced_event(place, field_selector="involvedObject.kind=Pod").items
    assert any(event.reason == "Scheduled" for event in events)
    apps.delete_namespaced_deployment("web", place, propagation_policy="Foreground")
    for _ in watch.stream(core.list_namespaced_pod, place, timeout_seconds=60):
        if not core.list_namespaced_pod(place).items:
            watch.stop()


def test_a_job_and_the_dynamic_client(api: Any, place: str) -> None:
    dynamic = kubernetes.dynamic.DynamicClient(api)
    jobs = dynamic.resources.get(api_version="batch/v1", kind="Job")
    annotations = {"simulation.phalanx.dev/run-seconds": "0"}
    pod = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
    template = {"metadata": {"annotations": annotations}, "spec": pod}
    spec = {"completions": 2, "parallelism": 2, "template": template}
    jobs.create(namespace=place, body={"metadata": {"name": "j"}, "spec": spec})
    for event in jobs.watch(namespace=place, timeout=60):
        if event["object"].status.succeeded == 2:
            break
    batch = kubernetes.client.BatchV1Api(api)
    assert batch.read_namespaced_job("j", place).status.terminating == 0


def test_every_list_of_the_core_client_answers(api: Any) -> None:
    core = kubernetes.client.CoreV1Api(api)
    lists = [name for name in dir(core) if name.startswith("list_") and not name.endswith("_with_http_info")]
    for name in lists:
        if "namespaced" not in name and name != "list_component_status":  # which Kubernetes gave up long ago
            assert getattr(core, name)(limit=1).items is not None, name
    assert core.read_namespaced_service("kubernetes", "default").spec.ports[0].port == 443
