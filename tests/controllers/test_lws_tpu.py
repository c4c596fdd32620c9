"""Pods of a LeaderWorkerSet that request TPUs know their peers: subgroups, several containers, plain leaders."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.controllers.workloads.leaderworkerset.sets import worker_set
from phalanx.model.leaderworkerset.pods import complete_pod

Json = dict[str, Any]
P = "leaderworkerset.sigs.k8s.io/"
TPU = {"limits": {"google.com/tpu": "4"}}


def container(name: str = "c", port: str = "", **rest: Any) -> Json:
    env = [{"name": "TPU_PROCESS_PORT", "value": port}] if port else []
    return {"name": name, "image": "i", "resources": TPU, "env": env, **rest}


def pod(name: str, size: int, *containers: Json, leader_too: bool = True, subgroup: int = 0, kind: str = "") -> Json:
    leader = name.count("-") == 1
    notes = {f"{P}size": str(size)}
    if subgroup:
        notes |= {f"{P}subgroup-size": str(subgroup), f"{P}subgroup-policy-type": kind or "LeaderWorker"}
    if not leader:
        notes[f"{P}leader-name"] = name.rpartition("-")[0]
        if leader_too:
            notes[f"{P}leader-requests-tpus"] = "true"
    labels = {f"{P}name": "s", f"{P}group-index": name.split("-")[1]} | ({f"{P}worker-index": "0"} if leader else {})
    meta = {"name": name, "namespace": "ns", "labels": labels, "annotations": notes}
    made = {"metadata": meta, "spec": {"subdomain": "d", "containers": list(containers or [container()])}}
    complete_pod(made, "ns")
    return made


def environment(made: Json, place: int = 0) -> dict[str, str]:
    env = {entry["name"]: entry["value"] for entry in made["spec"]["containers"][place]["env"]}
    return {name: value for name, value in env.items() if name.startswith("TPU_")}


def test_every_pod_of_a_group_has_the_same_list_and_its_own_number() -> None:
    hosts = "s-0.d,s-0-1.d,s-0-2.d"
    for number, name in enumerate(("s-0", "s-0-1", "s-0-2")):
        assert environment(pod(name, 3)) == {
            "TPU_WORKER_HOSTNAMES": hosts,
            "TPU_WORKER_ID": str(number),
            "TPU_NAME": "s-0",
            "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:8476" for host in hosts.split(",")),
            "TPU_PROCESS_PORT": "8476",
        }


def test_a_leader_without_tpus_is_no_worker() -> None:
    leader = pod("s-0", 3, {"name": "c", "image": "i"})
    assert environment(leader) == {}
    worker = environment(pod("s-0-1", 3, leader_too=False))
    assert (worker["TPU_WORKER_ID"], worker["TPU_WORKER_HOSTNAMES"]) == ("0", "s-0-1.d,s-0-2.d")


def test_each_container_is_a_worker_of_its_own() -> None:
    made = pod("s-0-1", 2, container("a"), {"name": "plain", "image": "i"}, container("b"))
    first, second = environment(made, 0), environment(made, 2)
    assert environment(made, 1) == {}
    assert (first["TPU_WORKER_ID"], second["TPU_WORKER_ID"]) == ("2", "3")
    assert first["TPU_WORKER_HOSTNAMES"] == "s-0.d,s-0.d,s-0-1.d,s-0-1.d"
    assert first["TPU_PROCESS_ADDRESSES"] == "s-0.d:8476,s-0.d:8477,s-0-1.d:8476,s-0-1.d:8477"
    assert (first["TPU_PROCESS_PORT"], second["TPU_PROCESS_PORT"]) == ("8476", "8477")


def test_ports_that_the_author_chose_are_kept() -> None:
    made = environment(pod("s-0", 2, container("a", "9000"), container("b", "9001")))
    assert made["TPU_PROCESS_ADDRESSES"] == "s-0.d:9000,s-0.d:9001,s-0-1.d:9000,s-0-1.d:9001"
    assert made["TPU_PROCESS_PORT"] == "9000"


def test_a_list_that_the_author_wrote_is_left_alone() -> None:
    own = container(env=[{"name": "TPU_WORKER_ID", "value": "7"}])
    assert environment(pod("s-0", 2, own)) == {"TPU_WORKER_ID": "7"}


@pytest.mark.parametrize(
    ("name", "size", "subgroup", "leader_too", "kind", "number", "hosts"),
    [
        ("s-0", 2, 1, True, "", "0", "s-0.d"),
        ("s-0", 4, 2, True, "", "0", "s-0.d,s-0-1.d"),
        ("s-1-3", 5, 5, True, "", "3", "s-1.d,s-1-1.d,s-1-2.d,s-1-3.d,s-1-4.d"),
        ("s-1-7", 8, 4, True, "", "3", "s-1-4.d,s-1-5.d,s-1-6.d,s-1-7.d"),
        ("s-1-5", 9, 4, False, "", "0", "s-1-5.d,s-1-6.d,s-1-7.d,s-1-8.d"),
        ("s-0-2", 5, 2, False, "LeaderExcluded", "1", "s-0-1.d,s-0-2.d"),
    ],
)
def test_subgroups_have_lists_of_their_own(
    name: str, size: int, subgroup: int, leader_too: bool, kind: str, number: str, hosts: str
) -> None:
    made = environment(pod(name, size, leader_too=leader_too, subgroup=subgroup, kind=kind))
    assert (made["TPU_WORKER_ID"], made["TPU_WORKER_HOSTNAMES"]) == (number, hosts)


def test_workers_know_whether_their_leader_requests_tpus() -> None:
    template = {"size": 2, "workerTemplate": {"spec": {"containers": [container()]}}}
    meta = {"name": "s", "namespace": "ns", "uid": "u"}
    lws = {"metadata": meta, "spec": {"leaderWorkerTemplate": template}}
    for spec, expected in (({"containers": [container()]}, "true"), ({"containers": [{"name": "c"}]}, None)):
        leader = {"metadata": {**meta, "name": "s-0", "labels": {}}, "spec": spec}
        notes = worker_set(lws, leader)["spec"]["template"]["metadata"]["annotations"]
        assert notes.get(f"{P}leader-requests-tpus") == expected
