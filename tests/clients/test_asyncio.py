"""kubernetes_asyncio: create, watch until ready, patch, list, delete."""

from __future__ import annotations

import asyncio

import pytest

from support.local_cluster import LocalCluster
from support.manifests import deployment

kubernetes_asyncio = pytest.importorskip("kubernetes_asyncio")


def test_a_deployment(cluster: LocalCluster, place: str) -> None:
    async def flow() -> None:
        client, config, watch = kubernetes_asyncio.client, kubernetes_asyncio.config, kubernetes_asyncio.watch
        configuration = client.Configuration()
        await config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
        async with client.ApiClient(configuration) as api:
            apps, core = client.AppsV1Api(api), client.CoreV1Api(api)
            await apps.create_namespaced_deployment(place, deployment("web", 2))
            async with watch.Watch().stream(apps.list_namespaced_deployment, place, timeout_seconds=60) as stream:
                async for event in stream:
                    if event["object"].status.ready_replicas == 2:
                        break
            patch = {"metadata": {"labels": {"x": "y"}}}
            patched = await apps.patch_namespaced_deployment("web", place, patch)
            assert patched.metadata.labels["x"] == "y"
            pods = await core.list_namespaced_pod(place)
            assert len(pods.items) == 2
            await apps.delete_namespaced_deployment("web", place)

    asyncio.run(asyncio.wait_for(flow(), 90))
