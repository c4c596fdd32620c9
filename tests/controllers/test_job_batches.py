"""A Job of any size is counted, suspended and deleted in batches, and odd annotations of its pods stop nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from phalanx.base.well_known import COMPLETION_INDEX
from phalanx.controllers.workloads.job import controller as job_module
from phalanx.controllers.workloads.job import tally as tally_module
from phalanx.controllers.workloads.job.tally import INDEX_FAILURES, TRACKING
from support.controller_world import World, play
from support.manifests import EXIT, RUN, job
from support.states import job_done, live, running

Json = dict[str, Any]
SEVEN = 7


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(job_module, "BATCH", 2)
    monkeypatch.setattr(tally_module, "MOST_AT_ONCE", 2)


def free(pods: list[Json]) -> bool:
    return not any(TRACKING in (pod["metadata"].get("finalizers") or ()) for pod in pods)


@pytest.mark.parametrize("indexed", [False, True])
def test_pods_that_end_together_are_counted_once_and_none_is_replaced(indexed: bool) -> None:
    async def scenario(cluster: World) -> None:
        mode: Json = {"completionMode": "Indexed"} if indexed else {}
        await cluster.apply(job("a", SEVEN, completions=SEVEN, **mode))
        for pod in await running(cluster, SEVEN):
            await cluster.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": {RUN: "0"}}})
        found = await job_done(cluster, "a")
        assert found["status"]["succeeded"] == SEVEN and not found["status"].get("failed")
        assert len(await cluster.eventually("Pod", free)) == SEVEN

    play(scenario)


def test_indexes_that_fail_together_are_retried_and_fail() -> None:
    async def scenario(cluster: World) -> None:
        made = job("a", SEVEN, completions=SEVEN, completionMode="Indexed", backoffLimitPerIndex=1)
        made["spec"]["template"].setdefault("metadata", {})["annotations"] = {RUN: "0", EXIT: "1"}
        await cluster.apply(made)
        found = await job_done(cluster, "a")
        assert found["status"]["failedIndexes"] == "0-6" and found["status"]["failed"] == 2 * SEVEN

    play(scenario)


def test_all_pods_go_when_it_is_suspended_and_when_it_is_deleted() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", SEVEN, completions=SEVEN))
        await running(cluster, SEVEN)
        await cluster.patch("Job", "a", {"spec": {"suspend": True}})
        await cluster.eventually("Pod", lambda pods: not live(pods))
        await cluster.patch("Job", "a", {"spec": {"suspend": False}})
        await running(cluster, SEVEN)
        await cluster.delete("Job", "a", propagation="Background")
        await cluster.eventually("Pod", lambda pods: not pods)

    play(scenario)


@pytest.mark.parametrize("value", ["9" * 5000, "²", "-1", "1e9", "99999999999999999999"])
def test_a_number_in_an_annotation_that_is_none_is_ignored(value: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(job("a", 2, completions=2, completionMode="Indexed", backoffLimitPerIndex=1))
        pods = await running(cluster, 2)
        marks = {COMPLETION_INDEX: value, INDEX_FAILURES: value, RUN: "0", EXIT: "1"}
        await cluster.patch("Pod", pods[0]["metadata"]["name"], {"metadata": {"annotations": marks}})
        await cluster.eventually("Pod", lambda pods: len(pods) > 2)
        for pod in await running(cluster, 2):
            await cluster.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": {RUN: "0"}}})
        await job_done(cluster, "a")
        assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]

    play(scenario)
