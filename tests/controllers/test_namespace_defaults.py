"""Objects that every new namespace has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phalanx.local.system_controllers import SystemControllers
from support.in_process import Inside, inside
from support.local_cluster import LocalCluster


async def complete(cluster: Inside, namespace: str) -> None:
    await cluster.until("ServiceAccount", "default", namespace, when=lambda account: True)
    await cluster.until(
        "ConfigMap", "kube-root-ca.crt", namespace, when=lambda found: found["data"] == {"ca.crt": "CA"}
    )


def test_a_namespace_has_its_objects_and_what_is_deleted_comes_back() -> None:
    async def scenario() -> None:
        async with inside(duties=False) as cluster:
            duties = SystemControllers(cluster.client, cluster.registry, ca=b"CA")
            await cluster.run(duties.run(), duties.ready)
            await complete(cluster, "kube-system")
            await cluster.create("Namespace", "mine")
            await complete(cluster, "mine")
            before = cluster.look("ServiceAccount", "default", "mine")
            assert before is not None
            await cluster.delete("ServiceAccount", "default", "mine")
            await cluster.delete("ConfigMap", "kube-root-ca.crt", "mine")
            uid = before["metadata"]["uid"]
            await cluster.until("ServiceAccount", "default", "mine", when=lambda a: a["metadata"]["uid"] != uid)
            await complete(cluster, "mine")
            await cluster.patch("ConfigMap", "kube-root-ca.crt", {"data": {"ca.crt": "edited"}}, namespace="mine")
            await complete(cluster, "mine")  # put back
            await cluster.delete("Namespace", "mine")
            await cluster.gone("Namespace", "mine")
            assert cluster.look("ServiceAccount", "default", "mine") is None

    asyncio.run(scenario())


def test_the_certificate_is_the_one_to_trust(start_cluster: Callable[..., LocalCluster]) -> None:
    cluster = start_cluster(run_nodes=False, run_controllers=False, run_scheduler=False)
    found = cluster.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
    assert found["data"]["ca.crt"] == (cluster.cluster.server.ca or b"").decode()
