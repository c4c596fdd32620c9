"""JobSets as their users notice them: child Jobs, order, restarts, suspension, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.controllers.workloads.job import controller as job_module
from phalanx.local.client import LocalClient
from phalanx.serve.controllers import ControllersService
from support.controller_world import World, condition, play, world
from support.manifests import jobset, part
from support.states import end, finished, live, nothing_left, running

Json = dict[str, Any]
Scenario = Callable[[World], Coroutine[Any, Any, None]]
P = "jobset.sigs.k8s.io/"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "FIRST_BACKOFF", 0.0)


async def done(cluster: World, name: str) -> Json:
    return await cluster.until("JobSet", name, when=finished)


def test_a_jobset_makes_its_jobs_with_names_keys_and_host_names() -> None:
    async def scenario(cluster: World) -> None:
        made = jobset("js", part("a", 2, 2), part("b", 1, 1), coordinator={"replicatedJob": "b", "jobIndex": 0})
        await cluster.apply(made)
        pods = await running(cluster, 5)
        assert cluster.names("Job") == ["js-a-0", "js-a-1", "js-b-0"]
        job = cluster.look("Job", "js-b-0")
        assert job is not None and job["spec"]["suspend"] is False
        pod = next(p for p in pods if p["metadata"]["name"].startswith("js-b-0-0-"))
        for holder in (job["metadata"], pod["metadata"]):
            for field in ("labels", "annotations"):
                assert holder[field][f"{P}job-global-index"] == "2"
                assert holder[field][f"{P}coordinator"] == "js-b-0-0.js"
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("js-b-0-0", "js")
        service = cluster.look("Service", "js")
        assert service is not None and service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == {f"{P}jobset-name": "js"}
        found = await cluster.until(
            "JobSet", "js", when=lambda j: sum(e["ready"] for e in j["status"]["replicatedJobsStatus"]) == 3
        )
        assert [e["active"] for e in found["status"]["replicatedJobsStatus"]] == [2, 1]
        await end(cluster, pods)
        found = await done(cluster, "js")
        assert found["status"]["terminalState"] == "Completed"
        assert condition(found, "Completed")["reason"] == "AllJobsCompleted"
        await cluster.delete("JobSet", "js", propagation="Foreground")
        await cluster.gone("JobSet", "js")
        await nothing_left(cluster)

    play(scenario)


def test_background_deletion_leaves_nothing_behind() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(jobset("js", part("a", 2, 2), scheduling={"schedulingPolicy": {"gang": {}}}))
        await running(cluster, 4)
        await cluster.delete("JobSet", "js", propagation="Background")
        await nothing_left(cluster)

    play(scenario)


def test_success_may_need_only_some_jobs() -> None:
    async def scenario(cluster: World) -> None:
        policy = {"operator": "Any", "targetReplicatedJobs": ["driver"]}
        await cluster.apply(jobset("js", part("driver", 1, 1), part("worker", 2, 1), successPolicy=policy))
        await running(cluster, 3)
        await end(cluster, live(cluster.all("Pod"), "driver"))
        found = await done(cluster, "js")
        assert found["status"]["terminalState"] == "Completed"
        await cluster.eventually("Job", lambda jobs: [j["metadata"]["name"] for j in jobs] == ["js-driver-0"])

    play(scenario)


def test_without_a_policy_the_first_failure_ends_the_set() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(jobset("js", part("a", 2, 1, job={"backoffLimit": 0}, pod={"restartPolicy": "Never"})))
        pods = await running(cluster, 2)
        await end(cluster, pods[:1], 1)
        found = await done(cluster, "js")
        assert condition(found, "Failed")["reason"] == "FailedJobs"
        assert "first failed job: js-a-" in condition(found, "Failed")["message"]
        await cluster.eventually("Pod", lambda pods: not live(pods))

    play(scenario)


FRAGILE = {"job": {"backoffLimit": 0}, "pod": {"restartPolicy": "Never"}}


@pytest.mark.parametrize("strategy", ["Recreate", "BlockingRecreate"])
def test_a_failure_restarts_all_jobs_until_the_limit(strategy: str) -> None:
    async def scenario(cluster: World) -> None:
        policy = {"maxRestarts": 1, "restartStrategy": strategy}
        scheduling = {"schedulingPolicy": {"gang": {}}}
        await cluster.apply(jobset("js", part("a", 2, 2, **FRAGILE), failurePolicy=policy, scheduling=scheduling))
        first = await running(cluster, 4)
        group = cluster.all("PodGroup")[0]["metadata"]["uid"]
        await end(cluster, first[:1], 1)
        old = {p["metadata"]["uid"] for p in first}
        again = await cluster.eventually(
            "Pod", lambda pods: len([p for p in live(pods) if p["metadata"]["uid"] not in old]) == 4
        )
        again = [p for p in live(again) if p["metadata"]["uid"] not in old]
        assert {p["metadata"]["labels"][f"{P}restart-attempt"] for p in again} == {"1"}
        assert {p["spec"]["schedulingGroup"]["podGroupName"] for p in again} == set(cluster.names("PodGroup"))
        assert cluster.all("PodGroup")[0]["metadata"]["uid"] == group  # restarts keep the group
        found = await cluster.until(
            "JobSet", "js", when=lambda j: condition(j, "RestartingJobSet").get("status") == "False"
        )
        assert found["status"]["restarts"] == 1
        await end(cluster, again[:1], 1)
        found = await done(cluster, "js")
        assert condition(found, "Failed")["reason"] == "ReachedMaxRestarts"

    play(scenario)


def test_rules_decide_by_reason_and_part() -> None:
    async def scenario(cluster: World) -> None:
        rules = [
            {"name": "stop", "action": "FailJobSet", "targetReplicatedJobs": ["driver"]},
            {
                "name": "free",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["BackoffLimitExceeded"],
            },
        ]
        policy = {"maxRestarts": 0, "rules": rules}
        await cluster.apply(
            jobset("js", part("driver", 1, 1, **FRAGILE), part("w", 1, 1, **FRAGILE), failurePolicy=policy)
        )
        pods = await running(cluster, 2)
        await end(cluster, [p for p in pods if p["metadata"]["name"].startswith("js-w")], 1)
        found = await cluster.until("JobSet", "js", when=lambda j: j["status"].get("restarts") == 1)
        assert condition(found, "RestartingJobSet")["reason"] == "FailurePolicy_free"
        old = {p["metadata"]["uid"] for p in pods}
        pods = await cluster.eventually(
            "Pod", lambda pods: len(live(pods)) == 2 and not old & {p["metadata"]["uid"] for p in live(pods)}
        )
        await end(cluster, [p for p in live(pods) if p["metadata"]["name"].startswith("js-driver")], 1)
        found = await done(cluster, "js")
        assert condition(found, "Failed")["reason"] == "FailJobSetFailurePolicyAction"
        assert "restartsCountTowardsMax" not in found["status"]

    play(scenario)


def test_a_single_job_may_restart_alone() -> None:
    async def scenario(cluster: World) -> None:
        policy = {"maxRestarts": 1, "rules": [{"name": "one", "action": "RestartJob"}]}
        await cluster.apply(jobset("js", part("a", 2, 1, **FRAGILE), failurePolicy=policy))
        pods = await running(cluster, 2)
        failing = next(p for p in pods if p["metadata"]["name"].startswith("js-a-1"))
        await end(cluster, [failing], 1)
        uid = failing["metadata"]["uid"]
        after = await cluster.eventually(
            "Pod", lambda pods: len(live(pods)) == 2 and uid not in {p["metadata"]["uid"] for p in live(pods)}
        )
        kept = {p["metadata"]["uid"] for p in pods} & {p["metadata"]["uid"] for p in live(after)}
        assert len(kept) == 1
        found = cluster.look("JobSet", "js")
        assert found is not None and found["status"]["replicatedJobsStatus"][0]["jobRestarts"] == [0, 1]
        assert not condition(found, "RestartingJobSet"), "the set itself is not restarted"

    play(scenario)


def test_parts_start_when_what_they_depend_on_is_there() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(
            jobset(
                "js",
                part("init", 1, 1),
                part("driver", 1, 1, dependsOn=[{"name": "init", "status": "Complete"}]),
                part("worker", 2, 1, dependsOn=[{"name": "driver", "status": "Ready"}]),
                scheduling={"schedulingPolicy": {"gang": {}}},
            )
        )
        (init,) = await running(cluster, 1)
        assert cluster.names("Job") == ["js-init-0"]
        assert len(cluster.names("PodGroup")) == 3  # a gang for each part, there before its turn
        await end(cluster, [init])
        await running(cluster, 1, "driver")
        await running(cluster, 2, "worker")
        await end(cluster, live(cluster.all("Pod")))
        assert (await done(cluster, "js"))["status"]["terminalState"] == "Completed"

    play(scenario)


def test_in_order_startup_brings_up_one_part_after_the_other() -> None:
    async def scenario(cluster: World) -> None:
        seen: list[str] = []
        await cluster.apply(
            jobset("js", part("a", 1, 2), part("b", 1, 2), startupPolicy={"startupPolicyOrder": "InOrder"})
        )

        def watch(jobs: list[Json]) -> bool:
            seen.extend(j["metadata"]["name"] for j in jobs if j["metadata"]["name"] not in seen)
            first = next((j for j in jobs if j["metadata"]["name"] == "js-a-0"), None)
            if len(jobs) == 2:
                assert first is not None and first["status"]["ready"] == 2
            return len(jobs) == 2

        await cluster.eventually("Job", watch)
        assert seen == ["js-a-0", "js-b-0"]
        found = await cluster.until(
            "JobSet", "js", when=lambda j: condition(j, "StartupPolicyCompleted").get("status") == "True"
        )
        assert condition(found, "StartupPolicyInProgress")["status"] == "False"

    play(scenario)


@pytest.mark.parametrize("in_order", [False, True])
def test_suspend_stops_everything_and_resume_brings_it_back(in_order: bool) -> None:
    async def scenario(cluster: World) -> None:
        spec: Json = {"scheduling": {"schedulingPolicy": {"gang": {}}}, "suspend": True}
        if in_order:
            spec["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
        await cluster.apply(jobset("js", part("a", 2, 2), part("b", 1, 1), **spec))
        await cluster.eventually("Job", lambda jobs: len(jobs) == 3 and all(j["spec"]["suspend"] for j in jobs))
        assert cluster.names("PodGroup") and cluster.names("Pod") == []
        found = await cluster.until("JobSet", "js", when=lambda j: condition(j, "Suspended").get("status") == "True")
        assert [e["suspended"] for e in found["status"]["replicatedJobsStatus"]] == [2, 1]
        # Where pods may go can be changed while suspended.
        parts = found["spec"]["replicatedJobs"]
        for item in parts:
            item["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
        await cluster.patch("JobSet", "js", {"spec": {"suspend": False, "replicatedJobs": parts}})
        pods = await running(cluster, 5)
        assert all(p["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"} for p in pods)
        before = {g["metadata"]["uid"] for g in cluster.all("PodGroup")}
        await cluster.patch("JobSet", "js", {"spec": {"suspend": True}})
        await cluster.eventually("Pod", lambda pods: not pods)
        await cluster.patch("JobSet", "js", {"spec": {"suspend": False}})
        await running(cluster, 5)
        assert before == {g["metadata"]["uid"] for g in cluster.all("PodGroup")}, "groups are kept over a suspension"
        found = await cluster.until("JobSet", "js", when=lambda j: condition(j, "Suspended")["status"] == "False")
        assert condition(found, "Suspended")["reason"] == "ResumeJobs"

    play(scenario)


def test_a_jobset_may_grow_and_shrink_while_it_runs() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(jobset("js", part("a", 1, 2), scheduling={"schedulingPolicy": {"gang": {}}}))
        await running(cluster, 2)
        group = cluster.all("PodGroup")[0]
        for size in (4, 1):
            found = cluster.look("JobSet", "js")
            assert found is not None
            parts = found["spec"]["replicatedJobs"]
            parts[0]["template"]["spec"] |= {"parallelism": size, "completions": size}
            await cluster.patch("JobSet", "js", {"spec": {"replicatedJobs": parts}})
            await running(cluster, size)
            after = (
                await cluster.eventually(
                    "PodGroup", lambda g, n=size: g[0]["spec"]["schedulingPolicy"]["gang"]["minCount"] == n
                )
            )[0]
            assert after["metadata"]["uid"] == group["metadata"]["uid"]

    play(scenario)


def test_a_finished_set_goes_after_its_time_to_live() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(
            jobset("js", part("a", 1, 2, run=0), ttlSecondsAfterFinished=0, gangConfig={"gangMode": "Gang"})
        )
        await cluster.gone("JobSet", "js")
        await nothing_left(cluster)

    play(scenario)


def test_shared_volume_claims() -> None:
    async def scenario(cluster: World) -> None:
        claim = {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        keep = {**claim, "metadata": {"name": "keep"}}
        policies = [{"templates": [claim]}, {"templates": [keep], "retentionPolicy": {"whenDeleted": "Retain"}}]
        made = jobset("js", part("a", 1, 1), volumeClaimPolicies=policies)
        container = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
        container["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in ("data", "keep")]
        await cluster.apply(made)
        (pod,) = await cluster.eventually("Pod", bool)
        assert pod["spec"]["volumes"][:-1] == [
            {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-js"}} for name in ("data", "keep")
        ]
        assert cluster.names("PersistentVolumeClaim") == ["data-js", "keep-js"]
        await cluster.delete("JobSet", "js", propagation="Background")
        await cluster.eventually(
            "PersistentVolumeClaim", lambda found: [c["metadata"]["name"] for c in found] == ["keep-js"]
        )

    play(scenario)


def test_a_jobset_managed_by_another_controller_is_left_alone() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(jobset("theirs", part("a", 1, 1), managedBy="kueue.x-k8s.io/multikueue"))
        await cluster.apply(jobset("ours", part("a", 1, 1, run=0)))
        await done(cluster, "ours")
        assert cluster.names("Job") == ["ours-a-0"]

    play(scenario)


class LateWatch(Client):
    """Changes come later than the answers to the writes that made them, as from a server on another machine."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client
        self.snapshot = client.snapshot

    async def call(self, call: Call) -> bytes:
        return await self._client.call(call)

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        async for event in self._client.events(call):
            await asyncio.sleep(0.02)
            yield event


