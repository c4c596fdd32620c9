"""Running LeaderWorkerSets stay as they are when groups are switched off, on, asked for, or asked for otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.base.errors import Conflict
from phalanx.controllers.runtime.controller import Key
from phalanx.controllers.workloads.leaderworkerset import controller
from phalanx.controllers.workloads.leaderworkerset.admission import PodAdmission
from phalanx.controllers.workloads.leaderworkerset.sets import leader_set
from phalanx.model.gates import KNOWN, Gates
from phalanx.model.leaderworkerset.pods import is_leader
from support.controller_world import Json, World, condition, image_of, world
from support.lws_objects import P, available, done, group_of, lws, new_image

GANG = "scheduling.phalanx.dev/gang"
TOPOLOGY = "scheduling.phalanx.dev/topology"
OFF = Gates(dict.fromkeys(KNOWN, False))


def uids(cluster: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.all("Pod")}


def scheduling(obj: Json) -> Json:
    return condition(obj, "WorkloadSchedulingReady")


async def settled(cluster: World, name: str) -> Json:
    """Looked at by the controllers since: a scale that they have followed."""
    owner = cluster.look("LeaderWorkerSet", name)
    assert owner is not None
    await cluster.patch("LeaderWorkerSet", name, {"spec": {"replicas": owner["spec"]["replicas"] + 1}})
    found = await done(cluster, name)
    await cluster.eventually("Pod", lambda pods: all(pod["status"].get("phase") == "Running" for pod in pods))
    return found


def test_switching_the_gates_off_and_on_replaces_no_pod() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            await done(cluster, "vllm")
            before = uids(cluster)
            assert len(before) == 4
            await cluster.restart(OFF)
            found = await settled(cluster, "vllm")
            assert scheduling(found)["reason"] == "APINotAvailable"
            assert before.items() <= uids(cluster).items()
            assert not group_of(cluster.look("Pod", "vllm-2") or {})
            before = uids(cluster)
            await cluster.restart(Gates())
            found = await settled(cluster, "vllm")
            assert before.items() <= uids(cluster).items()
            assert group_of(cluster.look("Pod", "vllm-3") or {}).startswith("vllm-3-")
            assert scheduling(found)["reason"] == "SomeReplicasNotGrouped"
            assert "vllm-2" in scheduling(found)["message"] and "vllm-0" not in scheduling(found)["message"]

    asyncio.run(scenario())


def test_asking_for_groups_later_replaces_no_pod_and_holds_for_new_replicas() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 1, 2))
            await done(cluster, "vllm")
            before = uids(cluster)
            await cluster.patch("LeaderWorkerSet", "vllm", {"metadata": {"annotations": {GANG: "true"}}})
            found = await settled(cluster, "vllm")
            assert before.items() <= uids(cluster).items()
            assert {group_of(pod) != "" for pod in cluster.all("Pod") if "vllm-1" in pod["metadata"]["name"]} == {True}
            assert scheduling(found)["reason"] == "SomeReplicasNotGrouped" and "vllm-0" in scheduling(found)["message"]
            # What one pod of an old replica needs is what the others have: no group.
            await cluster.delete("Pod", "vllm-0")
            await cluster.until("Pod", "vllm-0", when=lambda pod: pod["metadata"]["uid"] != before["vllm-0"])
            found = await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: available(o) and scheduling(o)["status"] == "True"
            )
            assert all(map(group_of, cluster.all("Pod")))

    asyncio.run(scenario())


def test_a_worker_of_a_replica_without_group_comes_back_without() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 1, 3, template={"restartPolicy": "None"}))
            await done(cluster, "vllm")
            await cluster.patch("LeaderWorkerSet", "vllm", {"metadata": {"annotations": {GANG: "true"}}})
            before = uids(cluster)
            await cluster.delete("Pod", "vllm-0-1")
            pod = await cluster.until("Pod", "vllm-0-1", when=lambda p: p["metadata"]["uid"] != before["vllm-0-1"])
            assert not group_of(pod)
            await done(cluster, "vllm")

    asyncio.run(scenario())


def test_what_an_earlier_version_wrote_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions put a word of ours into the leaders' template; taking it out would roll every set."""

    def as_before(*args: Any) -> Json:
        made = leader_set(*args)
        made["spec"]["template"]["metadata"]["annotations"][f"{P}workload-aware-scheduling"] = "true"
        return made

    async def scenario() -> None:
        async with world(controllers=False) as cluster:
            with monkeypatch.context() as earlier:
                earlier.setattr(controller, "leader_set", as_before)
                await cluster.start_controllers()
                await cluster.apply(lws("vllm", 2, 2, scheduling={}))
                await done(cluster, "vllm")
                await cluster.kill_controllers()
            before = uids(cluster)
            await cluster.start_controllers()
            await settled(cluster, "vllm")
            assert before.items() <= uids(cluster).items()
            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))
            await done(cluster, "vllm")
            await cluster.eventually("Pod", lambda pods: {image_of(pod) for pod in pods} == {"v2"})

    asyncio.run(scenario())


@pytest.mark.parametrize("slow", [False, True])
def test_replicas_under_earlier_rules_are_named(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`slow`: the set's controller looks only after the leader's StatefulSet has tried to make the leader again."""
    looking, refused = asyncio.Event(), asyncio.Event()
    reconcile, admit = controller.LeaderWorkerSetController.reconcile, PodAdmission.admit

    async def late(self: controller.LeaderWorkerSetController, key: Key) -> None:
        await looking.wait()
        await reconcile(self, key)

    async def noted(self: PodAdmission, pod: Json, owner: Json) -> None:
        try:
            await admit(self, pod, owner)
        except Conflict:
            if is_leader(pod):
                refused.set()
            raise

    monkeypatch.setattr(controller.LeaderWorkerSetController, "reconcile", late)
    monkeypatch.setattr(PodAdmission, "admit", noted)

    async def scenario() -> None:
        looking.set()
        async with world(topology="blocks=2") as cluster:
            await cluster.apply(lws("vllm", 1, 2, scheduling={}))
            await done(cluster, "vllm")
            before = uids(cluster)
            requested = {TOPOLOGY: "topology.phalanx.dev/block"}
            await cluster.patch("LeaderWorkerSet", "vllm", {"metadata": {"annotations": requested}})
            found = await settled(cluster, "vllm")
            assert before.items() <= uids(cluster).items()
            assert scheduling(found)["reason"] == "SomeReplicasOutdated"
            assert "vllm-0" in scheduling(found)["message"] and "vllm-1" not in scheduling(found)["message"]
            refused.clear()
            if slow:
                looking.clear()
            await cluster.delete("Pod", "vllm-0")
            again = asyncio.create_task(
                cluster.until("Pod", "vllm-0", when=lambda pod: pod["metadata"]["uid"] != before["vllm-0"])
            )
            await asyncio.wait([again, asyncio.create_task(refused.wait())], return_when=asyncio.FIRST_COMPLETED)
            assert refused.is_set() or not slow, "it joined the group with the rules of before"
            looking.set()
            await again
            await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: available(o) and scheduling(o)["status"] == "True"
            )
            assert all("schedulingConstraints" in group["spec"] for group in cluster.all("PodGroup"))

    asyncio.run(scenario())
