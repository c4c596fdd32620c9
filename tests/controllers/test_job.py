"""Jobs as their users notice them: completions, failures, suspension, policies, and counts that survive crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from phalanx.base.errors import Invalid, NotFound
from phalanx.controllers.workloads.job import controller as job_module
from support.controller_world import DyingClient, World, condition, play, world
from support.manifests import EXIT, GANG_POLICY, RUN, job
from support.states import finished, job_done, live, running

Json = dict[str, Any]
Scenario = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are replaced at once; the delay itself has a test of its own."""
    monkeypatch.setattr(job_module, "FIRST_BACKOFF", 0.0)


async def end(cluster: World, pod: Json, code: int = 0) -> None:
    """Let a running pod end now."""
    patch = {"metadata": {"annotations": {RUN: "0", EXIT: str(code)}}}
    await cluster.patch("Pod", pod["metadata"]["name"], patch)


def outcome(obj: Json) -> tuple[str, str]:
    for type_ in ("Complete", "Failed"):
        if condition(obj, type_).get("status") == "True":
            return type_, condition(obj, type_)["reason"]
    return "", ""


def test_an_indexed_job_completes_each_index_once() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 3, run=1, completions=5, completionMode="Indexed"))
        found = await job_done(cluster, "a")
        assert outcome(found) == ("Complete", "CompletionsReached")
        assert found["status"]["succeeded"] == 5 and found["status"]["completedIndexes"] == "0-4"
        assert found["status"]["completionTime"] and "active" not in found["status"]
        assert found["status"]["terminating"] == 0  # clients read it without asking
        pods = await cluster.eventually("Pod", lambda pods: not any(p["metadata"].get("finalizers") for p in pods))
        indexes = sorted(p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for p in pods)
        assert indexes == ["0", "1", "2", "3", "4"]
        first = next(p for p in pods if p["metadata"]["name"].startswith("a-0-"))
        assert first["spec"]["hostname"] == "a-0"
        assert first["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"

    play(scenario)


def test_a_plain_job_counts_successes_and_never_runs_more_than_asked() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, run=1, completions=5))
        found = await job_done(cluster, "a")
        assert found["status"]["succeeded"] == 5
        assert found["status"].get("uncountedTerminatedPods", {}) == {}
        assert len(cluster.names("Pod")) == 5

    play(scenario)


def test_a_work_queue_ends_when_all_pods_have_ended_after_a_success() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 3, completions=None))
        pods = await running(cluster, 3)
        await end(cluster, pods[0])
        await cluster.until("Job", "a", when=lambda j: j["status"].get("succeeded") == 1 and j["status"]["active"] == 2)
        await end(cluster, pods[1])
        await end(cluster, pods[2])
        found = await job_done(cluster, "a")
        assert found["status"]["succeeded"] == 3 and len(cluster.names("Pod")) == 3

    play(scenario)


def test_pods_that_fail_are_replaced_until_the_limit() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 1, run=0, exit_code=1, backoffLimit=2))
        found = await job_done(cluster, "a")
        assert outcome(found) == ("Failed", "BackoffLimitExceeded")
        assert found["status"]["failed"] == 3
        assert condition(found, "FailureTarget")["status"] == "True"

    play(scenario)


def test_a_replacement_waits_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "FIRST_BACKOFF", 1000.0)

    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 1))
        (pod,) = await running(cluster, 1)
        await end(cluster, pod, 1)
        found = await cluster.until("Job", "a", when=lambda j: j["status"].get("failed") == 1)
        assert "active" not in found["status"] and len(cluster.names("Pod")) == 1

    play(scenario)


def test_a_pod_deleted_by_a_user_counts_once_and_is_replaced() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, completionMode="Indexed"))
        pods = await running(cluster, 2)
        await cluster.delete("Pod", pods[0]["metadata"]["name"])
        found = await cluster.until(
            "Job", "a", when=lambda j: j["status"].get("failed") == 1 and j["status"].get("ready") == 2
        )
        assert found["status"]["active"] == 2

    play(scenario)


