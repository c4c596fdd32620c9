"""Nodes that fail, fall silent, are cordoned or deleted: their taints, and the pods that leave them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.json import decode

from phalanx.base.clock import rfc3339_micro
from phalanx.controllers.nodes.lifecycle import wanted_taints
from phalanx.controllers.nodes.taint_eviction import stays
from phalanx.local.store.watchers import StoreWatcher
from phalanx.model.objects.cluster import Taint
from support.controller_world import Json, World, condition, world
from support.manifests import pod, template
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run

FAIL = "simulation.phalanx.dev/fail"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


def node(name: str, **conditions: str) -> Json:
    """A node of the user's own: no simulated kubelet looks after it."""
    capacity = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    reported = [{"type": type_, "status": status} for type_, status in conditions.items()]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": reported},
    }


def tolerate(key: str, seconds: int | None = None, effect: str = "NoExecute") -> Json:
    body: Json = {"key": key, "operator": "Exists", "effect": effect}
    return body if seconds is None else {**body, "tolerationSeconds": seconds}


def soon(seconds: int = 1) -> list[Json]:
    return [tolerate(NOT_READY, seconds), tolerate(UNREACHABLE, seconds)]


def taints_of(obj: Json) -> set[tuple[str, str]]:
    return {(taint["key"], taint["effect"]) for taint in (obj.get("spec") or {}).get("taints") or ()}


def tainted(*wanted: tuple[str, str]) -> Callable[[Json], bool]:
    return lambda obj: taints_of(obj) == set(wanted)


def both(key: str) -> Callable[[Json], bool]:
    return tainted((key, "NoSchedule"), (key, "NoExecute"))


def no_execute(key: str) -> Json:
    return {"key": key, "effect": "NoExecute"}


def held(body: Json) -> Json:
    """Stays to be looked at when it has been deleted."""
    body["metadata"]["finalizers"] = ["test.phalanx.dev/hold"]
    return body


