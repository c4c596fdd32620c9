"""Between the decision and the last bind: failures of every kind, Reserve and Permit, crashes at every moment."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from phalanx.base.clock import parse_rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CONFLICT, NOT_FOUND, PERMANENT, TRANSIENT, Outcome
from phalanx.engine.framework import Code, Status
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.engine.state.records import PodState
from phalanx.model.groups.keys import BOUND_IN_GROUP
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, gang, node, pod, pod_group
from phalanx.testing.cluster import ENDED

STARTED = parse_rfc3339(ENDED)  # when a pod has started that `Cluster.update` lets start


def three_nodes():
    return [node(f"n{i}").cpu("1") for i in range(3)]


@pytest.mark.parametrize("problem", [CONFLICT, TRANSIENT, PERMANENT])
def test_a_bind_that_fails_is_tried_again_after_a_while_and_the_gang_completes(problem):
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.refuse = {"g-1": problem}
    run.step()
    assert run.placed.keys() == {"g-0", "g-2"}
    assert run.condition("g")[0] != "True", "two of three are not a gang"
    binds = sum(isinstance(each, d.Bind) for each in run.log)
    run.step()
    assert sum(isinstance(each, d.Bind) for each in run.log) == binds, "not at once: the API server is in trouble"
    run.refuse = {}
    run.step(1.5)
    assert run.placed.keys() == {"g-0", "g-1", "g-2"}
    assert run.condition("g") == ("True", "Scheduled", "")
    assert run.evicted == []


def test_binds_that_go_on_failing_are_tried_less_and_less_often():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.refuse = {f"g-{i}": TRANSIENT for i in range(3)}
    run.step()
    for _ in range(60):
        run.step(1.0)
    tries = sum(isinstance(each, d.Bind) and each.name == "g-0" for each in run.log)
    assert 5 <= tries <= 12


def test_a_gang_that_cannot_be_completed_any_more_is_released_and_tried_again_whole():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.refuse = {"g-1": PERMANENT}
    run.step()
    assert len(run.placed) == 2
    free = ({"n0", "n1", "n2"} - set(run.placed.values())).pop()
    run.see(pod("thief").cpu("1").node(free))
    run.refuse = {}
    run.step(1.5)
    assert sorted(run.evicted) == ["g-0", "g-2"]
    assert run.placed.keys() == {"thief"}
    why = next(each for each in run.log if isinstance(each, d.Evict))
    assert why.reason == "GangIncomplete" and "PodGroup g needs 3 members, only 2 could be bound" in why.message
    assert why.event_reason == "GangReleased"
    # The controller makes them again; then there is room.
    run.see(*(pod(f"g-{i}b").group("g").cpu("1") for i in (0, 2))).step(11)
    assert run.placed.keys() == {"thief"}
    run.gone("Pod", "thief").step(11)
    assert run.placed.keys() == {"g-0b", "g-1", "g-2b"}
    assert run.condition("g") == ("True", "Scheduled", "")


def half_bound(created: float) -> Cluster:
    """Two of three are bound, one of these has started; the third, made at that time, has lost its node to another."""
    run = Cluster().see(*three_nodes(), *gang("g", 3)[:1])
    run.see(*(pod(f"g-{i}").group("g").cpu("1").created(created if i == 1 else STARTED - 60) for i in range(3)))
    run.refuse = {"g-1": PERMANENT}
    run.step()
    run.update("g-0", phase="Running", started=True)
    run.see(pod("thief").cpu("1").node(({"n0", "n1", "n2"} - set(run.placed.values())).pop()))
    run.refuse = {}
    return run


@pytest.mark.parametrize("restart", [False, True])
def test_members_that_started_without_the_others_are_released_with_their_gang(restart: bool) -> None:
    """Seed 1794816864: a scheduler died between two binds, and when the next one came the bound ones ran: half a gang
    stayed for good."""
    run = half_bound(STARTED - 60)
    if restart:
        run.restart()
    run.step(60)
    assert sorted(run.evicted) == ["g-0", "g-2"]


@pytest.mark.parametrize("restart", [False, True])
def test_members_that_run_are_not_released_while_their_gang_waits_for_a_later_member(restart: bool) -> None:
    run = half_bound(STARTED + 60)
    if restart:
        run.restart()
    run.step(60)
    assert run.evicted == [], "it may have been whole: the third is made in the place of one that is gone"


def test_a_gang_that_was_complete_once_is_repaired_not_released():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.step()
    assert run.condition("g")[0] == "True"
    run.gone("Pod", "g-1")
    run.see(pod("thief").cpu("1").node(({"n0", "n1", "n2"} - set(run.placed.values())).pop()))
    run.see(pod("g-3").group("g").cpu("1")).step(60)
    assert run.evicted == [] and "g-3" not in run.placed


@pytest.mark.parametrize("restart", [False, True])
def test_a_group_made_again_with_a_larger_minimum_does_not_release_what_ran_before(restart):
    run = Cluster().see(*three_nodes(), *gang("g", 2))
    run.step()
    assert run.condition("g")[0] == "True"
    run.gone("PodGroup", "g").step()
    run.see(pod_group("g").uid("another").gang(4), *(pod(f"new-{i}").group("g").cpu("1") for i in range(2)))
    if restart:
        run.restart()
    run.step(60)
    assert run.evicted == [] and run.placed.keys() == {"g-0", "g-1"}
    run.see(node("n3").cpu("1")).step(60)
    assert run.placed.keys() == {"g-0", "g-1", "new-0", "new-1"}


def test_a_member_deleted_during_the_commit_leaves_no_partial_gang():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.hold = {"g-1"}
    run.step()
    assert len(run.placed) == 2
    run.gone("Pod", "g-1")
    run.answer_held()
    run.step()
    assert sorted(run.evicted) == ["g-0", "g-2"], "no pod is left to complete it"
    assert run.placed == {}


def test_an_answer_that_is_lost_does_not_matter_once_the_pod_is_seen_bound():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.hold = {"g-0", "g-1", "g-2"}
    run.step()
    for bind in run.held:
        run.bind(bind, answer=False)
    run.step()
    assert run.condition("g") == ("True", "Scheduled", "")


def test_answers_that_come_twice_or_for_pods_that_are_gone_change_nothing():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.step()
    for bind in [each for each in run.log if isinstance(each, d.Bind)]:
        run.engine.apply(Outcome(bind.id))
        run.engine.apply(Outcome(bind.id, NOT_FOUND))
    run.step()
    assert len(run.placed) == 3 and run.evicted == []


def test_an_optional_child_that_failed_is_released_and_the_rest_of_the_tree_stays():
    run = Cluster().see(*(node(f"n{i}").cpu("1") for i in range(4)), composite("job").gang(1))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(2).parent("job"), *(pod(f"{name}-{i}").group(name).cpu("1") for i in range(2)))
    run.refuse = {"b-1": PERMANENT}
    run.step()
    assert run.condition("job", "CompositePodGroup")[0] == run.condition("a")[0] == "True"
    assert run.condition("b")[0] != "True"
    run.see(pod("thief").cpu("1").node(({f"n{i}" for i in range(4)} - set(run.placed.values())).pop()))
    run.step(1.5)
    assert run.evicted == ["b-0"]
    assert {"a-0", "a-1"} <= run.placed.keys()


def test_a_tree_that_cannot_be_completed_is_released_with_its_complete_children():
    run = Cluster().see(*(node(f"n{i}").cpu("1") for i in range(4)), composite("job").gang(2))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(2).parent("job"), *(pod(f"{name}-{i}").group(name).cpu("1") for i in range(2)))
    run.refuse = {"b-1": PERMANENT}
    run.step()
    assert run.condition("a")[0] != "True", "its parent is not complete"
    run.see(pod("thief").cpu("1").node(({f"n{i}" for i in range(4)} - set(run.placed.values())).pop()))
    run.step(1.5)
    assert sorted(run.evicted) == ["a-0", "a-1", "b-0"]


def test_an_eviction_that_is_refused_is_asked_for_again():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.refuse = {"g-1": PERMANENT}
    run.step()
    run.see(pod("thief").cpu("1").node(({"n0", "n1", "n2"} - set(run.placed.values())).pop()))
    run.now += 1.5
    asked = []
    for _ in range(2):
        out = run.engine.step(run.now)
        for each in out:
            problem = TRANSIENT if isinstance(each, d.Evict) else ""
            run.engine.apply(Outcome(each.id, problem))
        asked.append(sorted(each.name for each in out if isinstance(each, d.Evict)))
        run.now += 5
    assert asked == [["g-0", "g-2"], ["g-0", "g-2"]]


# ---- crashes


@pytest.mark.parametrize("landed", range(4))
@pytest.mark.parametrize("room", [True, False])
def test_a_crash_between_the_first_and_the_last_bind_is_repaired_by_the_next_process(landed, room):
    """The old process decided three binds; `landed` of them reached the API server before it died."""
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.hold = {"g-0", "g-1", "g-2"}
    run.step()
    for bind in run.held[:landed]:
        run.bind(bind, answer=False, show=False)
    if not room and landed < 3:
        taken = set(run.placed.values())
        run.pods["thief"] = pod("thief").cpu("1").node(sorted({"n0", "n1", "n2"} - taken)[0]).build()
    run.hold, run.held = set(), []
    run.restart()
    run.step()
    ours = {name for name in run.placed if name.startswith("g")}
    if room or landed == 3:
        assert ours == {"g-0", "g-1", "g-2"} and run.evicted == []
        assert run.condition("g") == ("True", "Scheduled", "")
    else:
        assert ours == set() and len(run.evicted) == landed
        assert run.condition("g")[0] == "False"


@pytest.mark.parametrize("order", list(itertools.islice(itertools.permutations(range(7)), 0, 5040, 233)))
def test_what_a_new_process_sees_first_does_not_matter(order):
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.hold = {"g-0", "g-1", "g-2"}
    run.step()
    run.bind(run.held[0], answer=False, show=False)
    run.hold = set()
    run.restart(order=order).step()
    assert len(run.placed) == 3 and run.evicted == [] and run.condition("g")[0] == "True"


def test_pods_that_others_placed_are_left_alone_after_a_restart():
    run = Cluster().see(node("n0").cpu("1"), pod_group("g").gang(2), pod("by-hand").group("g").cpu("1").node("n0"))
    run.restart().step()
    run.see(pod("g-1").group("g").cpu("1")).step(60)
    assert run.evicted == [] and run.placed == {"by-hand": "n0"}


@pytest.mark.parametrize("scheduler, evicted", [("default-scheduler", ["g-0"]), ("another", [])])
def test_a_gang_that_another_scheduler_is_placing_is_left_to_it(scheduler, evicted):
    """Two of our schedulers under different names see each other's first bind before the last."""
    mine = pod("g-0").group("g").cpu("1").node("n0").annotate(BOUND_IN_GROUP, "g-uid").scheduler(scheduler)
    run = Cluster().see(node("n0").cpu("1"), pod_group("g").gang(2).uid("g-uid"), mine)
    run.see(pod("g-1").group("g").cpu("1").scheduler(scheduler)).step(60)
    assert run.evicted == evicted


