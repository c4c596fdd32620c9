"""No new pod is put into a deleted group whose deletion the controllers have not seen yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from phalanx.base.client import Resource, WatchEvent
from support.manifests import stateful_set
from support.simulated_cluster import PatientClient, SimulatedCluster
from support.virtual_time import VirtualLoop, run


class HeldNews:
    """A client whose watch of PodGroups can be held up."""

    def __init__(self, client: PatientClient) -> None:
        self._client = client
        self.flows = asyncio.Event()
        self.flows.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def watch(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncIterator[WatchEvent]:
        async for event in self._client.watch(resource, namespace, **options):
            if resource.plural == "podgroups":
                await self.flows.wait()
            yield event


def test_pods_that_wait_for_the_next_group_do_not_keep_the_last_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = SimulatedCluster()
        try:
            await cluster.start_duties()
            await cluster.start_nodes(2)
            updates = HeldNews(cluster.client_of("phalanx-controllers"))
            await cluster.start_controllers(updates)
            await cluster.start_scheduler()
            body = stateful_set("w", 2, podManagementPolicy="Parallel")
            body["metadata"]["annotations"] = {"scheduling.phalanx.dev/gang": "true"}
            await cluster.apply(body)
            await cluster.settle()
            first, second = (pod["metadata"]["name"] for pod in cluster.all("Pod"))
            (group,) = cluster.all("PodGroup")
            await cluster.delete("PodGroup", group["metadata"]["name"])
            await cluster.delete("Pod", first)
            await cluster.settle(quiet=40)
            assert [group["metadata"]["uid"] for group in cluster.all("PodGroup")] == [group["metadata"]["uid"]]
            (waiting,) = (pod for pod in cluster.all("Pod") if pod["metadata"]["name"] != second)
            assert "nodeName" not in waiting["spec"], "it waits for the next group"
            updates.flows.clear()
            await cluster.delete("Pod", second)
            await cluster.settle(quiet=40)
            assert not cluster.all("PodGroup"), "gone with the last of its pods"
            assert [pod["metadata"]["uid"] for pod in cluster.all("Pod")] == [waiting["metadata"]["uid"]]
            updates.flows.set()
            await cluster.settle(quiet=40)
            assert [pod["status"]["phase"] for pod in cluster.all("Pod")] == ["Running"] * 2
            (successor,) = cluster.all("PodGroup")
            assert successor["metadata"]["uid"] != group["metadata"]["uid"]
        finally:
            await cluster.stop()

    run(main)


def test_a_late_event_about_the_last_basic_group_does_not_delete_the_next_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = SimulatedCluster()
        try:
            await cluster.start_duties()
            await cluster.start_nodes(2)
            updates = HeldNews(cluster.client_of("phalanx-controllers"))
            await cluster.start_controllers(updates)
            await cluster.start_scheduler()
            body = stateful_set("w", 2)
            del body["spec"]["serviceName"]
            body |= {"kind": "Deployment"}
            body["metadata"]["annotations"] = {"scheduling.phalanx.dev/gang": "false"}
            await cluster.apply(body)
            await cluster.settle()
            first, second = (pod["metadata"]["name"] for pod in cluster.all("Pod"))
            (group,) = cluster.all("PodGroup")
            await cluster.delete("PodGroup", group["metadata"]["name"])
            await cluster.delete("Pod", first)
            await cluster.settle()
            assert [pod["status"]["phase"] for pod in cluster.all("Pod")] == ["Running"] * 2
            (successor,) = [g for g in cluster.all("PodGroup") if "deletionTimestamp" not in g["metadata"]]
            assert len(cluster.all("PodGroup")) == 2, "the other one belongs to the pod that runs"
            updates.flows.clear()
            await cluster.delete("Pod", second)
            await cluster.settle(quiet=40)
            updates.flows.set()
            await cluster.settle(quiet=40)
            assert [pod["status"]["phase"] for pod in cluster.all("Pod")] == ["Running"] * 2
            assert [g["metadata"]["uid"] for g in cluster.all("PodGroup")] == [successor["metadata"]["uid"]]
        finally:
            await cluster.stop()

    run(main)
