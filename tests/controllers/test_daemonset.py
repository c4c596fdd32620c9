"""DaemonSets: one pod on every node that fits, wherever nodes come from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.controller_world import DyingClient, Json, World, image_of, world
from support.manifests import apps_set, container, template


def daemon_set(name: str, image: str = "v1", **spec: Any) -> Json:
    return apps_set("DaemonSet", name, template("100m", app=name, image=image), **spec)


def rolled_out(obj: Json) -> bool:
    """What `kubectl rollout status` waits for."""
    status = obj.get("status") or {}
    wanted = status.get("desiredNumberScheduled")
    return bool(
        wanted
        and status.get("observedGeneration") == obj["metadata"]["generation"]
        and status.get("updatedNumberScheduled") == status.get("numberAvailable") == wanted
    )


async def done(cluster: World, name: str) -> Json:
    return await cluster.until("DaemonSet", name, when=rolled_out)


def test_every_node_that_fits_gets_one_and_only_one() -> None:
    async def scenario() -> None:
        async with world(nodes=3) as cluster:
            await cluster.patch("Node", "node-00001", {"metadata": {"labels": {"gpu": "no"}}})
            spec = daemon_set("agent")
            term = {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
            spec["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
            await cluster.apply(spec)
            found = await done(cluster, "agent")
            assert found["status"]["desiredNumberScheduled"] == 2
            assert sorted(pod["spec"]["nodeName"] for pod in cluster.all("Pod")) == ["node-00000", "node-00002"]
            await cluster.patch("Node", "node-00001", {"metadata": {"labels": {"gpu": None}}})
            await cluster.eventually("Pod", lambda pods: len(pods) == 3)
            taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
            await cluster.patch("Node", "node-00002", {"spec": {"taints": [taint]}})
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 2)
            assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["node-00000", "node-00001"]

    asyncio.run(scenario())


def test_a_node_that_is_cordoned_or_not_ready_keeps_its_daemon() -> None:
    async def scenario() -> None:
        async with world(nodes=2) as cluster:
            await cluster.patch("Node", "node-00001", {"spec": {"unschedulable": True}})
            await cluster.apply(daemon_set("agent"))
            found = await done(cluster, "agent")
            assert found["status"]["desiredNumberScheduled"] == 2

    asyncio.run(scenario())


def test_a_toleration_may_compare_numbers() -> None:
    async def scenario() -> None:
        async with world(nodes=2) as cluster:
            taint = {"key": "example.com/load", "value": "3", "effect": "NoSchedule"}
            await cluster.patch("Node", "node-00001", {"spec": {"taints": [taint]}})
            agent = daemon_set("agent")
            tolerations = [{"key": "example.com/load", "operator": "Lt", "value": "5", "effect": "NoSchedule"}]
            agent["spec"]["template"]["spec"]["tolerations"] = tolerations
            await cluster.apply(agent)
            found = await done(cluster, "agent")
            assert found["status"]["desiredNumberScheduled"] == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("unavailable", [1, "100%"])
def test_an_update_is_rolled_within_its_allowance(unavailable: Any) -> None:
    async def scenario() -> None:
        async with world(nodes=3) as cluster:
            strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}}
            await cluster.apply(daemon_set("agent", updateStrategy=strategy))
            await done(cluster, "agent")
            worst = 0

            def watch(pods: list[Json]) -> bool:
                nonlocal worst
                worst = max(worst, sum("deletionTimestamp" in pod["metadata"] for pod in pods))
                return len(pods) == 3 and {image_of(pod) for pod in pods} == {"v2"}

            change = {"spec": {"template": {"spec": {"containers": [container("100m") | {"image": "v2"}]}}}}
            await cluster.patch("DaemonSet", "agent", change)
            await cluster.eventually("Pod", watch)
            assert worst == (1 if unavailable == 1 else 3)
            await done(cluster, "agent")
            revisions = cluster.all("ControllerRevision")
            template = revisions[0]["data"]["spec"]["template"]
            assert list(template["spec"]) == sorted(template["spec"])
            assert [rev["revision"] for rev in sorted(revisions, key=lambda rev: rev["revision"])] == [1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_killed_at_any_write_no_node_gets_two(writes: int) -> None:
    async def scenario() -> None:
        async with world(nodes=3, controllers=False) as cluster:
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.apply(daemon_set("agent"))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await done(cluster, "agent")
            assert len({pod["spec"]["nodeName"] for pod in cluster.all("Pod")}) == len(cluster.all("Pod")) == 3

    asyncio.run(scenario())