def test_a_true_condition_survives_the_restart_and_is_not_written_again():
    run = Cluster().see(*three_nodes(), *gang("g", 3))
    run.step()
    run.restart()
    assert run.step() == []


# ---- Reserve and Permit


def engine_with(plugin) -> Engine:
    uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS), PluginUse("Mine"))
    return Engine(
        EngineSettings(profiles=(ProfileSettings(plugins=uses),)), plugins={"Mine": lambda args, handle: plugin}
    )


class Reserving:
    name = "Mine"

    def __init__(self) -> None:
        self.reserved: list[str] = []
        self.refused = {"g-2"}

    def reserve(self, record, row):
        if record.name in self.refused:
            return Status(Code.UNSCHEDULABLE, ("no licence left",))
        self.reserved.append(record.name)
        return None

    def unreserve(self, record, row):
        if record.name in self.reserved:
            self.reserved.remove(record.name)


def test_one_refused_reservation_takes_the_whole_gang_back():
    plugin = Reserving()
    run = Cluster(engine_with(plugin)).see(*three_nodes(), *gang("g", 3))
    run.step()
    assert run.placed == {} and plugin.reserved == []
    assert "pod default/g-2: no licence left" in run.condition("g")[2]
    assert sum(isinstance(each, d.Bind) for each in run.log) == 0
    plugin.refused = set()
    run.step()
    assert run.placed == {}, "it waits for its backoff"
    run.step(1.5)
    assert len(run.placed) == 3 and len(plugin.reserved) == 3


