"""A replica that rolls or restarts gets the room of its old pods again, on a cluster that others wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from phalanx.base.resources import PODS
from phalanx.engine.explain import why
from phalanx.serve.queries.engine_view import EngineReader
from support.manifests import GANG, apps_set, job, leader_worker_set, template
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


def serving(image: str, *, startup: str = "LeaderCreated", **more: Any) -> Json:
    pods = template(2, image=image)
    gang = {"annotations": {GANG: "true"}}
    return leader_worker_set("serve", 3, 2, pods, leader=pods, inner=more, metadata=gang, startupPolicy=startup)


def waiting(number: int) -> Json:
    body = template("1")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"waits-{number}"}, **body}


def placed(cluster: SimulatedCluster, prefix: str, image: str = "") -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in cluster.all("Pod")
        if pod["metadata"]["name"].startswith(prefix)
        and pod["spec"].get("nodeName")
        and (not image or pod["spec"]["containers"][0]["image"] == image)
    }


async def until(true: Callable[[], bool], most: float = 60.0) -> None:
    """Wait until something is so, or `most` seconds."""
    for _ in range(int(most / 0.05)):
        if true():
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("startup", ["LeaderCreated", "LeaderReady"])
@pytest.mark.parametrize("policy", ["Keep", "Replace"])
def test_a_leader_worker_set_rolls_on_a_cluster_without_a_free_node(startup: str, policy: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            body = serving("one", startup=startup)
            body["metadata"]["annotations"]["scheduling.phalanx.dev/rescheduling-policy"] = policy
            await cluster.apply(body)
            await cluster.settle()
            assert len(placed(cluster, "serve-", "one")) == 6
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            assert not placed(cluster, "waits-")
            spec = serving("two")["spec"]["leaderWorkerTemplate"]
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"leaderWorkerTemplate": spec}})
            await cluster.settle()
            assert len(placed(cluster, "serve-", "two")) == 6
            assert not placed(cluster, "waits-"), "they wait behind what was there before"
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"replicas": 2}})
            await cluster.settle()
            assert len(placed(cluster, "waits-")) == 4, "a replica that goes for good leaves its room"

    run(main)


@pytest.mark.parametrize("startup", ["LeaderCreated", "LeaderReady"])
@pytest.mark.parametrize("down", [0.1, 40.0])
@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 2.0, 31.0])
def test_a_rollout_goes_on_when_the_scheduler_is_killed(startup: str, after: float, down: float) -> None:
    """The scheduler is killed again and again, `after` seconds after the next pod has gone, and is away for `down`."""

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            await cluster.apply(serving("one", startup=startup))
            await cluster.settle()
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            spec = serving("two", startup=startup)["spec"]["leaderWorkerTemplate"]
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"leaderWorkerTemplate": spec}})
            for _ in range(6):
                await until(lambda: len(placed(cluster, "serve-")) < 6)
                await asyncio.sleep(after)
                await cluster.kill("scheduler")
                await asyncio.sleep(down)
                await cluster.start_scheduler()
            await cluster.settle()
            assert len(placed(cluster, "serve-", "two")) == 6
            assert not placed(cluster, "waits-")

    run(main)


def job_set(image: str) -> Json:
    job = {"completions": 2, "parallelism": 2, "backoffLimit": 0, "completionMode": "Indexed"}
    pods = template("2", image=image)
    pods["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "annotations": {"scheduling.phalanx.dev/gang": "true"}},
        "spec": {
            "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": {**job, "template": pods}}}],
        },
    }


def test_a_job_set_that_restarts_gets_its_room_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2, topology="cpu=4") as cluster:
            await cluster.apply(job_set("one"))
            await cluster.settle()
            before = placed(cluster, "train-")
            assert len(before) == 4
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            failed = min(before)
            await cluster.patch("Pod", failed, {"status": {"phase": "Failed"}}, subresource="status")
            await cluster.settle()
            after = placed(cluster, "train-")
            assert len(after) == 4 and after.keys().isdisjoint(before)
            assert not placed(cluster, "waits-")
            await cluster.delete("JobSet", "train")
            await cluster.settle()
            assert len(placed(cluster, "waits-")) == 4

    run(main)


@pytest.mark.parametrize("after", [0.0, 1.0, 2.0])
def test_a_job_set_that_restarts_while_the_scheduler_is_killed_gets_its_room_again(after: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2, topology="cpu=4") as cluster:
            await cluster.apply(job_set("one"))
            await cluster.settle()
            before = placed(cluster, "train-")
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            await cluster.patch("Pod", min(before), {"status": {"phase": "Failed"}}, subresource="status")
            await until(lambda: len(placed(cluster, "train-").keys() & before.keys()) < 4)
            await asyncio.sleep(after)
            await cluster.kill("scheduler")
            await asyncio.sleep(0.1)
            await cluster.start_scheduler()
            await cluster.settle()
            after_it = placed(cluster, "train-")
            assert len(after_it) == 4 and after_it.keys().isdisjoint(before)
            assert not placed(cluster, "waits-")

    run(main)


def test_a_rollout_takes_no_more_replicas_at_a_time_than_the_policy_allows() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            policy = {
                "apiVersion": "scheduling.phalanx.dev/v1alpha1",
                "kind": "WorkloadPolicy",
                "metadata": {"name": "few"},
                "spec": {
                    "targetRef": {"kind": "LeaderWorkerSet", "name": "serve"},
                    "disruption": {"maxUnavailableReplicas": 0},
                },
            }
            rolling = {"rollingUpdateConfiguration": {"maxUnavailable": 3}}
            body = serving("one")
            body["spec"]["rolloutStrategy"] = {"type": "RollingUpdate", **rolling}
            await cluster.apply(policy)
            await cluster.apply(body)
            await cluster.settle()
            spec = serving("two")["spec"]["leaderWorkerTemplate"]
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"leaderWorkerTemplate": spec}})
            await cluster.settle()
            assert len(placed(cluster, "serve-", "one")) == 6, "no replica may be unavailable"
            assert "maxUnavailableReplicas 0" in update_message(cluster)
            await cluster.patch("WorkloadPolicy", "few", {"spec": {"disruption": {"maxUnavailableReplicas": 1}}})
            await cluster.settle()
            assert len(placed(cluster, "serve-", "two")) == 6
            assert update_message(cluster) == "No rolling upgrade is in progress"

    run(main)


def update_message(cluster: SimulatedCluster) -> str:
    (found,) = cluster.all("LeaderWorkerSet")
    return next(str(each["message"]) for each in found["status"]["conditions"] if each["type"] == "UpdateInProgress")


def test_why_names_both_revisions_while_a_set_rolls() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            body = serving("one")
            body["spec"]["rolloutStrategy"] = {"rollingUpdateConfiguration": {"partition": 2}}
            await cluster.apply(body)
            await cluster.settle()
            spec = serving("two")["spec"]["leaderWorkerTemplate"]
            await cluster.patch("LeaderWorkerSet", "serve", {"spec": {"leaderWorkerTemplate": spec}})
            await cluster.settle()
            engine = cluster.schedulers["scheduler"].engine
            names = [group["metadata"]["name"] for group in cluster.all("PodGroup")]
            levels = [why(engine, "PodGroup", "default", name).items[0].levels[0] for name in names]
            assert len({level.revision for level in levels}) == 2
            assert {level.state for level in levels} == {"Running 2 of 2"}
            groups = EngineReader(engine, cluster.clock.now).groups()
            assert {group["revision"] for group in groups.values()} == {level.revision for level in levels}
            patch = {"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 0}}}}
            await cluster.patch("LeaderWorkerSet", "serve", patch)
            await cluster.settle()
            groups = EngineReader(engine, cluster.clock.now).groups()
            assert {group["revision"] for group in groups.values()} == {""}, "all are of one revision again"

    run(main)


def training(policy: str, **spec: Any) -> Json:
    notes = {GANG: "true", "scheduling.phalanx.dev/rescheduling-policy": policy}
    return job("train", 4, 2, annotations=notes, backoffLimit=20, **spec)


async def end_one(cluster: SimulatedCluster, how: str) -> None:
    """End one pod of the gang, or all of them, in a way that its controller answers with new pods."""
    names = sorted(placed(cluster, "train-") or placed(cluster, "serve-"))
    if how == "evict":
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": names[1], "namespace": "default"}}
        await cluster.client.create(PODS, body, "default", name=names[1], subresource="eviction")
    elif how == "fail all":
        for name in names:
            await cluster.patch("Pod", name, {"status": {"phase": "Failed"}}, subresource="status")
    elif how == "fail":
        await cluster.patch("Pod", names[1], {"status": {"phase": "Failed"}}, subresource="status")
    else:
        await cluster.delete("Pod", names[1])


@pytest.mark.parametrize("how", ["delete", "fail", "fail all", "evict"])
def test_a_gang_with_replace_returns_to_its_room_also_if_it_was_lost_as_a_whole(how: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2, topology="cpu=4") as cluster:
            await cluster.apply(training("Replace"))
            await cluster.settle()
            before = placed(cluster, "train-")
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            await end_one(cluster, how)
            await cluster.settle(30)
            after = placed(cluster, "train-")
            assert sum(name not in before for name in after) == (4 if how in ("fail all", "evict") else 1)
            assert not placed(cluster, "waits-")

    run(main)


@pytest.mark.parametrize("policy", ["Keep", "Replace"])
@pytest.mark.parametrize("how", ["delete", "fail"])
def test_a_replica_that_restarts_gets_its_room_again(how: str, policy: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(3, topology="cpu=4") as cluster:
            body = serving("one")
            body["metadata"]["annotations"]["scheduling.phalanx.dev/rescheduling-policy"] = policy
            await cluster.apply(body)
            await cluster.settle()
            before = {pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            await end_one(cluster, how)
            await cluster.settle(30)
            assert len(placed(cluster, "serve-")) == 6 and not placed(cluster, "waits-")
            assert len(before - {pod["metadata"]["uid"] for pod in cluster.all("Pod")}) == 2, "the replica only"

    run(main)


def test_a_stateful_set_that_is_a_gang_rolls_on_a_full_cluster() -> None:
    def shards(image: str) -> Json:
        pods = template("2", app="serve", image=image)
        notes = {"annotations": {GANG: "true"}}
        return apps_set("StatefulSet", "serve", pods, metadata=notes, replicas=4, podManagementPolicy="Parallel")

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2, topology="cpu=4") as cluster:
            await cluster.apply(shards("one"))
            await cluster.settle()
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            await cluster.patch("StatefulSet", "serve", {"spec": {"template": shards("two")["spec"]["template"]}})
            await cluster.settle()
            assert len(placed(cluster, "serve-", "two")) == 4 and not placed(cluster, "waits-")
            await cluster.patch("StatefulSet", "serve", {"spec": {"replicas": 2}})
            await cluster.settle()
            assert len(placed(cluster, "waits-")) == 4, "two shards that go for good leave their room"

    run(main)


def test_a_gang_that_was_drained_goes_before_younger_pods_when_its_node_returns() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4, topology="cpu=4") as cluster:
            await cluster.apply(training("Replace"))
            await cluster.settle()
            for number in range(12):
                await cluster.apply(waiting(number))
            await cluster.settle()
            assert len(placed(cluster, "waits-")) == 8
            before = placed(cluster, "train-")
            name = min(before)
            await cluster.patch("Node", before[name], {"spec": {"unschedulable": True}})
            await end_one(cluster, "evict")
            await cluster.settle(30)
            assert not placed(cluster, "train-")
            await cluster.patch("Node", before[name], {"spec": {"unschedulable": None}})
            await cluster.settle(30)
            assert len(placed(cluster, "train-")) == 4

    run(main)


def test_a_suspended_gang_with_replace_leaves_its_room_within_two_minutes() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(2, topology="cpu=4") as cluster:
            await cluster.apply(training("Replace"))
            await cluster.settle()
            for number in range(4):
                await cluster.apply(waiting(number))
            await cluster.settle()
            await cluster.patch("Job", "train", {"spec": {"suspend": True}})
            await until(lambda: len(placed(cluster, "waits-")) == 4, 120.0)
            assert len(placed(cluster, "waits-")) == 4

    run(main)
