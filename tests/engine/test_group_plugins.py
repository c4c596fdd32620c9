"""Plugins at the group points: they choose among placements, stop groups, help after a failure, and may break."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.engine.framework import Code, Placement, PostFilterResult, Status
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.testing.builders import node, pod, pod_group

RACK = "rack"


class Base:
    name = "Mine"

    def __init__(self, args: Mapping[str, Any], handle: Any) -> None:
        self.handle = handle


def engine_with(plugin: Callable[..., Any], racks: dict[str, int], *, gang: int = 2, key: str | None = RACK) -> Engine:
    """Racks of two-cpu nodes and a gang of one-cpu pods."""
    uses = (*map(PluginUse, DEFAULT_PLUGINS), PluginUse("Mine"))
    settings = EngineSettings(profiles=(ProfileSettings(plugins=uses),))
    engine = Engine(settings, plugins={"Mine": plugin})
    for rack, count in racks.items():
        for number in range(count):
            engine.apply(e.NodeChanged(node(f"{rack}{number}").cpu("2").label(RACK, rack).build()))
    group = pod_group("pg").gang(gang)
    engine.apply(e.PodGroupChanged((group.topology(key) if key else group).build()))
    for number in range(gang):
        engine.apply(e.PodChanged(pod(f"p{number}").cpu("1").group("pg").build()))
    return engine


def bound(engine: Engine) -> dict[str, str]:
    return {x.name: x.node for x in engine.step(1.0) if isinstance(x, d.Bind)}


def condition(made: list[d.Decision]) -> d.SetGroupCondition:
    return next(x for x in made if isinstance(x, d.SetGroupCondition))


def test_a_score_chooses_another_rack_than_the_tightest() -> None:
    class Largest(Base):
        def score_placement(self, group: Any, placement: Placement, assignments: Any) -> float:
            assert (group.kind, group.name, group.topology_key) == ("PodGroup", "pg", RACK)
            assert len(assignments) == 2
            return float(placement.mask.sum())

    assert set(bound(engine_with(Base, {"a": 1, "b": 3})).values()) == {"a0"}  # without a score: the smallest
    assert {where[0] for where in bound(engine_with(Largest, {"a": 1, "b": 3})).values()} == {"b"}


def test_a_generator_says_which_nodes_there_are() -> None:
    class OnlyTheLast(Base):
        def generate(self, group: Any, parent: Placement) -> list[Placement]:
            mask = np.zeros_like(parent.mask)
            mask[np.flatnonzero(parent.mask)[-1]] = True
            return [Placement("last", mask)]

    assert set(bound(engine_with(OnlyTheLast, {"a": 1, "b": 2}, key=None)).values()) == {"b1"}


def test_a_generator_may_refuse() -> None:
    class Closed(Base):
        def generate(self, group: Any, parent: Placement) -> Status:
            return Status(Code.UNSCHEDULABLE, ("closed on Sundays",))

    made = engine_with(Closed, {"a": 2}).step(1.0)
    assert not [x for x in made if isinstance(x, d.Bind)]
    assert "closed on Sundays (Mine)" in condition(made).message


def test_feasible_is_asked_before_and_after_and_can_stop_a_group() -> None:
    asked: list[tuple[int, int]] = []

    class NeverWhole(Base):
        def feasible(self, group: Any, scheduled: int, remaining: int) -> Status:
            asked.append((scheduled, remaining))
            return Status(Code.SUCCESS if remaining else Code.UNRESOLVABLE, () if remaining else ("not today",))

    made = engine_with(NeverWhole, {"a": 2}).step(1.0)
    assert asked == [(0, 2), (2, 0)]
    assert not [x for x in made if isinstance(x, d.Bind)]
    assert "not today (Mine)" in condition(made).message
    assert "preemption" not in condition(made).message  # nothing will help, so nothing is tried


def test_a_helper_after_a_failure_is_heard() -> None:
    class Orders(Base):
        def pod_group_post_filter(self, group: Any, pods: Any, diagnosis: Any) -> PostFilterResult:
            return PostFilterResult(Status(Code.SUCCESS), message=f"ordered a node for {len(pods)} pods")

    made = engine_with(Orders, {"a": 1}, gang=3).step(1.0)
    assert condition(made).message.endswith(", ordered a node for 3 pods")


def test_a_plugin_that_raises_fails_the_attempt_with_its_name() -> None:
    class Broken(Base):
        def score_placement(self, group: Any, placement: Placement, assignments: Any) -> float:
            raise RuntimeError("oops")

    made = engine_with(Broken, {"a": 1, "b": 1}).step(1.0)
    said = condition(made)
    assert said.reason == "SchedulerError" and "Mine" in said.message and "oops" in said.message
