"""JobSets: which failure rule counts, what belongs to a set, and what it keeps there while it lives."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.controllers.workloads.job import controller as job_module
from support.controller_world import World, condition, play
from support.manifests import jobset, part
from support.states import end, finished, live, running

Json = dict[str, Any]
P = "jobset.sigs.k8s.io/"
FRAGILE: Json = {"job": {"backoffLimit": 0}, "pod": {"restartPolicy": "Never"}}
LIMIT = "BackoffLimitExceeded"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "FIRST_BACKOFF", 0.0)


def stop(**match: Any) -> Json:
    return {"name": "stop", "action": "FailJobSet", **match}


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([stop(onJobFailureMessagePatterns=["back.ff"])], "FailJobSetFailurePolicyAction"),
        (
            [stop(onJobFailureReasons=[LIMIT], onJobFailureMessagePatterns=["^Job has"])],
            "FailJobSetFailurePolicyAction",
        ),
        ([stop(onJobFailureMessagePatterns=["no such words"])], ""),
        ([stop(onJobFailureReasons=[LIMIT], onJobFailureMessagePatterns=["no such words"])], ""),
        ([stop(onJobFailureReasons=["DeadlineExceeded"], onJobFailureMessagePatterns=["Job has"])], ""),
        ([stop(targetReplicatedJobs=["b"])], ""),
        ([{"name": "again", "action": "RestartJobSet"}, stop()], ""),
        ([stop(), {"name": "again", "action": "RestartJobSet"}], "FailJobSetFailurePolicyAction"),
    ],
)
def test_the_first_rule_whose_every_condition_matches_decides(rules: list[Json], reason: str) -> None:
    async def scenario(cluster: World) -> None:
        policy = {"maxRestarts": 1, "rules": rules}
        await cluster.apply(jobset("js", part("a", 1, 1, **FRAGILE), part("b", 1, 1, **FRAGILE), failurePolicy=policy))
        pods = await running(cluster, 2)
        await end(cluster, [p for p in pods if p["metadata"]["name"].startswith("js-a")], 1)
        found = await cluster.until("JobSet", "js", when=lambda j: finished(j) or j["status"].get("restarts"))
        assert (condition(found, "Failed") or {}).get("reason", "") == reason

    play(scenario)


def test_a_job_of_an_earlier_set_of_the_name_does_not_count() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(jobset("js", part("a", 1, 1)))
        (pod,) = await running(cluster, 1)
        job = cluster.look("Job", "js-a-0")
        assert job is not None
        meta = job["metadata"]
        strange: Json = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": "js-a-7",
                "labels": {key: value for key, value in meta["labels"].items() if key.startswith(P)},
                "ownerReferences": [{**meta["ownerReferences"][0], "uid": "11111111-2222-3333-4444-555555555555"}],
            },
            "spec": {"template": part("a", 1, 1, **FRAGILE)["template"]["spec"]["template"], "suspend": True},
        }
        resource = cluster.resource("Job")
        await cluster.client.create(resource, strange, "default")
        await end(cluster, [pod])
        found = await cluster.until("JobSet", "js", when=finished)
        assert found["status"]["terminalState"] == "Completed"
        assert found["status"]["replicatedJobsStatus"][0]["succeeded"] == 1

    play(scenario)


def test_a_deleted_service_comes_back() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(jobset("js", part("a", 1, 1)))
        await running(cluster, 1)
        first = cluster.look("Service", "js")
        assert first is not None and first["spec"]["clusterIP"] == "None"
        await cluster.delete("Service", "js")
        await cluster.until("Service", "js", when=lambda s: s["metadata"]["uid"] != first["metadata"]["uid"])

    play(scenario)


def test_a_suspended_set_has_its_claims_and_its_suspended_jobs() -> None:
    async def scenario(cluster: World) -> None:
        claim = {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        made = jobset("js", part("a", 2, 1), suspend=True, volumeClaimPolicies=[{"templates": [claim]}])
        pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        await cluster.apply(made)
        await cluster.until("PersistentVolumeClaim", "data-js", when=lambda c: c["metadata"]["ownerReferences"])
        jobs = await cluster.eventually("Job", lambda found: len(found) == 2)
        assert all(job["spec"]["suspend"] for job in jobs) and not cluster.all("Pod")
        await cluster.patch("JobSet", "js", {"spec": {"suspend": False}})
        await running(cluster, 2)

    play(scenario)


def test_a_part_may_wait_for_several() -> None:
    async def scenario(cluster: World) -> None:
        after = [{"name": "a", "status": "Ready"}, {"name": "b", "status": "Complete"}]
        await cluster.apply(jobset("js", part("a", 1, 1), part("b", 1, 1), part("c", 1, 1, dependsOn=after)))
        pods = await running(cluster, 2)
        assert cluster.names("Job") == ["js-a-0", "js-b-0"]
        await end(cluster, [p for p in pods if p["metadata"]["name"].startswith("js-b")])
        await running(cluster, 1, "c")
        await end(cluster, live(cluster.all("Pod")))
        assert (await cluster.until("JobSet", "js", when=finished))["status"]["terminalState"] == "Completed"

    play(scenario)
