"""Server-side apply of explicit zero values: a wish, though Go clients never show zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.base.errors import Conflict
from support.api_world import World

NODE = "/api/v1/nodes/n"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def _node(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": spec}


def test_applying_false_takes_a_true_back(world: World) -> None:
    world.apply(NODE, _node(unschedulable=True), "me")
    applied = world.apply(NODE, _node(unschedulable=False), "me")
    assert "unschedulable" not in applied.get("spec", {})


def test_applying_false_against_the_true_of_another_manager_is_a_conflict(world: World) -> None:
    world.apply(NODE, _node(unschedulable=True), "other")
    with pytest.raises(Conflict, match="unschedulable"):
        world.apply(NODE, _node(unschedulable=False), "me")
    forced = world.apply(NODE, _node(unschedulable=False), "me", force="true")
    assert "unschedulable" not in forced.get("spec", {})


def test_applying_the_same_zero_again_changes_nothing(world: World) -> None:
    first = world.apply(NODE, _node(unschedulable=False, taints=[]), "me")
    again = world.apply(NODE, _node(unschedulable=False, taints=[]), "me")
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