class Permitting:
    name = "Mine"

    def __init__(self) -> None:
        self.ready = False
        self.asked: list[str] = []

    def permit(self, record, row):
        self.asked.append(record.name)
        if not self.ready and record.name == "g-1":
            return Status(Code.WAIT, ("quota is being counted",), timeout=30)
        return None


def test_permit_is_for_the_group_as_a_whole():
    plugin = Permitting()
    run = Cluster(engine_with(plugin)).see(*three_nodes(), *gang("g", 3))
    run.step()
    assert run.placed == {}
    assert "is not ready: quota is being counted" in run.condition("g")[2]
    assert not run.engine.pod_lifecycle.holding, "no pod keeps room while others are not ready"
    plugin.ready = True
    run.step(1.5)
    assert len(run.placed) == 3


class PreBinding:
    name = "Mine"

    def __init__(self) -> None:
        self.broken = True

    def pre_bind(self, record, row, emit):
        if self.broken and record.name == "g-1":
            return Status(Code.ERROR, ("volume is stuck",))
        return None


def test_a_member_whose_prebind_fails_comes_back_and_the_gang_completes():
    plugin = PreBinding()
    run = Cluster(engine_with(plugin)).see(*three_nodes(), *gang("g", 3))
    run.step()
    assert len(run.placed) == 2 and run.condition("g")[0] != "True"
    plugin.broken = False
    run.step(1.5)
    assert len(run.placed) == 3 and run.condition("g")[0] == "True"