def test_a_namespace_goes_with_the_job_that_runs_in_it() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}})
        body = job("a", 2)
        body["metadata"]["namespace"] = "going"
        await cluster.apply(body, "going")
        await cluster.until("Job", "a", "going", when=lambda found: found.get("status", {}).get("ready") == 2)
        await cluster.delete("Namespace", "going")
        await cluster.gone("Namespace", "going")

    play(scenario)


def test_suspend_removes_pods_without_counting_and_resume_starts_again() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 3, completionMode="Indexed", scheduling=GANG_POLICY))
        await running(cluster, 3)
        before = {obj["metadata"]["uid"] for obj in [*cluster.all("Workload"), *cluster.all("PodGroup")]}
        await cluster.patch("Job", "a", {"spec": {"suspend": True}})
        await cluster.eventually("Pod", lambda pods: not pods)
        found = await cluster.until("Job", "a", when=lambda j: condition(j, "Suspended").get("status") == "True")
        assert "startTime" not in found["status"] and "failed" not in found["status"]
        await cluster.patch("Job", "a", {"spec": {"suspend": False}})
        pods = await running(cluster, 3)
        found = await cluster.until("Job", "a", when=lambda j: j["status"].get("ready") == 3)
        assert condition(found, "Suspended")["reason"] == "JobResumed" and found["status"]["startTime"]
        after = {obj["metadata"]["uid"] for obj in [*cluster.all("Workload"), *cluster.all("PodGroup")]}
        assert before == after
        (name,) = cluster.names("PodGroup")
        assert {p["spec"]["schedulingGroup"]["podGroupName"] for p in pods} == {name}

    play(scenario)


def test_parallelism_may_change_and_the_gang_follows() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 4, completionMode="Indexed", scheduling=GANG_POLICY, completions=6))
        await running(cluster, 4)
        for size in (6, 2):
            await cluster.patch("Job", "a", {"spec": {"parallelism": size}})
            pods = await running(cluster, size)
            await cluster.eventually(
                "PodGroup", lambda g, size=size: g[0]["spec"]["schedulingPolicy"]["gang"]["minCount"] == size
            )
            (workload,) = cluster.all("Workload")
            assert workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] == size
        kept = sorted(p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for p in pods)
        assert kept == ["0", "1"]
        found = await cluster.until("Job", "a", when=lambda j: j["status"].get("active") == 2)
        assert "failed" not in found["status"]

    play(scenario)


def test_deadline() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, activeDeadlineSeconds=1))
        found = await job_done(cluster, "a")
        assert outcome(found) == ("Failed", "DeadlineExceeded")
        assert not live(cluster.all("Pod"))

    play(scenario)


def test_a_finished_job_goes_after_its_time_to_live_with_all_its_objects() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, run=0, ttlSecondsAfterFinished=0, scheduling=GANG_POLICY))
        await cluster.gone("Job", "a")
        for kind in ("Pod", "PodGroup", "Workload"):
            await cluster.eventually(kind, lambda found: not found)

    play(scenario)


RULES = {
    "Ignore": {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}},
    "FailJob": {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    "FailIndex": {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}},
}


def test_failures_that_the_policy_ignores_do_not_count() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 1, backoffLimit=0, podFailurePolicy={"rules": [RULES["Ignore"]]}))
        for _ in range(2):
            (pod,) = await running(cluster, 1)
            await end(cluster, pod, 42)
            uid = pod["metadata"]["uid"]
            await cluster.eventually("Pod", lambda pods, uid=uid: any(p["metadata"]["uid"] != uid for p in live(pods)))
        (pod,) = await running(cluster, 1)
        await end(cluster, pod)
        found = await job_done(cluster, "a")
        assert outcome(found)[0] == "Complete" and "failed" not in found["status"]

    play(scenario)


def test_one_bad_exit_code_may_fail_the_job() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, podFailurePolicy={"rules": [RULES["FailJob"]]}))
        pods = await running(cluster, 2)
        await end(cluster, pods[0], 42)
        found = await job_done(cluster, "a")
        assert outcome(found) == ("Failed", "PodFailurePolicy")
        assert "exit code 42 matching FailJob rule at index 0" in condition(found, "Failed")["message"]

    play(scenario)


