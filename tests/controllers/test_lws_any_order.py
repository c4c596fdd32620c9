"""Whatever users do and whenever controllers die: the same objects remain, no pod names a group that is not there."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from lws_objects import available, group_of, lws, new_image
from test_statefulset import rolled_out, stateful_set
from world import DyingClient, Json, World, image_of, let_groups_go, world

from phalanx.base.errors import ApiProblem

GANG = {"scheduling.phalanx.dev/gang": "true"}


async def forgiving(what: Any) -> None:
    try:
        await what
    except ApiProblem:
        return  # the object came or went meanwhile


async def edit(cluster: World, rng: random.Random, wanted: Json) -> None:
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
    elif pods := cluster.names("Pod"):
        if choice == 4:
            await forgiving(cluster.delete("Pod", rng.choice(pods)))
        elif choice == 5 and (groups := cluster.names("PodGroup")):
            await forgiving(cluster.delete("PodGroup", rng.choice(groups)))
        elif choice == 6 and (ours := [name for name in pods if name.startswith("vllm")]):
            end = {"metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "0"}}}
            await forgiving(cluster.patch("Pod", rng.choice(ours), end))


class Witness:
    """Looks at every pod as it appears: its group must be there already."""

    def __init__(self, cluster: World) -> None:
        self.cluster = cluster
        self.orphans: list[str] = []

    async def watch(self) -> None:
        key = next(entry for entry in self.cluster.registry.all() if entry.kind == "Pod" and not entry.stored_as)
        watcher = self.cluster.store.watch(key.storage_key)
        seen: set[str] = set()
        try:
            async for _ in watcher:
                groups = set(self.cluster.names("PodGroup"))
                for pod in self.cluster.all("Pod"):
                    uid = pod["metadata"]["uid"]
                    if uid not in seen:
                        seen.add(uid)
                        if group_of(pod) not in groups:
                            self.orphans.append(f"{pod['metadata']['name']} -> {group_of(pod)}")
        finally:
            watcher.close()


@pytest.mark.parametrize("seed", range(10))
def test_any_interleaving_ends_in_the_same_objects(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        async with world(controllers=False) as cluster:
            witness = Witness(cluster)
            watching = asyncio.create_task(witness.watch())
            dying = DyingClient(cluster.client, rng.randint(3, 25))
            await cluster.start_controllers(dying)
            wanted = {"replicas": 2, "size": 2, "image": "v1", "shards": 3}
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            shards = stateful_set("sim", 3, podManagementPolicy="Parallel")
            shards["metadata"]["annotations"] = GANG
            await cluster.apply(shards)
            for _ in range(12):
                await edit(cluster, rng, wanted)
                for _ in range(rng.randint(0, 40)):
                    await asyncio.sleep(0)  # somewhere in the middle of what the controllers do
                if dying.died.is_set():
                    await cluster.kill_controllers()
                    dying = DyingClient(cluster.client, rng.randint(3, 40))
                    await cluster.start_controllers(dying)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await let_groups_go(cluster)
            await cluster.until("LeaderWorkerSet", "vllm", when=available)
            await cluster.until("StatefulSet", "sim", when=rolled_out)
            count = wanted["replicas"] * wanted["size"] + wanted["shards"]

            def settled(pods: list[Json]) -> bool:
                return len(pods) == count and not any("deletionTimestamp" in pod["metadata"] for pod in pods)

            pods = await cluster.eventually("Pod", settled)
            groups = await cluster.eventually("PodGroup", lambda groups: len(groups) == wanted["replicas"] + 1)
            names = {each["metadata"]["name"] for each in groups}
            assert {group_of(pod) for pod in pods} == names
            serving = [pod for pod in pods if pod["metadata"]["name"].startswith("vllm")]
            assert {image_of(pod) for pod in serving} <= {wanted["image"]}
            expected = {
                f"vllm-{group}{f'-{index}' if index else ''}"
                for group in range(wanted["replicas"])
                for index in range(wanted["size"])
            }
            assert {pod["metadata"]["name"] for pod in serving} == expected
            assert not witness.orphans, witness.orphans
            watching.cancel()
            for kind, name in (("LeaderWorkerSet", "vllm"), ("StatefulSet", "sim")):
                await cluster.delete(kind, name, propagation="Background")
            for kind in ("Pod", "PodGroup", "Workload", "StatefulSet", "ControllerRevision", "Service"):
                await cluster.eventually(kind, lambda found: not found)

    asyncio.run(scenario())
