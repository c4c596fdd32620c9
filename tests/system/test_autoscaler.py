"""`phalanx up --autoscale`: simulated node groups follow what waiting gangs lack, up and down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.errors import ConfigProblem
from phalanx.local.nodes.node_groups import parse_node_groups
from phalanx.local.nodes.topology import RACK, parse_topology
from support.local_cluster import LocalCluster, advance_until, local_cluster
from support.manifests import gang

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
DEMAND = "/phalanx/v1/demand"
GPU = "nvidia.com/gpu"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """A factory of clusters whose time can be advanced."""
    running: list[LocalCluster] = []

    def start(**settings: Any) -> LocalCluster:
        running.append(local_cluster(tmp_path, **settings))
        running[-1].start()
        return running[-1]

    yield start
    for cluster in running:
        cluster.stop()


def nodes(cluster: LocalCluster) -> dict[str, str]:
    """Names of all nodes, with their racks."""
    return {node["metadata"]["name"]: node["metadata"]["labels"][RACK] for node in cluster.list(NODES)}


def bound(cluster: LocalCluster, name: str) -> list[str]:
    pods = cluster.list(PODS)
    return [p["spec"].get("nodeName", "") for p in pods if p["metadata"]["name"].startswith(f"{name}-")]


def test_a_gang_gets_exactly_the_nodes_it_needs_in_one_rack_and_they_go_with_it(
    started: Callable[..., LocalCluster],
) -> None:
    up = started(nodes=0, autoscale=("gpus=8,racks=4=0..16,delay=30s,idle=60s",))
    assert nodes(up) == {}
    up.apply(*gang("never", 2, gpus=16))  # older, and no shape has 16 GPUs
    up.apply(*gang("train", 16, gpus=1, topology=RACK))
    advance_until(up, lambda: len(up.get(DEMAND)["groups"]) == 2)
    found = {group["name"]: group for group in up.get(DEMAND)["groups"]}
    assert [(each["shape"], each["count"], each["domain"]) for each in found["train"]["nodes"]] == [
        ("gpu8", 2, "rack-0")
    ]
    assert "nodes" not in found["never"] and "never fits" in found["never"]["message"]
    advance_until(up, lambda: all(bound(up, "train")), seconds=5)
    assert nodes(up) == {"gpu8-000": "rack-0", "gpu8-001": "rack-0"}
    up.advance(600)  # however long it runs, no node with a pod goes
    assert set(bound(up, "train")) == set(nodes(up)) == {"gpu8-000", "gpu8-001"}
    assert not any(node["spec"].get("unschedulable") for node in up.list(NODES))
    for i in range(16):
        up.delete(f"{PODS}/train-{i}", query={"gracePeriodSeconds": "0"})
    advance_until(up, lambda: nodes(up) == {}, seconds=10)


def test_nodes_are_made_for_the_devices_that_a_gang_claims(started: Callable[..., LocalCluster]) -> None:
    up = started(nodes=0, devices="gpu.example.com:4", autoscale=("cpu16=0..8,delay=1s,idle=5s",))
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one"}}
    up.apply({**template, "spec": {"spec": {"devices": {"requests": requests}}}})
    group, *pods = gang("train", 6)
    for pod in pods:
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    up.apply(group, *pods)
    advance_until(up, lambda: all(bound(up, "train")), seconds=5)
    assert len(nodes(up)) == 2


def test_the_minimum_stays_and_the_maximum_is_never_passed(started: Callable[..., LocalCluster]) -> None:
    up = started(nodes=0, autoscale=("gpu8=1..2,delay=0s,idle=5s",))
    assert list(nodes(up)) == ["gpu8-000"]
    up.apply(*gang("large", 3, gpus=8))  # would take three nodes
    up.apply(*gang("small", 2, gpus=8))
    advance_until(up, lambda: all(bound(up, "small")), seconds=1)
    assert not any(bound(up, "large")) and len(nodes(up)) == 2
    for i in range(2):
        up.delete(f"{PODS}/small-{i}", query={"gracePeriodSeconds": "0"})
    advance_until(up, lambda: len(nodes(up)) == 1, seconds=5)
    up.advance(60)
    assert len(nodes(up)) == 1


def test_a_shape_may_be_written_long_or_short() -> None:
    long, short, plain = parse_node_groups(
        ["gpus=4,cpu=32,racks=2=1..8,delay=2m,idle=500ms", "gpu8=0..4", "cpu16=0..3,name=web"]
    )
    assert (long.name, long.low, long.high, long.delay, long.idle) == ("gpu4", 1, 8, 120.0, 0.5)
    assert [long.body(i, 0.0)["metadata"]["labels"][RACK] for i in (0, 3, 4, 7)] == [
        "rack-0",
        "rack-0",
        "rack-1",
        "rack-1",
    ]
    assert short.body(0, 0.0)["status"]["allocatable"][GPU] == "8"
    assert plain.name == "web" and GPU not in plain.body(0, 0.0)["status"]["allocatable"]


def test_racks_of_the_cluster_are_those_of_a_shape_that_names_none() -> None:
    (group,) = parse_node_groups(["gpu8=0..8"], parse_topology("racks=4"))
    assert group.body(7, 0.0)["metadata"]["labels"][RACK] == "rack-3"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("gpu8", "no SHAPE=MIN..MAX"),
        ("gpu8=5..2", "must not exceed"),
        ("gpu8=0..0", "must not exceed"),
        ("gpu8=0..99999999", "no SHAPE=MIN..MAX"),
        ("gpu8=0..4,delay=soon", "not a duration"),
        ("gpu8=0..4,when=now", "is not delay="),
        ("=0..4", "the shape is missing"),
        ("gpus=many=0..4", "not a quantity"),
        ("flavour=8=0..4", "'flavour' is not known"),
        ("gpu8=0..4,name=A_B", "lower-case"),
    ],
)
def test_a_wrong_spec_is_one_clear_line(spec: str, problem: str) -> None:
    with pytest.raises(ConfigProblem, match=problem):
        parse_node_groups([spec])
