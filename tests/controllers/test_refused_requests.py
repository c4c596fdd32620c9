"""What the API server refuses to create for a controller is reported on the user's object, for every kind."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import Json, condition, world
from support.manifests import template

POD = template("100m", app="x")
ONE_POD = {"spec": {**POD["spec"], "restartPolicy": "Never"}}
SELECTED = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": POD}
LWS = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": POD}}
ROLES = [{"name": name, "spec": LWS} for name in ("prefill", "decode")]

# (kind, spec, what no more of may be created)
CASES = [
    ("CronJob", {"schedule": "@every 1s", "jobTemplate": {"spec": {"template": ONE_POD}}}, "jobs.batch"),
    ("Deployment", SELECTED, "replicasets.apps"),
    ("ReplicaSet", SELECTED, "pods"),
    ("StatefulSet", SELECTED, "controllerrevisions.apps"),
    ("DaemonSet", {key: SELECTED[key] for key in ("selector", "template")}, "controllerrevisions.apps"),
    ("Job", {"template": ONE_POD}, "pods"),
    ("JobSet", {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": ONE_POD}}}]}, "jobs.batch"),
    ("LeaderWorkerSet", LWS, "controllerrevisions.apps"),
    ("DisaggregatedSet", {"slices": 1, "roles": ROLES}, "leaderworkersets.leaderworkerset.x-k8s.io"),
]


@pytest.mark.parametrize(("kind", "spec", "none"), CASES, ids=[case[0] for case in CASES])
def test_a_refused_request_is_reported_on_the_object_that_needs_it(kind: str, spec: Json, none: str) -> None:
    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.create("ResourceQuota", "q", spec={"hard": {f"count/{none}": "0"}})
            await cluster.create(kind, "x", spec=spec)
            await cluster.eventually(
                "Event",
                lambda events: [
                    event
                    for event in events
                    if event["involvedObject"]["kind"] == kind
                    and event["involvedObject"]["name"] == "x"
                    and event["type"] == "Warning"
                    and "exceeded quota: q" in event["message"]
                ],
            )

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_deployment_whose_replica_set_is_refused_says_so_until_it_is_created() -> None:
    async def scenario() -> None:
        async with world(nodes=1) as cluster:
            await cluster.create("ResourceQuota", "q", spec={"hard": {"count/replicasets.apps": "0"}})
            await cluster.create("Deployment", "x", spec=SELECTED)

            def reason(obj: Json) -> str:
                return str((condition(obj, "Progressing") or {}).get("reason"))

            await cluster.until("Deployment", "x", when=lambda obj: reason(obj) == "ReplicaSetCreateError")
            await cluster.delete("ResourceQuota", "q")
            await cluster.until("Deployment", "x", when=lambda obj: reason(obj) == "NewReplicaSetAvailable")

    asyncio.run(asyncio.wait_for(scenario(), 120))
