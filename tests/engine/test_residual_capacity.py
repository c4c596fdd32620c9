"""Residual capacity of a placement: cpu beside devices, whole pieces, and never more than before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.placement.residual_capacity import ResidualCapacity, split_resources
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group

RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu")
KINDS = split_resources(RESOURCES)


def vectors(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, dtype=np.float64).T


BIG = (94_000.0, 960.0, 110.0, 8.0)
PLAIN = (31_000.0, 120.0, 110.0, 0.0)


def test_resources_are_plain_or_devices_or_no_matter():
    plain, devices = split_resources(("cpu", "pods", "hugepages-2Mi", "memory", "example.com/fpga"))
    assert plain.tolist() == [0, 3] and devices.tolist() == [4]


@given(st.lists(st.tuples(st.integers(0, 94_000), st.integers(0, 960), st.integers(0, 8)), min_size=1, max_size=8))
def test_taking_something_never_makes_a_node_worth_more(taken):
    free = vectors(BIG, PLAIN)
    worth = ResidualCapacity(free, *KINDS)
    node = np.array(BIG)
    before = float(worth(node[:, None])[0])
    for cpu, memory, gpus in taken:
        node = np.maximum(node - np.array([cpu, memory, 1.0, gpus]), 0.0)
        after = float(worth(node[:, None])[0])
        assert after <= before + 1e-9
        before = after


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((40_000, 400, 110, 4), (4_000, 400, 110, 4)),  # devices that are fed, devices that starve
        ((31_000, 120, 110, 0), (31_000, 1, 110, 0)),  # room in every resource, room in one
        ((94_000, 960, 110, 8), (94_000, 960, 110, 7)),
    ],
)
def test_room_that_more_pods_could_use_is_worth_more(better, worse):
    worth = ResidualCapacity(vectors(BIG, PLAIN), *KINDS)
    first, second = worth(vectors(better, worse))
    assert first > second


def test_two_halves_of_devices_are_worth_less_than_a_whole_node_and_nothing():
    worth = ResidualCapacity(vectors(BIG, BIG), *KINDS)
    halves = worth(vectors((47_000, 480, 110, 4), (47_000, 480, 110, 4))).sum()
    whole = worth(vectors(BIG, (0, 0, 110, 0))).sum()
    assert whole > halves


def test_an_area_without_anything_is_worth_nothing_and_raises_nothing():
    assert ResidualCapacity(np.zeros((4, 3)), *KINDS)(np.zeros((4, 3))).tolist() == [0.0, 0.0, 0.0]
    assert ResidualCapacity(np.ones((1, 2)), *split_resources(("pods",)))(np.ones((1, 2))).shape == (2,)


@pytest.mark.parametrize("alike", [True, False])
def test_a_gang_that_asks_for_no_device_stays_off_the_nodes_that_have_them(alike):
    """Even before any pod asked for one, and though the node with devices is the tighter fit."""
    run = Cluster().see(
        node("gpu").cpu("4").mem("8Gi").resource("example.com/gpu", "4"),
        node("plain").cpu("8").mem("16Gi"),
        pod_group("g").gang(2),
        pod("a").group("g").cpu("2").mem("1Gi"),
        pod("b").group("g").cpu("2" if alike else "1").mem("1Gi"),
    )
    run.step()
    assert run.placed == {"a": "plain", "b": "plain"}


def test_a_large_gang_that_asks_for_no_device_stays_off_them_too():
    run = Cluster().see(
        *(node(f"gpu-{i}").cpu("2").resource("example.com/gpu", "4") for i in range(300)),
        *(node(f"plain-{i}").cpu("4").pods(110) for i in range(150)),
        pod_group("g").gang(600),
        *(pod(f"p{i}").group("g").cpu("1") for i in range(600)),
    )
    run.step()
    assert len(run.placed) == 600 and all(name.startswith("plain") for name in run.placed.values())


@pytest.mark.parametrize("shape", ["gang", "mixed gang", "tree"])
def test_of_equally_tight_racks_the_one_without_devices_is_taken(shape):
    groups = [pod_group("g").gang(4).topology("rack")]
    if shape == "tree":
        groups = [composite("c").gang(1).topology("rack"), pod_group("g").gang(4).parent("c")]
    run = Cluster().see(
        *(node(f"a{i}").cpu("4").label("rack", "r1").resource("example.com/gpu", "4") for i in range(2)),
        *(node(f"b{i}").cpu("4").label("rack", "r2") for i in range(2)),
        *groups,
        *(pod(f"p{i}").group("g").cpu("1" if shape == "mixed gang" and i == 0 else "2") for i in range(4)),
    )
    run.step()
    assert len(run.placed) == 4 and all(name.startswith("b") for name in run.placed.values())
