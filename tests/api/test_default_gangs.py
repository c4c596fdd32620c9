"""Gangs by default for Indexed Jobs and Parallel StatefulSets, where the cluster or the namespace switches them on."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_world import World
from support.manifests import pod

JOBS = "/apis/batch/v1/namespaces/ns/jobs"
GANG = "scheduling.phalanx.dev/gang"
LABEL = "scheduling.phalanx.dev/default-gangs"


def job(mode: str = "Indexed", annotations: Any = None, parallelism: int = 2) -> dict[str, Any]:
    template = {"spec": {**pod("p")["spec"], "restartPolicy": "Never"}}
    spec = {"completionMode": mode, "parallelism": parallelism, "completions": parallelism, "template": template}
    return {"metadata": {"name": "j", "annotations": annotations or {}}, "spec": spec}


def gang_of(world: World, body: dict[str, Any]) -> str | None:
    made = world.create(JOBS, body)
    found: str | None = (made["metadata"].get("annotations") or {}).get(GANG)
    return found


def switch_on(world: World) -> None:
    world.patch("/api/v1/namespaces/ns", {"metadata": {"labels": {LABEL: "true"}}})


def test_off_as_in_kubernetes(world: World) -> None:
    assert gang_of(world, job()) is None


def test_a_namespace_may_switch_it_on(world: World) -> None:
    switch_on(world)
    assert gang_of(world, job()) == "true"


@pytest.mark.parametrize(
    "body",
    [job("NonIndexed"), job(parallelism=1), job(annotations={GANG: "false"})],
    ids=["not indexed", "one pod", "its author says no"],
)
def test_other_jobs_stay_as_they_are(world: World, body: dict[str, Any]) -> None:
    switch_on(world)
    assert gang_of(world, body) in (None, "false")
