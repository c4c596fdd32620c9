"""Simulated pods do what their annotations tell: when and how they end, are ready, lack an image, or speak."""

from __future__ import annotations

import asyncio
import json

import pytest

from phalanx.local.nodes import KubeletOptions
from support.bound_pods import EXIT, RUN, bound, conditions, phase
from support.in_process import Json, inside


@pytest.mark.parametrize(
    ("policy", "code", "end"),
    [("Never", "0", "Succeeded"), ("OnFailure", "0", "Succeeded"), ("Never", "3", "Failed")],
)
def test_a_pod_ends_as_annotated(policy: str, code: str, end: str) -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p", policy=policy, annotations={RUN: "2", EXIT: code})
            await cluster.until("Pod", "p", when=phase("Running"))
            body = await cluster.until("Pod", "p", when=phase("Succeeded", "Failed"))
            assert body["status"]["phase"] == end and conditions(body)["Ready"] == "False"
            terminated = body["status"]["containerStatuses"][0]["state"]["terminated"]
            assert terminated["exitCode"] == int(code)
            assert terminated["reason"] == ("Completed" if code == "0" else "Error")

    asyncio.run(scenario())


@pytest.mark.parametrize(("policy", "code"), [("OnFailure", "1"), ("Always", "1"), ("Always", "0")])
def test_containers_are_restarted_where_the_policy_says_so(policy: str, code: str) -> None:
    async def scenario() -> None:
        async with inside(nodes=1, options=KubeletOptions(speed=500)) as cluster:
            await bound(cluster, "p", policy=policy, annotations={RUN: "1", EXIT: code})
            body = await cluster.until(
                "Pod", "p", when=lambda body: body["status"].get("containerStatuses", [{}])[0].get("restartCount") == 2
            )
            assert body["status"]["phase"] == "Running"
            assert body["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == int(code)
            waiting = await cluster.until(
                "Pod", "p", when=lambda body: "waiting" in body["status"]["containerStatuses"][0]["state"]
            )
            assert waiting["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            assert conditions(waiting)["Ready"] == "False"

    asyncio.run(scenario())


def test_a_running_pod_ends_when_annotated() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p")
            await cluster.until("Pod", "p", when=phase("Running"))
            await cluster.patch("Pod", "p", {"metadata": {"annotations": {RUN: "0", EXIT: "7"}}})
            body = await cluster.until("Pod", "p", when=phase("Failed"))
            assert body["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7

    asyncio.run(scenario())


def test_an_image_that_cannot_be_pulled_holds_a_pod_until_it_names_another() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            missing = {"simulation.phalanx.dev/missing-image": "bad:v2, i", RUN: "0"}
            await bound(cluster, "p", policy="Always", annotations=missing)
            body = await cluster.until(
                "Pod", "p", when=lambda body: body["status"].get("containerStatuses") is not None
            )
            (container,) = body["status"]["containerStatuses"]
            assert body["status"]["phase"] == "Pending" and conditions(body)["ContainersReady"] == "False"
            assert container["state"]["waiting"]["reason"] == "ImagePullBackOff" and not container["ready"]
            assert '"i"' in container["state"]["waiting"]["message"]
            change = {
                "metadata": {"annotations": {RUN: None}},
                "spec": {"containers": [{"name": "c", "image": "good"}]},
            }
            await cluster.client.patch(
                cluster.resource("Pod"), "p", change, "default", patch_type="application/strategic-merge-patch+json"
            )
            body = await cluster.until("Pod", "p", when=phase("Running"))
            assert (
                conditions(body)["Ready"] == "True" and "waiting" not in body["status"]["containerStatuses"][0]["state"]
            )

    asyncio.run(scenario())


def test_a_pod_that_is_deleted_before_its_image_is_pulled_has_failed() -> None:
    """As with a real kubelet; a Job with a podFailurePolicy waits for the phase before it makes another pod."""

    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            missing = {"simulation.phalanx.dev/missing-image": "i"}
            await bound(cluster, "p", annotations=missing)
            hold = {"metadata": {"finalizers": ["test.phalanx.dev/hold"]}}
            await cluster.patch("Pod", "p", hold)
            await cluster.until("Pod", "p", when=lambda pod: pod["status"].get("containerStatuses") is not None)
            await cluster.delete("Pod", "p")
            body = await cluster.until("Pod", "p", when=phase("Failed"))
            assert body["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137

    asyncio.run(scenario())


def test_a_node_tells_events_of_pods_that_ask_for_it_and_of_missing_images() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            watcher = cluster.store.watch("events")
            await bound(cluster, "silent")
            await cluster.until("Pod", "silent", when=phase("Running"))
            await bound(cluster, "loud", annotations={"simulation.phalanx.dev/events": "true"})
            await bound(cluster, "stuck", annotations={"simulation.phalanx.dev/missing-image": "i"})
            wanted = {("loud", reason, "kubelet") for reason in ("Pulled", "Created", "Started")}
            wanted.add(("stuck", "Failed", "kubelet"))
            announced: set[tuple[str, str, str]] = set()
            async for batch in watcher:
                for event in (json.loads(change.entry.value) for change in batch):
                    announced.add((event["involvedObject"]["name"], event["reason"], event["source"]["component"]))
                if announced >= wanted:
                    break
            assert announced == wanted

    asyncio.run(scenario())


def test_containers_are_not_ready_while_annotated_so() -> None:
    ready = "simulation.phalanx.dev/ready-seconds"

    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await bound(cluster, "p", annotations={ready: "1e6"})
            body = await cluster.until("Pod", "p", when=phase("Running"))
            assert (conditions(body)["Ready"], conditions(body)["ContainersReady"]) == ("False", "False")
            assert not body["status"]["containerStatuses"][0]["ready"]
            await cluster.patch("Pod", "p", {"metadata": {"annotations": {ready: "0"}}})
            body = await cluster.until("Pod", "p", when=lambda body: conditions(body).get("Ready") == "True")
            assert body["status"]["containerStatuses"][0]["ready"] and conditions(body)["ContainersReady"] == "True"
            await cluster.patch("Pod", "p", {"metadata": {"annotations": {ready: "1e6"}}})
            await cluster.until("Pod", "p", when=lambda body: conditions(body).get("Ready") == "False")
            await cluster.patch("Pod", "p", {"metadata": {"annotations": {ready: "1"}}})
            await cluster.until("Pod", "p", when=lambda body: conditions(body).get("Ready") == "True")

    asyncio.run(scenario())


@pytest.mark.parametrize("rules", [[], [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]])
def test_every_run_has_an_exit_code_of_its_own(rules: list[Json]) -> None:
    async def scenario() -> None:
        async with inside(nodes=1, options=KubeletOptions(speed=500)) as cluster:
            container = {
                "name": "c",
                "image": "i",
                **({"restartPolicyRules": rules, "restartPolicy": "Never"} if rules else {}),
            }
            policy = "Never" if rules else "OnFailure"
            annotations = {RUN: "1", EXIT: "42,42,0"}
            await bound(cluster, "p", policy=policy, containers=[container], annotations=annotations)
            body = await cluster.until("Pod", "p", when=phase("Succeeded", "Failed"))
            assert body["status"]["phase"] == "Succeeded"
            assert body["status"]["containerStatuses"][0]["restartCount"] == 2

    asyncio.run(scenario())
