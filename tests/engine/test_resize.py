"""Pods that are resized while they run: what their nodes are taken to have given them."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engine.decisions import Bind
from phalanx.testing import Cluster
from phalanx.testing.builders import PodBuilder, node, pod
from support.verdicts import binds


def running(asks: str, allocated: str | None = None, actual: str | None = None, reason: str = "") -> PodBuilder:
    """A pod on the node `n`; `reason`: why what it asks for was not given."""
    made = pod("p").cpu(asks).node("n").phase("Running")
    status: dict[str, Any] = {"name": made.spec["containers"][0]["name"]}
    if allocated is not None:
        status |= {"allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual or allocated}}}
    made.status["containerStatuses"] = [status]
    if reason:
        made.condition("PodResizePending", "True", reason)
    return made


def room(there: PodBuilder) -> int:
    """How many pods of one core fit beside it on a node of eight."""
    run = Cluster().see(node("n").cpu("8").pods(110), there)
    return len(binds(run.see(*(pod(f"q{i}").cpu("1") for i in range(9))).step()))


@pytest.mark.parametrize(
    "there,left",
    [
        (running("2"), 6),
        (running("2", "2"), 6),
        (running("4", "2"), 4),  # asked for, and the node has not looked yet
        (running("4", "2", reason="Deferred"), 4),  # it will be given
        (running("20", "2", reason="Infeasible"), 6),  # it never will
        (running("20", "2", "3", reason="Infeasible"), 5),
        (running("1", "4"), 4),  # less is asked for, and more is still held
        (running("1", "1", "4"), 4),  # promised, and still in force
        (running("20", reason="Infeasible"), 0),  # its node does not say what it gave
    ],
)
def test_a_pod_counts_for_what_it_may_use(there: PodBuilder, left: int) -> None:
    assert room(there) == left


def test_a_resize_that_turns_out_infeasible_gives_room_back() -> None:
    run = Cluster().see(node("n").cpu("8").pods(110), running("20", "2"))
    run.see(pod("q").cpu("6"))
    assert not binds(run.step())
    run.see(running("20", "2", reason="Infeasible"))
    assert binds(run.step()) == {"q": "n"}


def test_a_resize_of_the_whole_pod_counts_the_same_way() -> None:
    there = running("1", "1")
    there.spec["resources"] = {"requests": {"cpu": "20"}}
    there.status.update({"allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "4"}}})
    assert room(there) == 0
    assert room(there.condition("PodResizePending", "True", "Infeasible")) == 4


def test_a_pod_that_is_resized_while_its_bind_is_under_way_counts_for_the_new_size() -> None:
    run = Cluster(confirm=False).see(node("n").cpu("8").pods(110), pod("p").cpu("1"))
    assert [each.name for each in run.step() if isinstance(each, Bind)] == ["p"]
    run.see(pod("p").cpu("4"))  # a version that does not show its node yet
    run.see(pod("p").cpu("4").node("n"))
    run.see(*(pod(f"q{i}").cpu("1") for i in range(9)))
    assert len([each for each in run.step() if isinstance(each, Bind)]) == 4


def test_a_bound_version_that_shows_what_its_node_gave_counts_for_that() -> None:
    run = Cluster(confirm=False).see(node("n").cpu("8").pods(110), pod("p").cpu("1"))
    run.step()
    run.see(running("1", "1", "4"))
    run.see(*(pod(f"q{i}").cpu("1") for i in range(9)))
    assert len([each for each in run.step() if isinstance(each, Bind)]) == 4
