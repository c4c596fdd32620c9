"""Gangs by default for Indexed Jobs and Parallel StatefulSets, where the cluster or the namespace switches them on."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_world import World
from support.manifests import GANG, job, stateful_set
from support.rights import documents

Json = dict[str, Any]
PATHS = {"Job": "/apis/batch/v1/namespaces/ns/jobs", "StatefulSet": "/apis/apps/v1/namespaces/ns/statefulsets"}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LABEL = "scheduling.phalanx.dev/default-gangs"
OWNER = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "u", "controller": True}

GANGS = {
    "Indexed Job": lambda: job("j", 2, completionMode="Indexed"),
    "Parallel StatefulSet": lambda: stateful_set("s", 2, podManagementPolicy="Parallel"),
}
OTHERS = {
    "not indexed": lambda: job("j", 2),
    "one pod": lambda: job("j", 1, completionMode="Indexed"),
    "its author says no": lambda: job("j", 2, completionMode="Indexed", annotations={GANG: "false"}),
    "of a JobSet": lambda: job("j", 2, completionMode="Indexed", metadata={"ownerReferences": [OWNER]}),
    "says what it wants": lambda: job("j", 2, completionMode="Indexed", scheduling={"schedulingPolicy": {"basic": {}}}),
    "in order": lambda: stateful_set("s", 2),
    "one replica": lambda: stateful_set("s", 1, podManagementPolicy="Parallel"),
}


def gang_of(world: World, body: Json) -> str | None:
    body["metadata"].pop("namespace", None)
    made = world.create(PATHS[body["kind"]], body)
    found: str | None = (made["metadata"].get("annotations") or {}).get(GANG)
    return found


def label(world: World, value: str = "true") -> None:
    world.patch("/api/v1/namespaces/ns", {"metadata": {"labels": {LABEL: value}}})


def install(world: World) -> None:
    """Apply the component for other clusters, whose API servers do not know the gate or the label."""
    policy, binding = documents("components/default-gangs/policy.yaml")
    world.create(f"{ADMISSION}/mutatingadmissionpolicies", policy)
    world.create(f"{ADMISSION}/mutatingadmissionpolicybindings", binding)


@pytest.fixture(params=["namespace", "component"])
def switched_on(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    label(world)
    if request.param == "component":
        monkeypatch.setattr("phalanx.local.api.admission._GANGS_BY_DEFAULT", {})
        install(world)
    return world


@pytest.mark.parametrize("kind", GANGS)
def test_off_as_in_kubernetes(world: World, kind: str) -> None:
    assert gang_of(world, GANGS[kind]()) is None
    label(world, "false")
    install(world)
    body = GANGS[kind]()
    body["metadata"]["name"] = "other"
    assert gang_of(world, body) is None


@pytest.mark.parametrize("kind", GANGS)
def test_a_namespace_may_switch_it_on(switched_on: World, kind: str) -> None:
    assert gang_of(switched_on, GANGS[kind]()) == "true"


@pytest.mark.parametrize("what", OTHERS)
def test_other_workloads_stay_as_they_are(switched_on: World, what: str) -> None:
    assert gang_of(switched_on, OTHERS[what]()) in (None, "false")
