"""Topology specs: what users write, what nodes get, and what they read when it is wrong."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.base.errors import ConfigProblem
from phalanx.base.well_known import GPU
from phalanx.local.nodes.fleet import node_body, node_ip, node_name
from phalanx.local.nodes.topology import BLOCK, RACK, ZONE, Topology, parse_topology, usual_topology


def test_the_spec_of_the_documentation() -> None:
    topology = parse_topology("zones=2, blocks=4, racks=8, gpus=4, cpu=96, memory=1Ti")
    assert (topology.zones, topology.blocks, topology.racks) == (2, 4, 8)
    assert topology.capacity == {
        "cpu": "96", "memory": "1Ti", GPU: "4", "pods": "110", "ephemeral-storage": "1Ti",
    }  # fmt: skip


def test_a_level_left_out_follows_the_one_above() -> None:
    assert parse_topology("zones=3") == Topology(3, 3, 3)
    assert parse_topology("racks=6") == Topology(1, 1, 6)
    assert parse_topology("") == Topology(1, 1, 1)


def test_a_large_cluster_has_racks_without_being_asked_for() -> None:
    assert usual_topology(64) == Topology(1, 1, 1)
    topology = usual_topology(2_000)
    assert (topology.zones, topology.blocks, topology.racks) == (1, 16, 125)
    racks = Counter(topology.labels(index, 2_000)[RACK] for index in range(2_000))
    assert len(racks) == 125 and set(racks.values()) == {16}


def test_no_gpus() -> None:
    topology = parse_topology("gpus=0,cpu=500m")
    assert GPU not in topology.capacity and topology.instance_type == "simulated-cpu500m"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("zones", "has no value"),
        ("zones=", "has no value"),
        ("zones=two", "whole number"),
        ("zones=0", "whole number"),
        ("zones=-1", "whole number"),
        ("zones=²", "whole number"),
        ("zones=2,zones=3", "twice"),
        ("regions=2", "not known"),
        ("zones=2,blocks=3", "blocks must be a multiple of zones"),
        ("blocks=4,racks=6", "racks must be a multiple of blocks"),
        ("cpu=lots", "not a quantity"),
        ("cpu=-1", "negative"),
        ("gpus=1.5", "whole number"),
    ],
)
def test_mistakes_are_named(spec: str, words: str) -> None:
    with pytest.raises(ConfigProblem, match=words) as caught:
        parse_topology(spec)
    assert caught.value.path == "--topology"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 200))
def test_domains_nest_and_are_even(zones: int, blocks: int, racks: int, nodes: int) -> None:
    topology = parse_topology(f"zones={zones},blocks={zones * blocks},racks={zones * blocks * racks}")
    labels = [topology.labels(index, nodes) for index in range(nodes)]
    for inner, outer in ((RACK, BLOCK), (BLOCK, ZONE)):
        assert len({(node[inner], node[outer]) for node in labels}) == len({node[inner] for node in labels})
    sizes = Counter(node[RACK] for node in labels)
    if nodes >= topology.racks:
        assert len(sizes) == topology.racks and max(sizes.values()) - min(sizes.values()) <= 1


def test_a_node_is_complete_from_its_first_moment() -> None:
    body = node_body(7, 16, parse_topology("zones=2,racks=8"), 1_700_000_000.0)
    assert body["metadata"]["name"] == "node-00007" == body["metadata"]["labels"]["kubernetes.io/hostname"]
    assert body["status"]["allocatable"]["nvidia.com/gpu"] == "8" and body["status"]["capacity"]["pods"] == "110"
    assert {"type": "Ready", "status": "True"}.items() <= body["status"]["conditions"][-1].items()
    assert "node.kubernetes.io/instance-type" in body["metadata"]["labels"]


def test_names_sort_as_numbers_and_addresses_differ() -> None:
    assert [node_name(i) for i in (9, 10, 99_999)] == sorted(node_name(i) for i in (9, 10, 99_999))
    assert len({node_ip(i) for i in range(10_000)}) == 10_000
