"""Several schedulers on the same nodes: none over-committed, every gang whole, nothing waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.errors import ApiProblem
from phalanx.kube.placement_lease import PLACEMENT_LEASE
from phalanx.model.quantity import milli
from support.manifests import job
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


def gang_job(name: str, scheduler: str, pods: int = 4, seconds: int = 600) -> Json:
    return job(name, pods, "8", gang=True, run=seconds, pod={"schedulerName": scheduler})


def rejected(cluster: SimulatedCluster) -> list[str]:
    """Return the pods that a kubelet rejected, as the history of all writes shows."""
    pods = cluster.all("Pod")
    return [pod["metadata"]["name"] for pod in pods if str(pod["status"].get("reason", "")).startswith("OutOf")]


def overcommitted(cluster: SimulatedCluster) -> dict[str, float]:
    """Return nodes whose pods request more cpu than there is."""
    used: Counter[str] = Counter()
    for pod in cluster.all("Pod"):
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            (container,) = pod["spec"]["containers"]
            used[pod["spec"]["nodeName"]] += milli(container["resources"]["requests"]["cpu"])
    room = {n["metadata"]["name"]: milli(n["status"]["allocatable"]["cpu"]) for n in cluster.all("Node")}
    return {name: amount for name, amount in used.items() if amount > room[name]}


def sizes(cluster: SimulatedCluster) -> Counter[str]:
    """Return the number of pods on nodes, by Job."""
    found: Counter[str] = Counter()
    for pod in cluster.all("Pod"):
        if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Running":
            found[pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]] += 1
    return found


class DistantClient(Client):
    """An API server on another machine: answers and watch events take their time."""

    def __init__(self, client: Client, answer: float = 0.004, updates: float = 0.03) -> None:
        self._client, self._answer, self._updates = client, answer, updates

    async def call(self, call: Call) -> bytes:
        await asyncio.sleep(self._answer / 2)
        found = await self._client.call(call)
        await asyncio.sleep(self._answer / 2)
        return found

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        late: asyncio.Queue[tuple[float, WatchEvent]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def read() -> None:
            async for event in self._client.events(call):
                late.put_nowait((loop.time() + self._updates, event))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, event = await late.get()
                await asyncio.sleep(due - loop.time())
                yield event
        finally:
            reading.cancel()


async def two_schedulers(cluster: SimulatedCluster, lease: str = PLACEMENT_LEASE) -> None:
    await cluster.kill("scheduler")
    for name in ("one", "two"):
        client = DistantClient(cluster.client_of(name))
        await cluster.start_scheduler(name, client, scheduler_name=name, placement_lease=lease)


def test_two_schedulers_never_fill_the_same_room() -> None:
    """Eight gangs fit; twice as many are created at once. No kubelet has to reject a pod."""

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await two_schedulers(cluster)
            for number in range(16):
                await cluster.apply(gang_job(f"g{number}", ("one", "two")[number % 2]))
            await cluster.settle()
            assert not rejected(cluster)
            assert not overcommitted(cluster)
            found = sizes(cluster)
            assert set(found.values()) == {4}
            before = len(found)
            await cluster.settle(quiet=1300)
            done = [job for job in cluster.all("Job") if job["status"].get("succeeded") == 4]
            assert before and len(done) == 16
            assert not any(job["status"].get("failed") for job in cluster.all("Job"))

    run(main)


def failures(cluster: SimulatedCluster) -> dict[str, int]:
    return {job["metadata"]["name"]: n for job in cluster.all("Job") if (n := job["status"].get("failed", 0))}


async def until_all_done(cluster: SimulatedCluster, pods: int = 4) -> None:
    """Every Job ends. At no time is a gang partly on nodes for longer than the grace of its pods."""
    for _ in range(400):
        await asyncio.sleep(10)
        if all(job["status"].get("succeeded") == pods for job in cluster.all("Job")):
            return
    raise AssertionError({job["metadata"]["name"]: job["status"] for job in cluster.all("Job")})


def test_a_gang_that_a_kubelet_rejects_is_returned_and_placed_again() -> None:
    """Two schedulers that do not know of each other bind to the same room. No Job pays for it."""

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await two_schedulers(cluster, lease="")
            for number in range(16):
                await cluster.apply(gang_job(f"g{number}", ("one", "two")[number % 2], seconds=60))
            await asyncio.sleep(0.2)
            assert rejected(cluster)
            await until_all_done(cluster)
            assert not failures(cluster)
            assert not overcommitted(cluster)

    run(main)


async def first_fit(cluster: SimulatedCluster, client: Client) -> None:
    """A simple scheduler named "other": it binds each of its pods to the first node with room, by what it has read."""
    pods, nodes = Resource("", "v1", "pods", "Pod"), Resource("", "v1", "nodes", "Node", namespaced=False)
    while True:
        found = msgspec.json.decode(await client.list(pods))["items"]
        room = {
            n["metadata"]["name"]: milli(n["status"]["allocatable"]["cpu"])
            for n in msgspec.json.decode(await client.list(nodes))["items"]
        }
        for pod in found:
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                room[pod["spec"]["nodeName"]] -= milli(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        await asyncio.sleep(0.05)  # what it has read is old by then
        for pod in found:
            if pod["spec"].get("nodeName") or pod["spec"]["schedulerName"] != "other":
                continue
            need = milli(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            node = next((name for name, free in sorted(room.items()) if free >= need), "")
            if node:
                room[node] -= need
                target = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": node}}
                with contextlib.suppress(ApiProblem):
                    await client.create(pods, target, "default", name=pod["metadata"]["name"], subresource="binding")
        await asyncio.sleep(0.2)


def test_next_to_a_scheduler_that_knows_nothing_of_ours_every_gang_gets_whole() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await cluster.kill("scheduler")
            await cluster.start_scheduler("one", DistantClient(cluster.client_of("one")), scheduler_name="one")
            other = asyncio.create_task(first_fit(cluster, cluster.client_of("other")))
            await cluster.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "high"},
                    "value": 9,
                }
            )
            for number in range(10):
                await cluster.apply(gang_job(f"g{number}", "one", seconds=60))
                single = gang_job(f"other{number}", "other", pods=1, seconds=60)
                del single["metadata"]["annotations"]
                single["spec"]["backoffLimit"] = 1000
                await cluster.apply(single)
            for _ in range(400):
                await asyncio.sleep(10)
                if all(job["status"].get("succeeded") for job in cluster.all("Job")):
                    break
            other.cancel()
            gangs = [job for job in cluster.all("Job") if not job["metadata"]["name"].startswith("other")]
            assert [job["status"].get("succeeded") for job in gangs] == [4] * 10
            lost = Counter(
                pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
                for pod in cluster.all("Pod")
                if pod["metadata"]["name"] in rejected(cluster)
            )
            # No failure of a gang; the other scheduler's pods failed only where a kubelet rejected them.
            assert failures(cluster) == {name: count for name, count in lost.items() if name.startswith("other")}

    run(main)
