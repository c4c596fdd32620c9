"""What a JobSet says about restarts and about the order of its start; placement that its template chose itself."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.controllers.workloads.job import controller as job_module
from phalanx.controllers.workloads.jobset.jobs import build
from support.controller_world import World, condition, play
from support.manifests import EXIT, RUN, jobset, part

Json = dict[str, Any]
FRAGILE: Json = {"job": {"backoffLimit": 0}, "pod": {"restartPolicy": "Never"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "FIRST_BACKOFF", 0.0)


def status(obj: Json, type_: str) -> str:
    return str(condition(obj, type_).get("status") or "")


async def fail(cluster: World, job: str) -> None:
    """End the running pod of a Job of one pod with an error."""

    def running(pods: list[Json]) -> bool:
        return any(p["metadata"]["name"].startswith(job) and p["status"].get("phase") == "Running" for p in pods)

    pods = await cluster.eventually("Pod", running)
    name = next(p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith(job))
    await cluster.patch("Pod", name, {"metadata": {"annotations": {RUN: "0", EXIT: "1"}}})


def test_the_order_of_the_start_begins_again_with_a_restart() -> None:
    async def scenario(cluster: World) -> None:
        made = jobset(
            "js",
            part("a", 1, 1, **FRAGILE),
            part("b", 1, 1, **FRAGILE),
            startupPolicy={"startupPolicyOrder": "InOrder"},
            failurePolicy={"maxRestarts": 1},
        )
        await cluster.apply(made)
        await cluster.until("JobSet", "js", when=lambda j: status(j, "StartupPolicyCompleted") == "True")
        await fail(cluster, "js-b-0")
        await cluster.until(
            "JobSet",
            "js",
            when=lambda j: j["status"].get("restarts") == 1 and status(j, "StartupPolicyInProgress") == "True",
        )
        found = await cluster.until("JobSet", "js", when=lambda j: status(j, "StartupPolicyCompleted") == "True")
        assert status(found, "StartupPolicyInProgress") == "False"

    play(scenario)


def test_restarts_that_are_not_limited_leave_the_limited_counter_unset() -> None:
    async def scenario(cluster: World) -> None:
        rules = [{"name": "free", "action": "RestartJobAndIgnoreMaxRestarts"}]
        policy = {"maxRestarts": 0, "rules": rules}
        await cluster.apply(jobset("js", part("a", 2, 1, **FRAGILE), failurePolicy=policy))
        await fail(cluster, "js-a-1")
        found = await cluster.until(
            "JobSet", "js", when=lambda j: j["status"]["replicatedJobsStatus"][0].get("jobRestarts") == [0, 1]
        )
        assert "jobRestartsCountTowardsMax" not in found["status"]["replicatedJobsStatus"][0]
        reason = "RestartJobAndIgnoreMaxRestartsFailurePolicyAction"
        await cluster.eventually("Event", lambda events: any(event["reason"] == reason for event in events))

    play(scenario)


def test_a_suspended_set_is_not_restarting() -> None:
    async def scenario(cluster: World) -> None:
        policy = {"maxRestarts": 5}
        await cluster.apply(jobset("js", part("a", 1, 1, **FRAGILE), part("b", 1, 1), failurePolicy=policy))
        await fail(cluster, "js-a-0")
        await cluster.until("JobSet", "js", when=lambda j: condition(j, "RestartingJobSet"))
        await cluster.patch("JobSet", "js", {"spec": {"suspend": True}})
        await cluster.until(
            "JobSet",
            "js",
            when=lambda j: status(j, "Suspended") == "True" and status(j, "RestartingJobSet") == "False",
        )

    play(scenario)


def test_a_template_that_chooses_its_own_domain_gets_no_second_pair_of_terms() -> None:
    term = {"labelSelector": {"matchLabels": {"mine": "yes"}}, "topologyKey": "rack"}
    affinity = {"podAffinity": {REQUIRED: [term]}, "podAntiAffinity": {REQUIRED: [term]}}
    notes = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    for own, terms in ((affinity, 1), ({"podAffinity": {REQUIRED: [term]}}, 2), ({}, 1)):
        item = part("a", 1, 1, pod={"affinity": own} if own else {})
        made = jobset("js", item, annotations=notes, uid="u")
        job = build(made, item, 0, 0, job_attempt=None, link=None, own_domain=False)
        found = job["spec"]["template"]["spec"]["affinity"]
        assert len(found["podAffinity"][REQUIRED]) == terms
        assert len(found["podAntiAffinity"][REQUIRED]) == 1