def test_indexes_fail_alone_and_the_others_go_on() -> None:
    async def scenario(cluster: World) -> None:
        policy = {"rules": [RULES["FailIndex"]]}
        await cluster.apply(job("a", 3, completionMode="Indexed", backoffLimitPerIndex=1, podFailurePolicy=policy))
        pods = await running(cluster, 3)
        by_index = {p["metadata"]["name"].split("-")[1]: p for p in pods}
        await end(cluster, by_index["0"], 42)  # the rule fails the index at once
        await end(cluster, by_index["1"], 1)  # one failure is allowed
        await end(cluster, by_index["2"], 0)

        def retry(pods: list[Json]) -> list[Json]:
            uid = by_index["1"]["metadata"]["uid"]
            return [p for p in live(pods) if p["metadata"]["name"].startswith("a-1-") and p["metadata"]["uid"] != uid]

        again = retry(await cluster.eventually("Pod", retry))[0]
        assert again["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] == "1"
        await end(cluster, again, 1)
        found = await job_done(cluster, "a")
        assert outcome(found) == ("Failed", "FailedIndexes")
        assert found["status"]["failedIndexes"] == "0,1" and found["status"]["completedIndexes"] == "2"
        assert found["status"]["failed"] == 3 and found["status"]["succeeded"] == 1

    play(scenario)


def test_too_many_failed_indexes_end_the_job() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(
            job("a", 4, run=0, exit_code=1, completionMode="Indexed", backoffLimitPerIndex=0, maxFailedIndexes=1)
        )
        assert outcome(await job_done(cluster, "a")) == ("Failed", "MaxFailedIndexesExceeded")

    play(scenario)


def test_a_success_policy_ends_the_job_early() -> None:
    async def scenario(cluster: World) -> None:
        policy = {"rules": [{"succeededIndexes": "0"}]}
        await cluster.apply(job("a", 3, completionMode="Indexed", successPolicy=policy))
        pods = await running(cluster, 3)
        await end(cluster, next(p for p in pods if p["metadata"]["name"].startswith("a-0-")))
        found = await job_done(cluster, "a")
        assert outcome(found) == ("Complete", "SuccessPolicy")
        assert found["status"]["completedIndexes"] == "0"

    play(scenario)


def test_a_job_managed_by_another_controller_is_left_alone() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("theirs", 1, managedBy="example.com/other"))
        await cluster.apply(job("ours", 1, run=0))
        await job_done(cluster, "ours")
        theirs = cluster.look("Job", "theirs")
        assert theirs is not None and not theirs.get("status")
        assert all(name.startswith("ours") for name in cluster.names("Pod"))

    play(scenario)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("writes", range(1, 14, 2))
def test_counts_are_right_wherever_the_controller_dies(writes: int, indexed: bool) -> None:
    """Killed after so many writes, started again: every pod is counted once and let go."""

    async def run() -> None:
        async with world(controllers=False) as cluster:
            mode = "Indexed" if indexed else "NonIndexed"
            await cluster.apply(job("a", 2, run=0, completions=4, completionMode=mode, scheduling=GANG_POLICY))
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            found = await job_done(cluster, "a")
            assert found["status"]["succeeded"] == 4 and "failed" not in found["status"]
            pods = await cluster.eventually("Pod", lambda pods: not any(p["metadata"].get("finalizers") for p in pods))
            assert len(pods) == 4
            assert len(cluster.names("Workload")) == len(cluster.names("PodGroup")) == 1
            assert all(p["spec"].get("schedulingGroup") for p in pods)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(14))
