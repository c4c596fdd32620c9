"""kr8s: version, create, wait, list, label, watch, scale, delete."""

from __future__ import annotations

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment

kr8s = pytest.importorskip("kr8s")


def test_pods_and_deployments(cluster: LocalCluster, place: str) -> None:
    from kr8s.objects import Deployment, Pod

    api = kr8s.api(kubeconfig=str(cluster.kubeconfig), namespace=place)
    assert api.version()["minor"] == "37"
    pod = Pod(
        {"metadata": {"name": "p", "namespace": place}, "spec": {"containers": [{"name": "c", "image": "i"}]}}, api=api
    )
    pod.create()
    pod.wait("condition=Ready", timeout=60)
    assert pod.status.phase == "Running" and pod.exists()
    pod.label({"x": "y"})
    assert [found.name for found in api.get("pods", namespace=place, label_selector="x=y")] == ["p"]
    web = Deployment({**deployment("web", 2), "metadata": {"name": "web", "namespace": place}}, api=api)
    web.create()
    web.wait("condition=Available", timeout=60)
    assert web.ready() and len(web.pods()) == 2
    web.scale(1)
    for event, found in api.watch("pods", namespace=place):
        if event in ("ADDED", "MODIFIED") and found.name == "p":
            break
    web.patch({"metadata": {"annotations": {"a": "b"}}})
    assert web.annotations.a == "b"
    pod.delete()
    pod.wait("delete", timeout=60)
    assert not pod.exists()
    assert [service.name for service in api.get("services", namespace="default")] == ["kubernetes"]