def leaving(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def running(obj: Json) -> bool:
    return bool(obj.get("status", {}).get("phase") == "Running")


async def say(cluster: World, name: str, **conditions: str) -> None:
    """The node reports about itself."""
    updates = [{"type": type_, "status": status} for type_, status in conditions.items()]
    await cluster.client.patch(
        cluster.resource("Node"),
        name,
        {"status": {"conditions": updates}},
        patch_type="application/strategic-merge-patch+json",
        subresource="status",
    )


async def caught_up(cluster: World) -> None:
    """Whatever the node controller had to say before now has been said: it has answered a later question."""
    await cluster.create("Node", "witness", spec={"unschedulable": True})
    await cluster.until("Node", "witness", when=tainted((UNSCHEDULABLE, "NoSchedule")))
    await cluster.delete("Node", "witness")


def test_a_node_that_is_not_ready_is_tainted_and_freed_when_it_recovers() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(node("a", Ready="True"))
            await cluster.patch("Node", "a", {"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}})
            mine = ("mine", "NoSchedule")
            await say(cluster, "a", Ready="False")
            found = await cluster.until(
                "Node", "a", when=tainted(mine, (NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute"))
            )
            assert all("timeAdded" in taint for taint in found["spec"]["taints"] if taint["key"] == NOT_READY)
            await say(cluster, "a", Ready="Unknown", MemoryPressure="True")
            await cluster.until(
                "Node",
                "a",
                when=tainted(
                    mine,
                    (UNREACHABLE, "NoSchedule"),
                    (UNREACHABLE, "NoExecute"),
                    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
                ),
            )
            await say(cluster, "a", Ready="True", MemoryPressure="False")
            await cluster.until("Node", "a", when=tainted(mine))

    asyncio.run(scenario())


def test_a_node_that_never_sent_a_heartbeat_is_used_as_it_is() -> None:
    async def scenario() -> None:
        async with world(0) as cluster:
            own_taint = {"key": NOT_READY, "effect": "PreferNoSchedule"}
            await cluster.apply({**node("a"), "spec": {"taints": [own_taint]}})
            await caught_up(cluster)
            found = cluster.look("Node", "a")
            assert found is not None and found["spec"]["taints"] == [own_taint]
            assert not found["status"].get("conditions")
            await cluster.apply(pod("p", "100m"))
            await cluster.until("Pod", "p", when=lambda p: p["spec"].get("nodeName") == "a")

    asyncio.run(scenario())


def test_cordon_and_uncordon_show_as_a_taint() -> None:
    async def scenario() -> None:
        async with world(1, scheduler=False) as cluster:
            await cluster.patch("Node", "node-00000", {"spec": {"unschedulable": True}})
            await cluster.until("Node", "node-00000", when=tainted((UNSCHEDULABLE, "NoSchedule")))
            await cluster.patch("Node", "node-00000", {"spec": {"unschedulable": None}})
            await cluster.until("Node", "node-00000", when=tainted())

    asyncio.run(scenario())


def test_a_node_whose_lease_is_not_renewed_becomes_unknown() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            for name in ("silent", "alive"):
                await cluster.apply(node(name, Ready="True"))
            await cluster.apply(node("no-lease", Ready="True"))
            renewals = 0

            async def renew(*names: str) -> None:
                nonlocal renewals
                renewals += 1
                for name in names:
                    spec = {"renewTime": rfc3339_micro(1_700_000_000.0 + renewals)}  # a clock of its own
                    await cluster.patch("Lease", name, {"spec": spec}, "kube-node-lease")

            for name in ("silent", "alive"):
                spec = {"holderIdentity": name, "leaseDurationSeconds": 2}
                await cluster.create("Lease", name, "kube-node-lease", spec=spec)
            await renew("silent", "alive")

            async def keep_alive() -> None:
                while True:
                    await asyncio.sleep(0.1)
                    await renew("alive")

            beating = asyncio.create_task(keep_alive())
            try:
                silent = await cluster.until("Node", "silent", when=both(UNREACHABLE))
            finally:
                beating.cancel()
            ready = condition(silent, "Ready")
            assert (ready["status"], ready["reason"]) == ("Unknown", "NodeStatusUnknown")
            assert condition(silent, "DiskPressure")["reason"] == "NodeStatusNeverUpdated"
            for name in ("alive", "no-lease"):
                other = cluster.look("Node", name)
                assert other is not None and condition(other, "Ready")["status"] == "True"
                assert taints_of(other) == set()
            # It comes back when it says so, and its word counts as a sign of life.
            await say(cluster, "silent", Ready="True")
            await cluster.until("Node", "silent", when=tainted())

    asyncio.run(scenario())


async def ready_of_nodes(watching: StoreWatcher) -> list[tuple[str, str]]:
    """Every state that nodes were said to be in since the watch began."""
    watching.close()
    changes = [change.entry async for batch in watching for change in batch]
    return [(entry.key[2], condition(decode(entry.value), "Ready")["status"]) for entry in changes]


def test_a_machine_that_slept_loses_no_node_and_no_pod() -> None:
    """Seen after a process was stopped for a minute: every node unknown, every pod not ready, for nothing."""

    async def scenario(loop: VirtualLoop) -> None:
        async with simulated_cluster(nodes=4, seed=1) as cluster:
            await cluster.apply(pod("p", "100m"))
            await cluster.settle()
            watching = cluster.store.watch("nodes")
            before = {p["metadata"]["uid"]: condition(p, "Ready")["lastTransitionTime"] for p in cluster.all("Pod")}
            loop.jump(600)
            await asyncio.sleep(400)
            assert all(status == "True" for _, status in await ready_of_nodes(watching))
            after = {p["metadata"]["uid"]: condition(p, "Ready")["lastTransitionTime"] for p in cluster.all("Pod")}
            assert before == after and len(before) == 1

    run(scenario)


def test_a_node_that_died_while_no_controller_listened_is_found_out_afterwards() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async with simulated_cluster(nodes=2, seed=1) as cluster:
            await asyncio.sleep(15)  # both have a lease
            watching = cluster.store.watch("nodes")
            assert cluster.nodes is not None
            del cluster.nodes.kubelet.nodes["node-00001"]  # its lease is not renewed until something is heard of it
            loop.jump(600)
            await asyncio.sleep(30)
            there = {n["metadata"]["name"]: condition(n, "Ready")["status"] for n in cluster.all("Node")}
            assert set(there.values()) == {"True"}, "silent for less than a lease lasts, as far as was heard"
            await asyncio.sleep(40)
            assert ("node-00001", "Unknown") in (said := await ready_of_nodes(watching))
            assert ("node-00000", "Unknown") not in said

    run(scenario)


def test_pods_leave_a_node_with_a_taint_they_do_not_tolerate() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            await cluster.apply(held(pod("unrelated", "100m")))
            await cluster.apply(held(pod("guest", "100m", tolerations=[tolerate("maintenance", 1)])))
            await cluster.apply(pod("resident", "100m", tolerations=[tolerate("maintenance")]))
            for name in ("unrelated", "guest", "resident"):
                await cluster.until("Pod", name, when=running)
            taint = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
            await cluster.patch("Node", "node-00000", {"spec": {"taints": [taint]}})
            leaving_now = await cluster.until("Pod", "unrelated", when=leaving)
            target = condition(leaving_now, "DisruptionTarget")
            assert (target["status"], target["reason"]) == ("True", "DeletionByTaintManager")
            guest = cluster.look("Pod", "guest")
            assert guest is not None and not leaving(guest)
            await cluster.until("Pod", "guest", when=leaving)
            resident = cluster.look("Pod", "resident")
            assert resident is not None and not leaving(resident)

    asyncio.run(scenario())


def test_pods_stay_when_the_taint_goes_before_their_time_is_up() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            await cluster.apply(pod("short", "100m", tolerations=[tolerate("maintenance", 1)]))
            await cluster.apply(pod("long", "100m", tolerations=[tolerate("maintenance", 2), tolerate("other")]))
            await cluster.apply(pod("later", "100m", tolerations=[tolerate("maintenance"), tolerate("other", 2)]))
            for name in ("short", "long", "later"):
                await cluster.until("Pod", name, when=running)
            await cluster.patch("Node", "node-00000", {"spec": {"taints": [no_execute("maintenance")]}})
            await cluster.gone("Pod", "short")
            # Two seconds from here end after those of `long` would have.
            await cluster.patch("Node", "node-00000", {"spec": {"taints": [no_execute("other")]}})
            await cluster.gone("Pod", "later")
            long = cluster.look("Pod", "long")
            assert long is not None and not leaving(long)

    asyncio.run(scenario())


def test_the_pods_of_a_failed_node_move() -> None:
    async def scenario() -> None:
        async with world(3) as cluster:
            spec = template("100m", app="web")
            spec["spec"]["tolerations"] = soon()
            body = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web"},
                "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}}, "template": spec},
            }
            await cluster.apply(body)

            def available(obj: Json) -> bool:
                return bool(obj.get("status", {}).get("availableReplicas") == 6)

            await cluster.until("Deployment", "web", when=available)
            there = [p for p in cluster.all("Pod") if p["spec"]["nodeName"] == "node-00001"]
            assert there, "the scheduler spreads pods over nodes"
            await cluster.patch("Node", "node-00001", {"metadata": {"annotations": {FAIL: "true"}}})
            await cluster.until("Node", "node-00001", when=both(UNREACHABLE))

            def moved(pods: list[Json]) -> bool:
                alive = [p for p in pods if not leaving(p)]
                elsewhere = all(p["spec"].get("nodeName") in ("node-00000", "node-00002") for p in alive)
                return len(alive) == 6 and elsewhere and all(map(running, alive))

            pods = await cluster.eventually("Pod", moved)
            assert sum(map(leaving, pods)) == len(there), "their end is not confirmed while the node is away"
            # The node comes back: it finishes what it was asked to, and may be used again.
            await cluster.patch("Node", "node-00001", {"metadata": {"annotations": {FAIL: None}}})
            await cluster.until("Node", "node-00001", when=tainted())
            await cluster.eventually("Pod", lambda found: len(found) == 6)

    asyncio.run(scenario())


def test_pods_of_a_failed_node_are_not_ready_until_it_is_back() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            await cluster.apply(pod("p", "100m"))

            def ready(value: str) -> Callable[[Json], bool]:
                return lambda p: condition(p, "Ready").get("status") == value

            await cluster.until("Pod", "p", when=ready("True"))
            await cluster.patch("Node", "node-00000", {"metadata": {"annotations": {FAIL: "true"}}})
            announced = await cluster.until("Pod", "p", when=ready("False"))
            assert condition(announced, "Ready")["reason"] == "NodeNotReady"
            await cluster.patch("Node", "node-00000", {"metadata": {"annotations": {FAIL: None}}})
            back = await cluster.until("Pod", "p", when=ready("True"))
            assert "reason" not in condition(back, "Ready") and not leaving(back)

    asyncio.run(scenario())


def test_pods_of_a_node_declared_out_of_service_are_removed() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            await cluster.apply(pod("p", "100m", tolerations=[*soon(0)]))
            await cluster.until("Pod", "p", when=running)
            await cluster.patch("Node", "node-00000", {"metadata": {"annotations": {FAIL: "true"}}})
            await cluster.until("Pod", "p", when=leaving)
            found = await cluster.until("Node", "node-00000", when=both(UNREACHABLE))
            dead = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
            await cluster.patch("Node", "node-00000", {"spec": {"taints": [*found["spec"]["taints"], dead]}})
            await cluster.gone("Pod", "p")

    asyncio.run(scenario())


def test_pods_of_a_deleted_node_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.controllers.nodes.taint_eviction.QUARANTINE", 0.2)

    async def scenario() -> None:
        async with world(2) as cluster:
            await cluster.apply(held(pod("lost", "100m", nodeName="node-00000")))
            await cluster.apply(pod("other", "100m", nodeName="node-00001"))
            for name in ("lost", "other"):
                await cluster.until("Pod", name, when=running)
            await cluster.delete("Node", "node-00000")
            last = await cluster.until("Pod", "lost", when=leaving)
            assert last["status"]["phase"] == "Failed"
            assert condition(last, "DisruptionTarget")["reason"] == "DeletionByPodGC"
            other = cluster.look("Pod", "other")
            assert other is not None and running(other)

    asyncio.run(scenario())


def test_a_job_replaces_a_pod_that_was_deleted_before_it_got_a_node() -> None:
    """A Job with a podFailurePolicy waits until the old pod has failed, and no kubelet reports that."""
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}

    async def scenario() -> None:
        async with world(1) as cluster:
            spec = {"podFailurePolicy": {"rules": [ignored]}, "template": template("900", restartPolicy="Never")}
            await cluster.create("Job", "big", spec=spec)
            (first,) = await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            await cluster.delete("Pod", first["metadata"]["name"])
            await cluster.gone("Pod", first["metadata"]["name"])
            (second,) = await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            assert second["metadata"]["uid"] != first["metadata"]["uid"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 0.0),
        ([tolerate("a")], 0.0),  # the other taint is not tolerated
        ([tolerate("a"), tolerate("b")], None),
        ([tolerate("a", 30), tolerate("b", 10)], 10.0),
        ([tolerate("a", 30), tolerate("b")], 30.0),
        ([tolerate("a", -5), tolerate("b")], 0.0),
        ([{"operator": "Exists"}], None),
        ([tolerate("a", 7), {"operator": "Exists"}], 7.0),
        ([{"operator": "Exists", "effect": "NoSchedule"}], 0.0),
        ([{"key": "a", "value": "x", "effect": "NoExecute"}, tolerate("b")], None),
        ([{"key": "a", "value": "y", "effect": "NoExecute"}, tolerate("b")], 0.0),
    ],
)
def test_how_long_a_pod_may_stay(tolerations: list[Json], seconds: float | None) -> None:
    taints = [Taint("a", "x", "NoExecute"), Taint("b", "", "NoExecute")]
    assert stays(pod("p", "100m", tolerations=list(tolerations)), taints) == seconds
    assert stays(pod("p", "100m"), []) is None


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ({}, set()),
        ({"Ready": "True", "DiskPressure": "False"}, set()),
        ({"Ready": "False"}, {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}),
        ({"Ready": "Unknown"}, {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}),
        ({"DiskPressure": "True"}, {("node.kubernetes.io/disk-pressure", "NoSchedule")}),
        ({"PIDPressure": "True"}, {("node.kubernetes.io/pid-pressure", "NoSchedule")}),
        ({"NetworkUnavailable": "True"}, {("node.kubernetes.io/network-unavailable", "NoSchedule")}),
        ({"MemoryPressure": "Unknown"}, set()),
    ],
)
def test_taints_follow_from_conditions(conditions: dict[str, str], wanted: set[tuple[str, str]]) -> None:
    assert set(wanted_taints(node("a", **conditions))) == wanted
