"""The Binds of a large gang are spread over several steps; its nodes are taken at once, by all of it or not at all."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import PERMANENT
from phalanx.engine.explain import why
from phalanx.engine.framework import Code, Status
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.engine.scheduling.queue.units import UnitState
from phalanx.engine.state.records import PodState
from phalanx.model.groups import Group
from phalanx.testing.builders import gang, node, pod, pod_group
from phalanx.testing.cluster import Cluster

SLICE = 4
SIZE = 10


def engine(**more: Any) -> Engine:
    return Engine(EngineSettings(search_slice=SLICE, **more))


def cluster(nodes: int = SIZE, made: Engine | None = None) -> Cluster:
    return Cluster(made or engine()).see(*(node(f"n{i}").cpu("1") for i in range(nodes)))


def group_of(run: Cluster, bind: d.Bind) -> Group:
    forest = run.engine.cluster.forest
    leaf = forest.leaf_of_pod(bind.namespace, bind.name)
    group = forest.group(leaf) if leaf is not None else None
    assert group is not None
    return group


def one_step(run: Cluster) -> list[str]:
    """One step of the engine, carried out; answers who was bound."""
    out = run.engine.step(run.now, 64)
    run.engine.validate()
    run.log += out
    for each in out:
        if isinstance(each, d.Bind) and run.pods[each.name].spec.scheduling_group is not None:
            assert group_of(run, each).satisfied, f"{each.name} is bound although its gang lacks a member"
    for decision in out:
        run.perform(decision)
    run.engine.validate()
    return [each.name for each in out if isinstance(each, d.Bind)]


def test_nodes_are_taken_at_once_and_binds_follow_step_by_step() -> None:
    run = cluster().see(*gang("g", SIZE))
    slices = [one_step(run) for _ in range(3)]
    assert [len(names) for names in slices] == [SLICE, SLICE, SIZE - 2 * SLICE]
    assert sorted(itertools.chain(*slices)) == sorted(f"g-{i}" for i in range(SIZE))
    assert len(set(run.placed.values())) == SIZE
    run.step()
    assert run.condition("g") == ("True", "Scheduled", "")


def test_between_two_slices_the_gang_is_committing_and_no_other_pod_gets_its_nodes() -> None:
    run = cluster().see(*gang("g", SIZE))
    one_step(run)
    assert run.engine.unit_lifecycle.of("podgroup/default/g") is UnitState.COMMITTING
    states = [run.engine.pods.records[f"default/g-{i}"].state for i in range(SIZE)]
    assert states.count(PodState.ASSUMED) == SIZE - SLICE and states.count(PodState.BOUND) == SLICE
    assert run.condition("g")[0] != "True", "four of ten are not a gang"
    late = next(name for name in (f"g-{i}" for i in range(SIZE)) if name not in run.placed)
    assert why(run.engine, "Pod", "default", late).items[0].summary == "its pods are being bound"
    assert run.engine.next_wake() == run.now, "it goes on by itself"
    run.see(pod("thief").cpu("1"))
    run.step()
    assert "thief" not in run.placed and len(run.placed) == SIZE and not run.evicted


def test_others_are_bound_in_between() -> None:
    run = cluster(SIZE + 1).see(*gang("g", SIZE))
    one_step(run)
    run.see(pod("small").cpu("1"))
    assert "small" in one_step(run)
    assert len(run.placed) == 2 * SLICE + 1


def test_several_large_gangs_do_not_share_one_step() -> None:
    run = cluster(3 * SIZE).see(*gang("a", SIZE), *gang("b", SIZE), *gang("c", SIZE))
    counts = []
    while len(run.placed) < 3 * SIZE:
        counts.append(len(one_step(run)))
    assert max(counts) <= 2 * SLICE, counts
    run.step()
    assert all(run.condition(name)[0] == "True" for name in "abc")


def bound(run: Cluster) -> set[str]:
    return {each.name for each in run.log if isinstance(each, d.Bind)}


def test_when_a_member_is_deleted_in_between_no_other_is_bound_and_the_gang_is_given_back() -> None:
    run = cluster().see(*gang("g", SIZE))
    first = one_step(run)
    late = [f"g-{i}" for i in range(SIZE) if f"g-{i}" not in run.placed]
    run.gone("Pod", late[0])
    run.step()
    assert bound(run) == set(first), "nine of ten are not a gang: no further Bind"
    assert run.placed == {} and sorted(run.evicted) == sorted(first)
    assert run.condition("g")[1] == "WaitingForMembers"
    run.see(*(pod(f"new-{i}").group("g").cpu("1") for i in range(SLICE + 1))).step(11)
    assert len(run.placed) == SIZE
    assert run.condition("g") == ("True", "Scheduled", "")


def test_when_more_is_asked_for_in_between_no_other_member_is_bound() -> None:
    run = cluster(SIZE + 1).see(*gang("g", SIZE))
    first = one_step(run)
    run.see(pod_group("g").gang(SIZE + 1))
    run.step()
    assert bound(run) == set(first)
    assert run.placed == {}


def test_when_the_group_is_deleted_in_between_no_other_member_is_bound() -> None:
    run = cluster().see(*gang("g", SIZE))
    first = one_step(run)
    run.gone("PodGroup", "g")
    run.step()
    assert bound(run) == set(first)
    run.see(pod_group("g").uid("another").gang(SIZE)).step(11)
    assert len(run.placed) == SIZE


@pytest.mark.parametrize("seed", range(12))
def test_never_a_part_whatever_happens_between_two_slices(seed: int) -> None:
    """At rest a gang has its minimum or no pod, and no Bind was decided for a gang that lacked a member then."""
    rng = random.Random(seed)
    run = cluster(SIZE + 3).see(*gang("g", SIZE, priority=1), pod("other").cpu("1"))
    for _ in range(rng.randrange(1, 3)):
        one_step(run)
    happens = {
        "pod": lambda: run.gone("Pod", rng.choice(sorted(name for name in run.pods if name.startswith("g-")))),
        "node": lambda: run.gone("Node", rng.choice(sorted(run.nodes))),
        "more": lambda: run.see(pod("extra").group("g").cpu("1")),
        "rival": lambda: run.see(pod("rival").cpu("1").priority(9)),
        "minimum": lambda: run.see(pod_group("g").gang(rng.choice((SIZE - 1, SIZE, SIZE + 1))).priority(1)),
        "restart": lambda: run.restart(engine()),
    }
    for what in rng.sample(sorted(happens), 2):
        happens[what]()
        run.engine.validate()
        one_step(run)
    run.step(11)
    run.step(11)
    placed = [name for name in run.placed if name.startswith(("g-", "extra"))]
    minimum = run.objects["PodGroup"]["g"].spec.scheduling_policy.gang.min_count
    complete = any(each.status == "True" for each in run.log if isinstance(each, d.SetGroupCondition))
    assert not placed or len(placed) >= minimum or complete, f"{len(placed)} of {minimum}"


def test_a_node_that_goes_before_the_turn_of_its_pod_gets_no_pod() -> None:
    run = cluster(SIZE + 1).see(*gang("g", SIZE))
    one_step(run)
    late = next(f"g-{i}" for i in range(SIZE) if f"g-{i}" not in run.placed)
    lost = run.engine.pods.records[f"default/{late}"].node_name
    run.gone("Node", lost)
    run.step()
    run.step(11)
    assert len(run.placed) == SIZE and lost not in run.placed.values()
    assert run.condition("g") == ("True", "Scheduled", "")


@pytest.mark.parametrize("steps", [1, 2])
def test_a_new_process_completes_what_was_begun(steps: int) -> None:
    run = cluster().see(*gang("g", SIZE))
    for _ in range(steps):
        one_step(run)
    assert len(run.placed) == steps * SLICE
    run.restart(engine()).step(11)
    assert len(run.placed) == SIZE and not run.evicted
    assert run.condition("g") == ("True", "Scheduled", "")


def test_a_new_process_that_cannot_complete_it_gives_everything_back() -> None:
    run = cluster().see(*gang("g", SIZE))
    one_step(run)
    taken = set(run.placed.values())
    free = next(f"n{i}" for i in range(SIZE) if f"n{i}" not in taken)
    run.restart(engine()).see(pod("thief").cpu("1").node(free)).step(11)
    assert run.placed.keys() == {"thief"}, "never a part of a gang"
    assert len(run.evicted) == SLICE


def test_a_bind_that_fails_in_a_later_slice_is_tried_again() -> None:
    run = cluster().see(*gang("g", SIZE))
    one_step(run)
    late = [f"g-{i}" for i in range(SIZE) if f"g-{i}" not in run.placed]
    run.refuse = {late[-1]: PERMANENT}
    run.step()
    assert len(run.placed) == SIZE - 1 and run.condition("g")[0] != "True"
    run.refuse = {}
    run.step(1.5)
    assert len(run.placed) == SIZE and run.condition("g") == ("True", "Scheduled", "")


def test_without_slices_everybody_is_bound_in_one_step() -> None:
    run = cluster(made=Engine(EngineSettings(search_slice=0))).see(*gang("g", SIZE))
    assert len(one_step(run)) == SIZE


class Slow:
    """Says wait at one point until it is ready."""

    name = "Slow"
    ready = False

    def _answer(self) -> Status | None:
        return None if self.ready else Status(Code.WAIT, ("in a moment",), timeout=60)


class SlowPermit(Slow):
    def permit(self, record: Any, row: int) -> Status | None:
        return self._answer()


class SlowPreBind(Slow):
    def pre_bind(self, record: Any, row: int, emit: Any) -> Status | None:
        return self._answer()


@pytest.mark.parametrize("plugin", [SlowPermit(), SlowPreBind()])
def test_a_pod_whose_node_goes_while_a_plugin_says_wait_is_bound_elsewhere(plugin: Slow) -> None:
    plugin.ready = False
    profile = ProfileSettings(plugins=(*map(PluginUse, DEFAULT_PLUGINS), PluginUse("Slow")))
    made = Engine(EngineSettings(profiles=(profile,)), plugins={"Slow": lambda args, handle: plugin})
    run = Cluster(made).see(node("a").cpu("1"), pod("p").cpu("1"))
    run.step()
    assert run.placed == {} and run.engine.pod_lifecycle.holding
    run.gone("Node", "a")
    plugin.ready = True
    run.see(node("b").cpu("1")).step()
    run.step(1.5)
    assert run.placed == {"p": "b"}


def waiting_for(plugin: Slow) -> Cluster:
    plugin.ready = False
    profile = ProfileSettings(plugins=(*map(PluginUse, DEFAULT_PLUGINS), PluginUse("Slow")))
    made = Engine(EngineSettings(profiles=(profile,)), plugins={"Slow": lambda args, handle: plugin})
    run = Cluster(made).see(node("a").cpu("1"), pod("p").cpu("1"))
    run.step()
    return run


def nominations(run: Cluster) -> list[str]:
    return [each.node for each in run.log if isinstance(each, d.Nominate)]


@pytest.mark.parametrize("plugin", [SlowPermit(), SlowPreBind()])
def test_the_node_of_a_pod_that_waits_for_a_plugin_is_written_for_other_schedulers(plugin: Slow) -> None:
    run = waiting_for(plugin)
    assert nominations(run) == [] and run.engine.unseen_binds, "a turn does not end before it is written"
    run.step(0.2)
    run.step(30)
    assert nominations(run) == ["a"] and not run.engine.unseen_binds
    plugin.ready = True
    run.step(1)
    assert run.placed == {"p": "a"} and nominations(run) == ["a"]


@pytest.mark.parametrize("plugin", [SlowPermit(), SlowPreBind()])
def test_it_is_taken_back_when_the_pod_goes_elsewhere(plugin: Slow) -> None:
    run = waiting_for(plugin)
    run.step(0.2)
    run.gone("Node", "a")
    plugin.ready = True
    run.step()
    assert nominations(run) == ["a", ""]
    run.see(node("b").cpu("1")).step(1.5)
    assert run.placed == {"p": "b"}


def test_a_pod_whose_plugin_is_quick_costs_no_such_write() -> None:
    plugin = SlowPreBind()
    run = waiting_for(plugin)
    plugin.ready = True
    run.step(0.05)
    assert run.placed == {"p": "a"} and nominations(run) == []
