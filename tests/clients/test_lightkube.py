"""lightkube: create, wait, patch, list, watch, delete."""

from __future__ import annotations

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment

lightkube = pytest.importorskip("lightkube")


def test_a_deployment(cluster: LocalCluster, place: str) -> None:
    from lightkube.resources.apps_v1 import Deployment
    from lightkube.resources.core_v1 import Pod

    config = lightkube.KubeConfig.from_file(str(cluster.kubeconfig))
    client = lightkube.Client(config=config, namespace=place)
    client.create(Deployment.from_dict({**deployment("web", 2), "metadata": {"name": "web", "namespace": place}}))
    client.wait(Deployment, "web", for_conditions=["Available"])
    assert len(list(client.list(Pod, labels={"app": "web"}))) == 2
    client.patch(Deployment, "web", {"spec": {"replicas": 1}})
    for event, _ in client.watch(Pod, labels={"app": "web"}):
        if event == "DELETED":
            break
    found = client.get(Deployment, "web")
    assert found.spec.replicas == 1
    found.metadata.labels = {"x": "y"}
    assert client.replace(found).metadata.labels == {"x": "y"}
    client.delete(Deployment, "web")
