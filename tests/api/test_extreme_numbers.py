"""Any number in any field of a manifest, and in any query, is answered: accepted, or refused with 4xx."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.base.errors import ApiProblem
from support.api_world import World

EXTREMES = (2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 10**30, -1, 1.5e300)
EXAMPLES = Path(__file__).parents[2] / "examples"
POD = {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
MORE: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "generation": 1, "deletionGracePeriodSeconds": 5},
        "spec": {
            **POD,
            "terminationGracePeriodSeconds": 30,
            "activeDeadlineSeconds": 5,
            "priority": 0,
            "securityContext": {"runAsUser": 1000, "fsGroup": 5},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        },
    },
    {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            "minReplicas": 1,
            "maxReplicas": 3,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5, "policies": []}},
        },
    },
    {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {
            "schedule": "* * * * *",
            "startingDeadlineSeconds": 5,
            "successfulJobsHistoryLimit": 3,
            "jobTemplate": {
                "spec": {
                    "ttlSecondsAfterFinished": 5,
                    "activeDeadlineSeconds": 5,
                    "backoffLimit": 3,
                    "template": {"spec": {**POD, "restartPolicy": "Never"}},
                }
            },
        },
    },
    {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"leaseDurationSeconds": 15, "leaseTransitions": 1, "holderIdentity": "x"},
    },
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "x"}, "value": 5},
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80, "targetPort": 80, "nodePort": 30080}], "type": "NodePort"},
    },
]


def documents() -> dict[str, dict[str, Any]]:
    found = {each["kind"]: each for each in MORE}
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text())):
            if document:
                found[f"{path.stem}-{number}"] = document
    return found


DOCUMENTS = documents()


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        if isinstance(below, int) and not isinstance(below, bool):
            yield (*path, key)
        yield from numbers(below, (*path, key))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_number_of_a_manifest_is_checked(world: World, name: str) -> None:
    document = DOCUMENTS[name]
    path = path_of(world, document)
    if path is None:
        pytest.skip("a custom resource")
    for place in numbers(document):
        for extreme in EXTREMES:
            body = copy.deepcopy(document)
            at: Any = body
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = extreme
            body["metadata"].pop("namespace", None)
            try:
                world.create(path, body)
                world.delete(f"{path}/{body['metadata']['name']}")
                world.delete(f"{path}/{body['metadata']['name']}", {"gracePeriodSeconds": 0})
            except ApiProblem as problem:
                assert 400 <= problem.code < 500, f"{place}: {problem}"


@pytest.mark.parametrize("text", ["9" * 5000, "²", "-5", "x"])
def test_any_text_may_stand_in_the_generation_of_a_daemon_set(world: World, text: str) -> None:
    key = "deprecated.daemonset.template.generation"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "annotations": {key: text}}}
    path = "/apis/apps/v1/namespaces/ns/daemonsets"
    assert world.create(path, made | {"spec": spec})["metadata"]["annotations"][key] == "1"
    found = world.patch(f"{path}/d", {"metadata": {"annotations": {key: text}}})
    assert found["metadata"]["annotations"][key] == "1"


def path_of(world: World, document: dict[str, Any]) -> str | None:
    group, _, version = document["apiVersion"].rpartition("/")
    kind = world.ctx.registry.by_kind(group, version, document["kind"])
    if kind is None:
        return None
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return f"{base}/namespaces/ns/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"