def test_the_status_follows_a_resumed_job_whose_change_comes_after_the_answer() -> None:
    """Without a Job controller nothing else changes the Job: the set counted it as suspended for ever."""

    async def scenario() -> None:
        async with world(controllers=False, scheduler=False, nodes=0) as cluster:
            service = ControllersService(LateWatch(cluster.client), cluster.clock, cluster.gates)
            service.controllers = [found for found in service.controllers if found.name == "jobset"]
            await cluster.run(service.run(), service.ready)
            order = {"startupPolicyOrder": "InOrder"}
            await cluster.apply(jobset("js", part("a", 1, 1), part("b", 2, 1), suspend=True, startupPolicy=order))

            def suspended(*counts: int) -> Callable[[Json], bool]:
                return lambda found: [e["suspended"] for e in counted(found)] == list(counts)

            await cluster.until("JobSet", "js", when=suspended(1, 2))
            await cluster.patch("JobSet", "js", {"spec": {"suspend": False}})
            await cluster.until("JobSet", "js", when=suspended(0, 2))

    asyncio.run(scenario())


def counted(found: Json) -> list[Json]:
    return (found.get("status") or {}).get("replicatedJobsStatus") or []


def test_jobs_that_are_refused_are_reported_and_counted_in_one_event() -> None:
    async def scenario(cluster: World) -> None:
        made = jobset("js", part("a", 1, 2))
        made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0].pop("image")
        await cluster.apply(made)
        events = await cluster.eventually(
            "Event", lambda found: [e for e in found if e["reason"] == "JobCreationFailed" and e.get("series")]
        )
        (event,) = [event for event in events if event["reason"] == "JobCreationFailed"]
        assert "image: Required value" in event["message"] and event["type"] == "Warning"
        assert not cluster.names("Job")

    play(scenario)
