"""Answers and decisions come from one attempt: gates, plugins of all points and completion count in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.explain import plan
from phalanx.engine.framework import Code, Placement, Status
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model.gates import Gates
from phalanx.testing.builders import gang, node, pod
from support.asked_engine import Asked, ask


def binds(made: list[d.Decision]) -> dict[str, str]:
    return {each.name: each.node for each in made if isinstance(each, d.Bind)}


def test_a_topology_that_the_gate_switches_off_is_no_reason_for_whatif_either() -> None:
    run = Asked(Engine(gates=Gates({"TopologyAwareWorkloadScheduling": False})))
    run.see(*(node(f"n{i}").cpu("1").label("rack", f"r{i}") for i in range(2)))
    group, *pods = gang("g", 2)
    outlook = ask(run, group.topology("rack"), *pods)
    run.see(group, *pods)
    assert outlook.fits and len(binds(run.step())) == 2


def test_a_group_short_of_what_the_whole_needs_does_not_fit_in_any_answer() -> None:
    run = Asked().see(node("n").cpu("4"))
    group, leader = gang("g", 1)
    group = group.build()
    group.metadata.annotations["scheduling.phalanx.dev/min-resources"] = '{"cpu": "10"}'
    (would,) = ask(run, group, leader).items
    run.see(group, leader).step()
    said = run.last_message("g")
    assert "all that are to follow would not" in said
    assert not would.fits and would.summary == said
    now = run.why("PodGroup", "g").now
    assert now is not None and (now.result, now.message) == ("refused", said)
    assert plan(run.engine, "PodGroup", "default", "g").summary == said


class Mine:
    name = "Mine"

    def __init__(self, args: Any, handle: Any) -> None:
        self.handle = handle


def asked_with(plugin: type[Any]) -> Asked:
    uses = (*map(PluginUse, DEFAULT_PLUGINS), PluginUse("Mine"))
    return Asked(Engine(EngineSettings(profiles=(ProfileSettings(plugins=uses),)), plugins={"Mine": plugin}))


class NoPlacement(Mine):
    def generate(self, group: Any, parent: Placement) -> Status:
        return Status(Code.UNSCHEDULABLE, ("closed on Sundays",))


class NotFeasible(Mine):
    def feasible(self, group: Any, scheduled: int, remaining: int) -> Status:
        return Status(Code.SUCCESS if remaining else Code.UNSCHEDULABLE, () if remaining else ("closed on Sundays",))


class NoPermit(Mine):
    def permit(self, record: Any, row: int) -> Status:
        return Status(Code.UNSCHEDULABLE, ("closed on Sundays",), self.name)


class NoReserve(Mine):
    def reserve(self, record: Any, row: int) -> Status:
        return Status(Code.UNSCHEDULABLE, ("closed on Sundays",), self.name)

    def unreserve(self, record: Any, row: int) -> None: ...


class NoQueue(Mine):
    def pre_enqueue(self, record: Any) -> Status:
        return Status(Code.UNSCHEDULABLE, ("closed on Sundays",), self.name)


@pytest.mark.parametrize("plugin", [NoPlacement, NotFeasible, NoPermit, NoReserve, NoQueue])
def test_a_plugin_that_refuses_a_group_refuses_it_in_every_answer(plugin: type[Any]) -> None:
    run = asked_with(plugin).see(node("n").cpu("4"))
    (would,) = ask(run, *gang("g", 2)).items
    assert not would.fits and "closed on Sundays" in would.summary
    assert not binds(run.see(*gang("g", 2)).step())
    item = run.why("PodGroup", "g")
    assert "closed on Sundays" in item.summary
    if plugin is not NoQueue:
        assert item.now is not None and item.now.result == "refused" and "closed on Sundays" in item.now.message
    answer = plan(run.engine, "PodGroup", "default", "g")
    assert answer.result != "fits" and "closed on Sundays" in answer.summary


@pytest.mark.parametrize("plugin", [NoPermit, NoReserve, NoQueue])
def test_a_plugin_that_refuses_a_pod_refuses_it_in_every_answer(plugin: type[Any]) -> None:
    run = asked_with(plugin).see(node("n").cpu("4"))
    (would,) = ask(run, pod("p").cpu("1")).items
    assert not would.fits and "closed on Sundays" in would.summary
    assert not binds(run.see(pod("p").cpu("1")).step())


def test_room_is_made_only_where_a_plugin_lets_the_group_go() -> None:
    class OnlyTheLast(Mine):
        def generate(self, group: Any, parent: Placement) -> list[Placement]:
            mask = np.zeros_like(parent.mask)
            mask[np.flatnonzero(parent.mask)[-2:]] = True
            return [Placement("last", mask)]

    run = asked_with(OnlyTheLast)
    for i in range(4):  # those on the last nodes are dearer: without the plugin the first two would go
        run.see(node(f"n{i}").cpu("1"), pod(f"low-{i}").cpu("1").priority(1 + i).node(f"n{i}"))
    run.see(*gang("g", 2, priority=100))
    answer = plan(run.engine, "PodGroup", "default", "g")
    run.step()
    answer = plan(run.engine, "PodGroup", "default", "g")
    assert {each.name for each in run.log if isinstance(each, d.Evict)} == {"low-2", "low-3"}
    assert answer.result == "underWay"


def test_no_pod_is_evicted_for_a_group_that_a_plugin_would_refuse_afterwards() -> None:
    run = asked_with(NotFeasible).see(node("n").cpu("2"), pod("low").cpu("2").priority(1).node("n"))
    run.see(*gang("g", 2, priority=100)).step()
    assert not [each for each in run.log if isinstance(each, d.Evict)]
    assert plan(run.engine, "PodGroup", "default", "g").result not in ("plan", "fits")
