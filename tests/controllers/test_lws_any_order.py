"""Whatever users do and whenever controllers die: the same objects remain, no pod names a group that never was.

On virtual time, with news that reaches the controllers late: a seed is the same history on every machine, however busy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from phalanx.base.client import Resource, WatchEvent
from phalanx.base.errors import ApiProblem
from phalanx.local.nodes import KubeletOptions
from support.controller_world import DyingClient, Json, image_of
from support.lws_objects import available, group_of, lws, new_image
from support.manifests import stateful_set
from support.simulated_cluster import SimulatedCluster
from support.states import set_rolled_out
from support.virtual_time import VirtualLoop, run

GANG = {"scheduling.phalanx.dev/gang": "true"}
LATE = 0.005  # seconds, at most, by which one kind's news is later than another's
PATIENCE = 120.0  # virtual seconds


class LateNews:
    """A client whose watches lag, each by its own lot."""

    def __init__(self, client: Any, rng: random.Random) -> None:
        self._client, self._rng = client, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def watch(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncIterator[WatchEvent]:
        async for event in self._client.watch(resource, namespace, **options):
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.random() * LATE)
            yield event


def names(cluster: SimulatedCluster, kind: str) -> list[str]:
    return [obj["metadata"]["name"] for obj in cluster.all(kind)]


async def forgiving(what: Any) -> None:
    try:
        await what
    except ApiProblem:
        return  # the object came or went meanwhile


async def edit(cluster: SimulatedCluster, rng: random.Random, wanted: Json) -> None:
    """One thing a user might do; `wanted` is what should come of it all."""
    choice = rng.randrange(7)
    if choice == 0:
        wanted["replicas"] = rng.randint(0, 3)
        await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": wanted["replicas"]}})
    elif choice == 1:
        wanted["image"] = f"v{rng.randint(1, 3)}"
        await cluster.patch("LeaderWorkerSet", "vllm", new_image(wanted["image"]))
    elif choice == 2:
        wanted["size"] = rng.randint(1, 3)
        await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"leaderWorkerTemplate": {"size": wanted["size"]}}})
    elif choice == 3:
        wanted["shards"] = rng.randint(1, 4)
        await cluster.patch("StatefulSet", "sim", {"spec": {"replicas": wanted["shards"]}})
    elif pods := names(cluster, "Pod"):
        if choice == 4:
            await forgiving(cluster.delete("Pod", rng.choice(pods)))
        elif choice == 5 and (groups := names(cluster, "PodGroup")):
            await forgiving(cluster.delete("PodGroup", rng.choice(groups)))
        elif choice == 6 and (ours := [name for name in pods if name.startswith("vllm")]):
            end = {"metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "0"}}}
            await forgiving(cluster.patch("Pod", rng.choice(ours), end))


class Witness:
    """Every pod is made after its group. (Who deletes a group may be faster than the news of it: such a pod waits.)"""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._pods: dict[str, tuple[int, str, str]] = {}  # uid -> first revision, name, group
        self._groups: dict[str, int] = {}  # name -> first revision
        cluster.follow("Pod", self._pod)
        cluster.follow("PodGroup", self._group)

    def _pod(self, pod: Json, gone: bool) -> None:
        meta = pod["metadata"]
        self._pods.setdefault(meta["uid"], (int(meta["resourceVersion"]), meta["name"], group_of(pod)))

    def _group(self, group: Json, gone: bool) -> None:
        self._groups.setdefault(group["metadata"]["name"], int(group["metadata"]["resourceVersion"]))

    @property
    def orphans(self) -> list[str]:
        assert self._pods
        assert self._groups
        made = self._groups
        return [f"{name} -> {group}" for at, name, group in self._pods.values() if made.get(group, at) >= at]


async def let_groups_go(cluster: SimulatedCluster) -> None:
    """Who is made under a group that was deleted waits until that is gone: end the pods that still hold it."""
    going = {obj["metadata"]["name"] for obj in cluster.all("PodGroup") if "deletionTimestamp" in obj["metadata"]}
    for pod in cluster.all("Pod"):
        if group_of(pod) in going:
            await forgiving(cluster.delete("Pod", pod["metadata"]["name"]))


async def done(cluster: SimulatedCluster) -> None:
    end = cluster.loop.time() + PATIENCE
    while True:
        serving, shards = cluster.get("LeaderWorkerSet", "vllm"), cluster.get("StatefulSet", "sim")
        assert serving is not None
        assert shards is not None
        if available(serving) and set_rolled_out(shards) and await cluster.settle(quiet=1, most=2):
            return
        assert cluster.loop.time() < end, (serving["status"], shards["status"], cluster.all("PodGroup"))
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", range(14))
def test_any_interleaving_ends_in_the_same_objects(seed: int) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        rng = random.Random(seed)
        cluster = SimulatedCluster(seed)

        async def start_controllers(writes: int | None = None) -> DyingClient:
            dying = DyingClient(
                LateNews(cluster.client_of("phalanx-controllers"), random.Random(rng.random())), writes or 10**9
            )
            await cluster.start_controllers(dying)
            return dying

        try:
            await cluster.start_duties()
            await cluster.start_nodes(4, "", KubeletOptions(speed=50))
            await cluster.start_scheduler()
            witness = Witness(cluster)
            dying = await start_controllers(rng.randint(3, 25))
            wanted = {"replicas": 2, "size": 2, "image": "v1", "shards": 3}
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            shards = stateful_set("sim", 3, podManagementPolicy="Parallel")
            shards["metadata"]["annotations"] = GANG
            await cluster.apply(shards)
            for _ in range(12):
                await edit(cluster, rng, wanted)
                for _ in range(rng.randint(0, 40)):
                    # Somewhere in the middle of what the controllers do.
                    await asyncio.sleep(rng.choice([0, 0, 0, 0.001, 0.01]))
                if dying.died.is_set():
                    await cluster.kill("controllers")
                    dying = await start_controllers(rng.randint(3, 40))
            await cluster.kill("controllers")
            await start_controllers()
            await let_groups_go(cluster)
            await done(cluster)
            pods, groups = cluster.all("Pod"), cluster.all("PodGroup")
            assert len(pods) == wanted["replicas"] * wanted["size"] + wanted["shards"]
            assert len(groups) == wanted["replicas"] + 1
            assert {group_of(pod) for pod in pods} == {each["metadata"]["name"] for each in groups}
            serving = [pod for pod in pods if pod["metadata"]["name"].startswith("vllm")]
            assert {image_of(pod) for pod in serving} <= {wanted["image"]}
            expected = {
                f"vllm-{group}{f'-{index}' if index else ''}"
                for group in range(wanted["replicas"])
                for index in range(wanted["size"])
            }
            assert {pod["metadata"]["name"] for pod in serving} == expected
            assert not witness.orphans
            for kind, name in (("LeaderWorkerSet", "vllm"), ("StatefulSet", "sim")):
                await cluster.delete(kind, name, propagation="Background")
            assert await cluster.settle()
            for kind in ("Pod", "PodGroup", "Workload", "StatefulSet", "ControllerRevision"):
                assert not cluster.all(kind)
            assert set(names(cluster, "Service")) <= {"kubernetes"}
        finally:
            await cluster.stop()

    run(scenario)
