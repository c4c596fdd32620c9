"""Pods created directly with the labels of a LeaderWorkerSet get what its webhook gives to all of its pods."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from phalanx.base.errors import BadRequest, Forbidden, Invalid
from support.api_world import PODS, World

Json = dict[str, Any]
P = "leaderworkerset.sigs.k8s.io/"
TPU = {"limits": {"google.com/tpu": "4"}}


def member(name: str, labels: dict[str, str], notes: dict[str, str] | None = None, **container: Any) -> Json:
    spec = {"subdomain": "s", "containers": [{"name": "c", "image": "i", **container}]}
    meta = {"name": name, "labels": {f"{P}name": "s", **labels}, "annotations": {f"{P}size": "4", **(notes or {})}}
    return {"metadata": meta, "spec": spec}


def environment(pod: Json) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


def test_a_worker_gets_its_index_and_the_address_of_its_leader(world: World) -> None:
    pod = world.create(PODS, member("s-1-2", {f"{P}group-index": "1"}))
    assert pod["metadata"]["labels"] == {f"{P}name": "s", f"{P}group-index": "1", f"{P}worker-index": "2"}
    assert environment(pod) == {
        "LWS_LEADER_ADDRESS": "s-1.s.ns",
        "LWS_GROUP_SIZE": "4",
        "LWS_WORKER_INDEX": "2",
    }


def test_a_leader_gets_its_group_and_a_domain_of_its_own(world: World) -> None:
    pod = world.create(PODS, member("s-1", {f"{P}worker-index": "0"}, {f"{P}exclusive-topology": "rack"}))
    labels, affinity = pod["metadata"]["labels"], pod["spec"]["affinity"]
    assert labels[f"{P}group-index"] == "1"
    for field in ("podAffinity", "podAntiAffinity"):
        (term,) = affinity[field]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "rack"
        assert labels[f"{P}group-key"] in term["labelSelector"]["matchExpressions"][-1]["values"]


def test_a_pod_with_tpus_knows_its_peers(world: World) -> None:
    notes = {f"{P}subgroup-size": "2", f"{P}leader-requests-tpus": "true", f"{P}leader-name": "s-1"}
    pod = world.create(PODS, member("s-1-3", {f"{P}group-index": "1"}, notes, resources=TPU))
    assert pod["metadata"]["labels"][f"{P}subgroup-index"] == "1"
    found = environment(pod)
    assert (found["TPU_WORKER_HOSTNAMES"], found["TPU_WORKER_ID"]) == ("s-1-2.s,s-1-3.s", "1")


def test_an_environment_that_is_complete_is_kept_as_it_is(world: World) -> None:
    first = world.create(PODS, member("s-0-1", {f"{P}group-index": "0"}, resources=TPU))
    again = {"metadata": {**first["metadata"], "name": "s-0-1"}, "spec": first["spec"]}
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        again["metadata"].pop(field, None)
    again["spec"].pop("nodeName", None)
    world.delete(f"{PODS}/s-0-1", options={"gracePeriodSeconds": 0})
    assert world.create(PODS, again)["spec"]["containers"] == first["spec"]["containers"]


def test_other_pods_are_left_alone(world: World) -> None:
    pod = member("s-0-1", {})
    del pod["metadata"]["labels"]
    assert "env" not in world.create(PODS, pod)["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("name", "labels", "notes", "why"),
    [
        ("s-0-1", {f"{P}group-index": "0"}, {f"{P}size": None}, "annotation leaderworkerset.sigs.k8s.io/size"),
        ("s-0-1", {f"{P}group-index": "0"}, {f"{P}size": "1e3"}, "not a whole number"),
        ("worker", {f"{P}group-index": "0"}, {}, "ends with an index"),
        ("s-0-1", {}, {}, "label leaderworkerset.sigs.k8s.io/group-index"),
        ("s-0-1", {f"{P}group-index": "0"}, {f"{P}subgroup-size": "[["}, "not a whole number"),
        ("s-0-1", {f"{P}group-index": "0"}, {f"{P}subgroup-size": "0"}, "not a whole number"),
    ],
)
def test_a_pod_that_cannot_be_completed_is_refused(
    world: World, name: str, labels: dict[str, str], notes: dict[str, Any], why: str
) -> None:
    pod = member(name, labels, notes)
    pod["metadata"]["annotations"] = {k: v for k, v in pod["metadata"]["annotations"].items() if v is not None}
    with pytest.raises(Forbidden, match=why):
        world.create(PODS, pod)


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{}]},
        {"env": None, "resources": None},
        {"resources": {"limits": {"google.com/tpu": "many"}}},
        {"resources": {"limits": {"google.com/tpu": None}, "requests": {"google.com/tpu": "4"}}},
    ],
)
def test_an_incomplete_pod_is_judged_by_the_rules_of_pods(world: World, container: Json) -> None:
    pod = member("s-0-1", {f"{P}group-index": "0"}, **container)
    with suppress(Invalid, BadRequest):
        world.create(PODS, pod)


def test_a_list_of_peers_has_a_limit(world: World) -> None:
    notes = {f"{P}size": "2147483647"}
    assert world.create(PODS, member("s-0-1", {f"{P}group-index": "0"}, notes))
    for name, subgroup in (("s-0-2", {}), ("s-0-3", {f"{P}subgroup-size": "2147483647"})):
        with pytest.raises(Forbidden, match="2147483647 pods are too many"):
            world.create(PODS, member(name, {f"{P}group-index": "0"}, {**notes, **subgroup}, resources=TPU))