def test_a_gang_that_a_plugin_turns_down_was_never_on_a_node_and_keeps_its_promise() -> None:
    """Room was made for it; Permit says no once. No pod takes the nodes meanwhile, and none was assumed on them."""

    class Once:
        name = "Once"
        asked = 0

        def __init__(self, args: Any, handle: Any) -> None: ...

        def permit(self, record: Any, row: int) -> Status | None:
            Once.asked += 1
            assert record.row == row, "counted there while plugins are asked"
            return Status(Code.UNSCHEDULABLE, ("not yet",)) if Once.asked == 2 else None

    config = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins: {permit: {enabled: [{name: Once}]}}
"""
    run = Cluster(config=config, plugins={"Once": Once}).see(node("a").cpu("1"), node("b").cpu("1"))
    run.see(*(pod(f"low-{name}").cpu("1").node(name) for name in "ab"))
    run.see(pod_group("g").gang(2).priority(9), *(pod(f"g-{i}").cpu("1").group("g").priority(9) for i in range(2)))
    run.step()
    assert Once.asked == 2 and sorted(run.evicted) == ["low-a", "low-b"] and not run.bound
    records = [run.engine.pods.records[f"default/g-{i}"] for i in range(2)]
    assert all(record.row < 0 and record.state is PodState.PENDING for record in records)
    run.see(pod("late").cpu("1")).step()
    assert not run.bound, "the nodes are promised"
    run.step(20)
    assert sorted(run.bound) == ["g-0", "g-1"]
