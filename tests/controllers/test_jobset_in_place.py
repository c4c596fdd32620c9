"""JobSet's restart strategy InPlaceRestart: pods stay where they are and start again together."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.base.clock import SystemClock
from phalanx.base.well_known import IN_PLACE_RESTART_ATTEMPT
from phalanx.controllers.workloads.jobset.in_place_restart import restart_in_place
from phalanx.controllers.workloads.jobset.observed_state import ObservedJobSet
from phalanx.controllers.workloads.jobset.status import Children
from support.controller_world import World, condition, play
from support.manifests import EXIT, RUN, jobset, part

Json = dict[str, Any]
NOT_ZERO = {"operator": "NotIn", "values": [0]}
ENVIRONMENT = [
    {
        "name": "JOBSET_NAME",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/jobset-name']"}},
    },
    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
]
AGENT = {"name": "in-place-restart-agent", "image": "example/agent:1", "env": ENVIRONMENT}
MAIN = {**AGENT, "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": NOT_ZERO}]}
SIDECAR = {
    **AGENT,
    "restartPolicy": "Always",
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": NOT_ZERO}],
}
WORKER = {
    "name": "worker",
    "image": "example/train:1",
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": NOT_ZERO}],
}


def in_place(containers: Json, max_restarts: int = 3) -> Json:
    job = {"backoffLimit": 2147483647, "podReplacementPolicy": "Failed"}
    parts = part("rj", 2, 2, job=job, pod={"restartPolicy": "Never", **containers})
    return jobset("js", parts, failurePolicy={"maxRestarts": max_restarts, "restartStrategy": "InPlaceRestart"})


def pod(attempt: str | None, restarts: int = 0, phase: str = "Running") -> Json:
    annotations = {} if attempt is None else {IN_PLACE_RESTART_ATTEMPT: attempt}
    status = {"phase": phase, "containerStatuses": [{"restartCount": restarts}]}
    return {"metadata": {"name": "p", "annotations": annotations}, "status": status}


def observe(pods: list[Json], status: Json | None = None, expected: int = 2) -> ObservedJobSet:
    made = in_place({"containers": [MAIN]})
    look = ObservedJobSet(made, Children(), {"conditions": [], **copy.deepcopy(status or {})}, SystemClock())
    look.status["replicatedJobsStatus"] = []
    restart_in_place(look, pods, expected)
    return look


@pytest.mark.parametrize(
    ("attempts", "before", "current", "previous"),
    [
        ([], {}, None, None),
        (["0", None], {}, None, None),  # the second agent has not started
        (["0", "0"], {}, 0, None),
        (["1", "0"], {"currentInPlaceRestartAttempt": 0}, 0, 0),
        (["1", "1"], {"currentInPlaceRestartAttempt": 0, "previousInPlaceRestartAttempt": 0}, 1, 0),
        (["3", None], {"currentInPlaceRestartAttempt": 2}, 2, 2),  # a pod is being replaced
        (["0", None], {"currentInPlaceRestartAttempt": 1, "previousInPlaceRestartAttempt": 0}, 1, 0),
        (["1", "nonsense"], {}, None, 0),
        (["1", "-1"], {}, None, 0),
        (["1", "9" * 40], {}, None, 0),
    ],
)
def test_attempts_of_the_pods_become_the_status(
    attempts: list[str | None], before: Json, current: int | None, previous: int | None
) -> None:
    look = observe([pod(attempt) for attempt in attempts], before)
    assert look.status.get("currentInPlaceRestartAttempt") == current
    assert look.status.get("previousInPlaceRestartAttempt") == previous
    assert not look.finished


def test_an_attempt_that_is_no_number_is_reported() -> None:
    assert [reason for _, reason, _ in observe([pod("nonsense")]).updates] == ["InvalidInPlaceRestartAttempt"]


def test_a_failed_pod_next_to_its_replacement_does_not_count() -> None:
    look = observe([pod("0"), pod("7", phase="Failed"), pod("0")])
    assert look.status["currentInPlaceRestartAttempt"] == 0


@pytest.mark.parametrize("pods", [[pod("4"), pod("3")], [pod("0", restarts=4), pod(None)]])
def test_attempts_and_container_restarts_are_limited(pods: list[Json]) -> None:
    look = observe(pods)
    assert condition({"status": look.status}, "Failed")["reason"] == "ReachedMaxRestarts"


def test_restarts_of_the_whole_set_that_are_free_do_not_count() -> None:
    assert not observe([pod("4"), pod("4")], {"restarts": 2, "restartsCountTowardsMax": 1}).finished


async def fail_one(cluster: World, pods: list[Json]) -> None:
    """End the worker of one running pod with an error, at least once."""
    name = str(pods[0]["metadata"]["name"])
    await cluster.patch("Pod", name, {"metadata": {"annotations": {RUN: "0", EXIT: "1"}}})
    await cluster.until("Pod", name, when=lambda p: restarts(p) > 0)
    await cluster.patch("Pod", name, {"metadata": {"annotations": {RUN: None, EXIT: None}}})


def ready(pod: Json) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def restarts(pod: Json) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def attempt_is(number: int) -> Any:
    return lambda js: (js.get("status") or {}).get("currentInPlaceRestartAttempt", -1) >= number


def all_ready(pods: list[Json]) -> bool:
    return len(pods) == 4 and all(map(ready, pods))


def restarted(pods: list[Json]) -> bool:
    return (
        all_ready(pods)
        and all(map(restarts, pods))
        and len({p["metadata"]["annotations"][IN_PLACE_RESTART_ATTEMPT] for p in pods}) == 1
    )


@pytest.mark.parametrize("containers", [{"containers": [MAIN]}, {"initContainers": [SIDECAR], "containers": [WORKER]}])
def test_all_pods_restart_where_they_are_when_one_worker_fails(containers: Json) -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(in_place(containers, max_restarts=20))
        await cluster.until("JobSet", "js", when=attempt_is(0))
        before = await cluster.eventually("Pod", all_ready)
        await fail_one(cluster, before)
        found = await cluster.until("JobSet", "js", when=attempt_is(1))
        assert "previousInPlaceRestartAttempt" in found["status"] and found["status"]["restarts"] == 0
        after = await cluster.eventually("Pod", restarted)
        assert {p["metadata"]["uid"] for p in after} == {p["metadata"]["uid"] for p in before}

    play(scenario)


def test_a_deleted_pod_restarts_the_others_in_place() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(in_place({"containers": [MAIN]}))
        await cluster.until("JobSet", "js", when=attempt_is(0))
        pods = await cluster.eventually("Pod", all_ready)
        await cluster.delete("Pod", pods[0]["metadata"]["name"])
        await cluster.until("JobSet", "js", when=attempt_is(1))
        gone = pods[0]["metadata"]["uid"]
        now = await cluster.eventually(
            "Pod", lambda now: all_ready(now) and all(p["metadata"]["uid"] != gone for p in now)
        )
        assert sorted(map(restarts, now)) == [0, 1, 1, 1]

    play(scenario)


def test_too_many_restarts_in_place_fail_the_set() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(in_place({"containers": [MAIN]}, max_restarts=0))
        await cluster.until("JobSet", "js", when=attempt_is(0))
        pods = await cluster.eventually("Pod", all_ready)
        await cluster.patch("Pod", pods[0]["metadata"]["name"], {"metadata": {"annotations": {RUN: "0", EXIT: "1"}}})
        found = await cluster.until("JobSet", "js", when=lambda js: bool(condition(js, "Failed")))
        assert condition(found, "Failed")["reason"] == "ReachedMaxRestarts"

    play(scenario)
