"""What simulated nodes do with pods, seen through the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from phalanx.local.nodes import KubeletOptions
from phalanx.local.nodes.pod_runs import termination
from phalanx.local.nodes.views import read_pod
from support.bound_pods import FAIL, NODE, RUN, bound, conditions, phase
from support.in_process import Json, inside


def test_a_bound_pod_runs_with_everything_clients_look_at() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await cluster.create(
                "Pod",
                "p",
                spec={"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "s", "image": "i"}]},
            )
            binding = {"target": {"kind": "Node", "name": NODE}}
            await cluster.client.create(cluster.resource("Pod"), binding, "default", name="p", subresource="binding")
            status = (await cluster.until("Pod", "p", when=phase("Running")))["status"]
            said = {condition["type"]: condition["status"] for condition in status["conditions"]}
            for type_ in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
                assert said[type_] == "True"
            assert status["startTime"] and status["podIP"] == status["podIPs"][0]["ip"]
            assert status["hostIP"] == "10.0.0.1"
            (container,) = status["containerStatuses"]
            assert container["ready"] and container["restartCount"] == 0 and container["state"]["running"]["startedAt"]
            assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0

    asyncio.run(scenario())


def test_the_deadline_of_a_pod_ends_it() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p", policy="Always", activeDeadlineSeconds=2)
            body = await cluster.until("Pod", "p", when=phase("Failed"))
            assert body["status"]["reason"] == "DeadlineExceeded"

    asyncio.run(scenario())


def test_a_deleted_pod_stops_then_goes() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p")
            await cluster.until("Pod", "p", when=phase("Running"))
            await cluster.delete("Pod", "p")
            last = await cluster.until("Pod", "p")
            assert last["metadata"]["deletionTimestamp"]

    asyncio.run(scenario())


def test_a_deleted_pod_with_a_finalizer_reports_its_end_and_waits() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p")
            await cluster.patch("Pod", "p", {"metadata": {"finalizers": ["example.com/count-me"]}})
            await cluster.until("Pod", "p", when=phase("Running"))
            await cluster.delete("Pod", "p")
            body = await cluster.until("Pod", "p", when=phase("Failed"))
            assert body["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
            await cluster.patch("Pod", "p", {"metadata": {"finalizers": None}})
            await cluster.gone("Pod", "p")

    asyncio.run(scenario())


def test_what_would_overcommit_a_node_is_refused() -> None:
    async def scenario() -> None:
        async with inside(nodes=1, topology="cpu=2,gpus=0") as cluster:
            await bound(cluster, "first", cpu="1500m")
            await cluster.until("Pod", "first", when=phase("Running"))
            await bound(cluster, "second", cpu="1")
            body = await cluster.until("Pod", "second", when=phase("Failed", "Running"))
            assert body["status"]["reason"] == "OutOfcpu" and "used: 1500" in body["status"]["message"]
            await cluster.patch("Pod", "first", {"metadata": {"annotations": {RUN: "0"}}})
            await cluster.until("Pod", "first", when=phase("Succeeded"))
            await bound(cluster, "third", cpu="2")  # room came back
            await cluster.until("Pod", "third", when=phase("Running"))

    asyncio.run(scenario())


def test_nodes_of_users_are_left_alone() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await cluster.create("Node", "mine")
            await bound(cluster, "theirs", node="mine")
            await bound(cluster, "ours")
            await cluster.until("Pod", "ours", when=phase("Running"))
            theirs, node = cluster.look("Pod", "theirs"), cluster.look("Node", "mine")
            assert theirs is not None and theirs["status"]["phase"] == "Pending"
            assert node is not None and not conditions(node)
            # Until their owner hands them over.
            await cluster.patch("Node", "mine", {"metadata": {"labels": {"simulation.phalanx.dev/simulated": "true"}}})
            await cluster.until("Pod", "theirs", when=phase("Running"))
            await cluster.until("Node", "mine", when=lambda body: conditions(body).get("Ready") == "True")

    asyncio.run(scenario())


def test_a_failed_node_is_not_ready_and_its_pods_stand_still_until_it_comes_back() -> None:
    async def scenario() -> None:
        async with inside(nodes=2) as cluster:
            await bound(cluster, "p")
            await cluster.until("Pod", "p", when=phase("Running"))
            await cluster.patch("Node", NODE, {"metadata": {"annotations": {FAIL: "true"}}})
            await cluster.until("Node", NODE, when=lambda body: conditions(body)["Ready"] == "Unknown")
            await cluster.patch("Pod", "p", {"metadata": {"annotations": {RUN: "0"}}})
            await bound(cluster, "witness", node="node-00001", annotations={RUN: "0"})
            await cluster.until("Pod", "witness", when=phase("Succeeded"))
            still = cluster.look("Pod", "p")
            assert still is not None and still["status"]["phase"] == "Running"
            await cluster.patch("Node", NODE, {"metadata": {"annotations": {FAIL: None}}})
            await cluster.until("Pod", "p", when=phase("Succeeded"))
            await cluster.until("Node", NODE, when=lambda body: conditions(body)["Ready"] == "True")

    asyncio.run(scenario())


def test_a_new_process_takes_over_running_pods() -> None:
    async def scenario() -> None:
        async with inside(duties=False) as cluster:
            first = await cluster.start_nodes(1, "cpu=2")
            await bound(cluster, "p", cpu="2", annotations={RUN: "0.5"}, policy="Never")
            await bound(cluster, "q", cpu="2")
            await cluster.until("Pod", "q", when=phase("Failed", "Running"))
            running = await cluster.until("Pod", "p", when=phase("Running", "Succeeded"))
            first.cancel()
            await cluster.start_nodes(1, "cpu=2")
            done = await cluster.until("Pod", "p", when=phase("Succeeded"))
            assert done["status"]["startTime"] == running["status"]["startTime"]

    asyncio.run(scenario())


def test_two_thousand_pods_start_and_end() -> None:
    async def scenario() -> None:
        async with inside(nodes=100, options=KubeletOptions(speed=1000)) as cluster:
            watcher = cluster.store.watch("pods")
            await asyncio.gather(
                *(bound(cluster, f"p{i}", node=f"node-{i % 100:05d}", annotations={RUN: "10"}) for i in range(2000))
            )
            done: set[str] = set()
            while len(done) < 2000:
                for change in await asyncio.wait_for(anext(watcher), 60):
                    if b'"phase":"Succeeded"' in change.entry.value:
                        done.add(change.entry.key[2])

    asyncio.run(scenario())


STOP = "simulation.phalanx.dev/stop-seconds"


@pytest.mark.parametrize(
    ("announced", "sleep", "grace", "least", "most", "code"),
    [
        ("5", 0, 30, 5, 6, 143),  # slow, and in time
        ("60", 0, 4, 4, 5, 137),  # too slow: killed when its time is up
        (None, 6, 30, 7, 8, 143),  # the hook first, then the usual second
        ("60", 5, 5, 7, 8, 137),  # a hook that uses up everything leaves two seconds
    ],
)
def test_a_deleted_pod_stops_as_slowly_as_it_says_and_no_slower_than_it_may(
    announced: str | None, sleep: int, grace: int, least: int, most: int, code: int
) -> None:
    container: Json = {"name": "c", "image": "i"}
    if sleep:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": sleep}}}
    pod = read_pod(
        json.dumps(
            {
                "metadata": {
                    "annotations": {STOP: announced} if announced else {},
                    "deletionGracePeriodSeconds": grace,
                },
                "spec": {"containers": [{"name": "quick", "image": "i"}, container]},
            }
        ).encode()
    )
    seconds, found = termination(pod, grace, 1.0)
    assert least <= seconds < most and found == code


def test_a_slow_pod_keeps_its_room_until_it_is_gone_and_less_patience_ends_it_sooner() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "slow", cpu="60", annotations={STOP: "3600"}, terminationGracePeriodSeconds=3600)
            await cluster.until("Pod", "slow", when=phase("Running"))
            await cluster.delete("Pod", "slow")
            await cluster.until(
                "Pod", "slow", when=lambda pod: pod["metadata"].get("deletionGracePeriodSeconds") == 3600
            )
            await bound(cluster, "next", cpu="60")
            refused = await cluster.until("Pod", "next", when=phase("Failed"))
            assert refused["status"]["reason"] == "OutOfcpu"
            assert (cluster.look("Pod", "slow") or {})["status"]["phase"] == "Running"
            await cluster.client.delete(cluster.resource("Pod"), "slow", "default", grace_seconds=1)
            await cluster.gone("Pod", "slow")
            await bound(cluster, "third", cpu="60")
            await cluster.until("Pod", "third", when=phase("Running"))

    asyncio.run(scenario())


def test_a_pod_for_another_operating_system_is_refused() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "a", os={"name": "windows"})
            refused = await cluster.until("Pod", "a", when=phase("Failed"))
            assert refused["status"]["reason"] == "PodOSNotSupported"
            await bound(cluster, "b", os={"name": "linux"})
            await cluster.until("Pod", "b", when=phase("Running"))

    asyncio.run(scenario())


def test_a_pod_with_a_sysctl_that_is_not_safe_is_refused() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            for name, sysctl in (("a", "kernel.msgmax"), ("b", "kernel/shm_rmid_forced")):
                await bound(cluster, name, securityContext={"sysctls": [{"name": sysctl, "value": "1"}]})
            refused = await cluster.until("Pod", "a", when=phase("Failed"))
            assert refused["status"]["reason"] == "SysctlForbidden"
            await cluster.until("Pod", "b", when=phase("Running"))

    asyncio.run(scenario())


def test_a_pod_is_ready_when_its_readiness_gates_are_true() -> None:
    def ready(wanted: str) -> Callable[[Json], bool]:
        def holds(pod: Json) -> bool:
            found = {entry["type"]: entry["status"] for entry in (pod.get("status") or {}).get("conditions") or ()}
            return found.get("Ready") == wanted and found.get("ContainersReady") == "True"

        return holds

    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "a", readinessGates=[{"conditionType": "example.com/one"}])
            for status, wanted in (("", "False"), ("True", "True"), ("False", "False")):
                if status:
                    condition = {"type": "example.com/one", "status": status}
                    await cluster.client.patch(
                        cluster.resource("Pod"),
                        "a",
                        {"status": {"conditions": [condition]}},
                        "default",
                        patch_type="application/strategic-merge-patch+json",
                        subresource="status",
                    )
                await cluster.until("Pod", "a", when=ready(wanted))

    asyncio.run(scenario())


def test_capacity_that_a_user_adds_to_a_node_can_be_used_until_it_is_taken_away() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            node = "node-00000"
            for amount in ("5", None):
                await cluster.client.patch(
                    cluster.resource("Node"),
                    node,
                    {"status": {"capacity": {"example.com/x": amount}}},
                    subresource="status",
                )
                await cluster.until(
                    "Node",
                    node,
                    "",
                    when=lambda obj, amount=amount: obj["status"]["allocatable"].get("example.com/x") == amount,
                )

    asyncio.run(scenario())


def test_a_node_says_that_it_has_seen_a_new_spec() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "a")
            await cluster.until("Pod", "a", when=phase("Running"))
            change = {"spec": {"activeDeadlineSeconds": 5000}}
            await cluster.client.patch(cluster.resource("Pod"), "a", change, "default")
            await cluster.until("Pod", "a", when=lambda obj: obj["status"].get("observedGeneration") == 2)

    asyncio.run(scenario())


def test_two_pods_cannot_have_one_port_of_a_node() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            port = {"containerPort": 80, "hostPort": 8080}
            for name in ("a", "b"):
                containers = [{"name": "c", "image": "i", "ports": [port]}]
                await bound(cluster, name, containers=containers)
                await cluster.until("Pod", name, when=phase("Running", "Failed"))
            second = cluster.look("Pod", "b") or {}
            assert (second["status"]["phase"], second["status"]["reason"]) == ("Failed", "NodePorts")
            other = [{"name": "c", "image": "i", "ports": [{**port, "protocol": "UDP"}]}]
            await bound(cluster, "c", containers=other)
            await cluster.until("Pod", "c", when=phase("Running"))

    asyncio.run(scenario())


def test_a_status_tells_which_spec_it_is_about() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p")
            found = await cluster.until("Pod", "p", when=phase("Running"))
            assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
            announced = {c["type"]: c.get("observedGeneration") for c in found["status"]["conditions"]}
            assert set(announced.values()) == {found["metadata"]["generation"]} and "PodScheduled" in announced, (
                announced
            )

    asyncio.run(scenario())


def test_a_running_pod_grows_where_its_node_has_room_and_waits_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.local.nodes.kubelet.RESIZE_RETRY_SECONDS", 0.05)

    def allocated(cpu: str) -> Callable[[Json], bool]:
        return lambda body: body["status"]["containerStatuses"][0].get("allocatedResources") == {"cpu": cpu}

    def pending(reason: str) -> Callable[[Json], bool]:
        return lambda body: any(
            (found["type"], found.get("reason")) == ("PodResizePending", reason)
            for found in body["status"].get("conditions") or ()
        )

    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            size = int(
                json.loads(await cluster.client.get(cluster.resource("Node"), NODE))["status"]["capacity"]["cpu"]
            )

            async def resize(name: str, cpu: int) -> None:
                patch = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}]}}
                kind = "application/strategic-merge-patch+json"
                await cluster.client.patch(
                    cluster.resource("Pod"), name, patch, "default", patch_type=kind, subresource="resize"
                )

            await bound(cluster, "p", cpu="1")
            await bound(cluster, "q", cpu=str(size - 3))
            for name in "pq":
                await cluster.until("Pod", name, when=phase("Running"))
            await resize("p", size + 1)
            body = await cluster.until("Pod", "p", when=pending("Infeasible"))
            assert allocated("1")(body), "the scheduler counts what it was given"
            await resize("p", 2)
            grown = await cluster.until("Pod", "p", when=allocated("2"))
            assert grown["status"]["observedGeneration"] == 3
            await resize("p", size + 1)
            body = await cluster.until("Pod", "p", when=pending("Infeasible"))
            assert "Node didn't have enough resource: cpu, requested:" in str(body["status"]["conditions"])
            await resize("p", 4)
            await cluster.until("Pod", "p", when=pending("Deferred"))
            await cluster.client.delete(cluster.resource("Pod"), "q", "default", grace_seconds=0)
            body = await cluster.until("Pod", "p", when=allocated("4"))
            assert "PodResizePending" not in conditions(body)

    asyncio.run(scenario())


def test_a_debugging_container_runs_as_far_as_anything_does() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p")
            await cluster.until("Pod", "p", when=phase("Running"))
            patch = {"spec": {"ephemeralContainers": [{"name": "shell", "image": "busybox"}]}}
            await cluster.client.patch(
                cluster.resource("Pod"), "p", patch, "default", subresource="ephemeralcontainers"
            )
            body = await cluster.until("Pod", "p", when=lambda body: body["status"].get("ephemeralContainerStatuses"))
            assert body["status"]["ephemeralContainerStatuses"][0]["state"]["running"]

    asyncio.run(scenario())
