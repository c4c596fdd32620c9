"""Sets and Jobs say in events which pods they created, deleted or could not create."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.controllers.runtime.pods import BURST, REFILL_SECONDS, PodEvents
from support.controller_world import Json, condition, world
from support.manifests import template
from support.manual_clock import ManualClock

SELECTOR = {"matchLabels": {"app": "x"}}


def announced(events: list[Json], kind: str, reason: str) -> list[str]:
    return [e["message"] for e in events if e["reason"] == reason and e["involvedObject"]["kind"] == kind]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "Job"])
def test_pods_that_come_and_go_are_reported(kind: str) -> None:
    async def scenario() -> None:
        async with world(nodes=2) as cluster:
            pod = template("100m", app="x")
            spec: Json = {"selector": SELECTOR, "template": pod}
            if kind == "Job":
                pod["spec"]["restartPolicy"] = "Never"
                spec = {"parallelism": 2, "completions": 2, "template": pod}
            elif kind != "DaemonSet":
                spec["replicas"] = 2
            await cluster.create(kind, "x", spec=spec)
            await cluster.eventually("Event", lambda found: len(announced(found, kind, "SuccessfulCreate")) == 2)
            if kind == "Job":
                await cluster.patch(kind, "x", {"spec": {"suspend": True}})
            elif kind == "DaemonSet":
                spec = {"template": {"spec": {"nodeSelector": {"no": "node"}}}}
                await cluster.patch(kind, "x", {"spec": spec})
            else:
                await cluster.patch(kind, "x", {"spec": {"replicas": 0}})
            found = await cluster.eventually("Event", lambda found: announced(found, kind, "SuccessfulDelete"))
            assert all(text.startswith("Created pod: x-") for text in announced(found, kind, "SuccessfulCreate"))

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_a_pod_that_is_refused_is_reported(kind: str) -> None:
    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.create("ResourceQuota", "q", spec={"hard": {"pods": "0"}})
            spec: Json = {"selector": SELECTOR, "template": template("100m", app="x")}
            await cluster.create(kind, "x", spec=spec)
            found = await cluster.eventually("Event", lambda found: announced(found, kind, "FailedCreate"))
            assert "exceeded quota" in announced(found, kind, "FailedCreate")[0]

    asyncio.run(scenario())


def followed(obj: Json, replicas: int) -> bool:
    return obj["spec"]["replicas"] == replicas and obj["status"]["observedGeneration"] == obj["metadata"]["generation"]


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_a_set_over_its_quota_is_written_once_not_at_every_attempt(kind: str) -> None:
    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.create("ResourceQuota", "q", spec={"hard": {"pods": "0"}})
            labels = SELECTOR if kind == "ReplicaSet" else {"app": "x"}
            await cluster.create(kind, "x", spec={"selector": labels, "template": template("100m", app="x")})
            failed = await cluster.until(kind, "x", when=lambda obj: condition(obj, "ReplicaFailure"))
            for replicas in (2, 3, 4):  # each change is one more attempt, whose pod has another name
                await cluster.patch(kind, "x", {"spec": {"replicas": replicas}})
                again = await cluster.until(kind, "x", when=lambda obj, count=replicas: followed(obj, count))
                assert condition(again, "ReplicaFailure") == condition(failed, "ReplicaFailure")
            assert len(announced(cluster.all("Event"), kind, "FailedCreate")) == 1

    asyncio.run(scenario())


def test_a_job_over_its_quota_says_so_again_after_a_pod_was_created() -> None:
    """`phalanx why` reads from the last event whether pods can be created."""

    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.create("ResourceQuota", "q", spec={"hard": {"pods": "1"}})
            pod = template("100m", app="x")
            pod["spec"]["restartPolicy"] = "Never"
            await cluster.create("Job", "x", spec={"parallelism": 2, "completions": 4, "template": pod})
            await cluster.eventually("Event", lambda found: announced(found, "Job", "FailedCreate"))
            (first,) = cluster.names("Pod")
            await cluster.delete("Pod", first)
            found = await cluster.eventually("Event", lambda found: len(announced(found, "Job", "FailedCreate")) == 2)
            assert len(set(announced(found, "Job", "FailedCreate"))) == 1

    asyncio.run(scenario())


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def normal(self, *_: object, **__: object) -> None:
        self.count += 1


def test_a_large_set_does_not_fill_the_store_with_events() -> None:
    counter, clock = Counter(), ManualClock()
    events = PodEvents(counter, clock, "replicaset")  # type: ignore[arg-type]
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u", "controller": True}
    for number in range(1000):
        meta = {"name": f"p{number}", "namespace": "ns", "uid": str(number), "ownerReferences": [reference]}
        events.created({"metadata": meta})
    assert counter.count == BURST
    clock.advance(REFILL_SECONDS)
    events.created({"metadata": meta})
    assert counter.count == BURST + 1