def test_any_history_of_edits_and_crashes_completes_the_job(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended, resized, pods deleted or failed, controllers killed at any write: every completion is counted once."""
    monkeypatch.setattr(job_module, "GATHERING", 0.0)
    rng = random.Random(seed)

    async def run() -> None:
        async with world() as cluster:
            mode = rng.choice(["Indexed", "NonIndexed"])
            await cluster.apply(
                job("a", 3, completions=5, completionMode=mode, backoffLimit=100, scheduling=GANG_POLICY)
            )
            suspended = False
            for _ in range(12):
                step = rng.choice(["suspend", "resize", "succeed", "fail", "delete", "crash"])
                pods = live(cluster.all("Pod"))
                if step == "suspend":
                    suspended = not suspended
                    await cluster.patch("Job", "a", {"spec": {"suspend": suspended}})
                elif step == "resize":
                    await cluster.patch("Job", "a", {"spec": {"parallelism": rng.randint(0, 5)}})
                elif step == "crash":
                    await cluster.kill_controllers()
                    dying = DyingClient(cluster.client, rng.randint(0, 12))
                    await cluster.start_controllers(rng.choice([dying, None]))
                elif pods:
                    with suppress(NotFound):
                        if step == "delete":
                            await cluster.delete("Pod", rng.choice(pods)["metadata"]["name"])
                        else:
                            await end(cluster, rng.choice(pods), int(step == "fail"))
                for _ in range(rng.choice([0, 5, 50, 300])):
                    await asyncio.sleep(0)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            found = cluster.look("Job", "a")
            assert found is not None
            if not finished(found):
                with suppress(Invalid):  # it may have ended meanwhile
                    await cluster.patch("Job", "a", {"spec": {"suspend": False, "parallelism": 3}})

            async def finish_pods() -> None:
                while True:
                    for pod in live(cluster.all("Pod")):
                        with suppress(NotFound):
                            await end(cluster, pod)
                    await asyncio.sleep(0.02)

            ending = asyncio.create_task(finish_pods())
            found = await job_done(cluster, "a")
            ending.cancel()
            assert outcome(found)[0] == "Complete", found["status"]
            assert found["status"]["succeeded"] == 5, found["status"]
            assert found["status"].get("uncountedTerminatedPods", {}) == {}
            pods = await cluster.eventually("Pod", lambda pods: not any(p["metadata"].get("finalizers") for p in pods))
            await cluster.delete("Job", "a", propagation=rng.choice(["Foreground", "Background"]))
            for kind in ("Pod", "PodGroup", "Workload"):
                await cluster.eventually(kind, lambda left: not left)

    asyncio.run(run())


def owners(pod: Json) -> list[str]:
    return [reference["kind"] for reference in pod["metadata"].get("ownerReferences") or ()]


def test_a_job_adopts_an_orphan_that_matches_and_releases_a_pod_that_does_not() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, completions=2))
        first, second = (pod["metadata"]["name"] for pod in await running(cluster, 2))
        await cluster.patch("Pod", first, {"metadata": {"ownerReferences": None}})
        taken = await cluster.until("Pod", first, when=lambda pod: "Job" in owners(pod))
        labels = dict.fromkeys(taken["metadata"]["labels"], "x")
        await cluster.patch("Pod", second, {"metadata": {"labels": labels}})
        freed = await cluster.until("Pod", second, when=lambda pod: "Job" not in owners(pod))
        assert not freed["metadata"].get("finalizers")
        await running(cluster, 3)  # the one that went is replaced

    play(scenario)


def test_a_job_with_a_selector_of_its_own_adopts_what_it_selects() -> None:
    async def scenario(cluster: World) -> None:
        body = job("m", 1, completions=1)
        body["spec"] |= {"manualSelector": True, "selector": {"matchLabels": {"mine": "yes"}}}
        body["spec"]["template"].setdefault("metadata", {})["labels"] = {"mine": "yes"}
        orphan = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "orphan", "labels": {"mine": "yes"}},
            "spec": body["spec"]["template"]["spec"],
        }
        await cluster.apply(orphan)
        await cluster.apply(body)
        taken = await cluster.until("Pod", "orphan", when=lambda pod: pod["metadata"].get("ownerReferences"))
        assert taken["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        await end(cluster, taken)
        assert outcome(await job_done(cluster, "m"))[0] == "Complete"
        assert cluster.names("Pod") == ["orphan"]

    play(scenario)
