"""Gangs as their users notice them: all or nothing, replacements, scale-up, leftovers, minimums that change."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import TRANSIENT, NodeChanged, Outcome, PodChanged, PodGroupChanged
from phalanx.engine.framework.settings import EngineSettings, ProfileSettings
from phalanx.model.gates import Gates
from phalanx.model.groups import COMPLETED_IN, GROUP_LABEL, RUN, implicit_key
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group, workload


def members(group: str, count: int, cpu: str = "1", start: int = 0):
    return [pod(f"{group}-{i}").group(group).cpu(cpu) for i in range(start, start + count)]


def nodes(count: int, cpu: str = "1", **labels: str):
    built = [node(f"n{i}").cpu(cpu) for i in range(count)]
    for each in built:
        for key, value in labels.items():
            each.label(key, value)
    return built


def test_nothing_is_bound_until_the_minimum_exists_and_the_group_says_how_many_are_missing():
    run = Cluster().see(*nodes(5), pod_group("g").gang(3), *members("g", 2))
    run.step()
    assert run.placed == {}
    assert run.condition("g")[:2] == ("False", "WaitingForMembers")
    assert "PodGroup g has 2 of 3 pods, 1 missing" in run.condition("g")[2]
    assert (
        run.pod_condition("g-0")
        == "WaitingForMembers: waiting for minCount pods from a gang to appear in scheduling queue"
    )
    run.see(*members("g", 1, start=2)).step()
    assert len(run.placed) == 3
    assert run.condition("g") == ("True", "Scheduled", "")


def test_a_gang_that_does_not_fit_binds_no_pod_and_wakes_when_room_appears():
    run = Cluster().see(*nodes(2), pod_group("g").gang(3), *members("g", 3))
    run.step()
    assert run.placed == {}
    status, reason, message = run.condition("g")
    assert (status, reason) == ("False", "Unschedulable")
    assert message.startswith("pod group is unschedulable, minCount (3) cannot be satisfied: 2 scheduled, 0 remaining")
    assert "needs 3 pods; room for 2 (limited by cpu)" in message
    attempts = run.attempts("podgroup/default/g")
    run.step(60)
    assert run.attempts("podgroup/default/g") == attempts, "nothing happened: no reason to try again"
    run.see(node("n9").cpu("1")).step()
    assert len(run.placed) == 3


def test_objects_may_come_in_any_order():
    parts = [
        composite("job").gang(2),
        pod_group("a").gang(2).parent("job"),
        pod_group("b").gang(1).parent("job"),
        *members("a", 2),
        *members("b", 1),
        *nodes(3),
    ]
    results = set()
    for shift in range(len(parts)):
        run = Cluster()
        for part in parts[shift:] + parts[:shift]:
            run.see(part.copy())
            run.step()
        assert run.condition("job", "CompositePodGroup")[:2] == ("True", "Scheduled")
        results.add(len(run.placed))
    assert results == {3}


def test_a_pod_whose_group_or_ancestor_is_missing_says_which():
    run = Cluster().see(*nodes(3), pod("p").group("g"))
    run.step()
    assert run.pod_condition("p") == "WaitingForMembers: waiting for PodGroup g to appear"
    run.see(pod_group("g").parent("job")).step()
    assert "waiting for CompositePodGroup job, an ancestor of PodGroup g, to appear" in run.pod_condition("p")
    run.see(composite("job")).step()
    assert run.placed == {"p": "n0"}


def test_deleting_the_group_sends_pending_pods_back_to_waiting():
    run = Cluster().see(*nodes(1), pod_group("g").gang(2), *members("g", 2))
    run.step()
    run.gone("PodGroup", "g").step()
    assert run.pod_condition("g-0") == "WaitingForMembers: waiting for PodGroup g to appear"
    run.see(node("n1").cpu("1"))
    run.step()
    assert run.placed == {}
    run.see(pod_group("g").gang(2).uid("again")).step()
    assert len(run.placed) == 2


def test_deleting_the_group_while_binds_are_under_way_does_no_harm():
    run = Cluster().see(*nodes(2), pod_group("g").gang(2), *members("g", 2))
    run.hold = {"g-0", "g-1"}
    run.step()
    run.gone("PodGroup", "g")
    run.step()
    run.answer_held().step()
    assert len(run.placed) == 2 and run.evicted == []
    run.see(pod_group("g").gang(2).uid("again")).step()
    assert run.condition("g")[:2] == ("True", "Scheduled"), "its members carry the mark of their binds"


def test_members_beyond_the_minimum_go_to_sleep_and_wake_when_one_fits():
    run = Cluster().see(*nodes(2), pod_group("g").gang(2), *members("g", 4))
    run.step()
    assert len(run.placed) == 2 and run.condition("g") == ("True", "Scheduled", "")
    assert all(c.status == "True" for c in run.log if isinstance(c, d.SetGroupCondition)), "never False in between"
    left = run.attempts("podgroup/default/g")
    run.step(30)
    assert run.attempts("podgroup/default/g") == left
    assert run.engine.next_wake() is None or run.engine.next_wake() > run.now
    run.see(node("n2").cpu("1")).step()
    assert len(run.placed) == 3


def test_arrivals_of_the_shape_that_failed_do_not_cause_attempts():
    run = Cluster().see(*nodes(2), pod_group("g").gang(3), *members("g", 3))
    run.step()
    before = run.attempts("podgroup/default/g")
    for i in range(5):
        run.see(*members("g", 1, start=10 + i)).step()
    assert run.attempts("podgroup/default/g") == before
    assert run.pod_condition("g-14") == run.pod_condition("g-0")
    run.see(*members("g", 3, cpu="100m", start=20)).step()
    assert len(run.placed) >= 3, "small ones make the minimum"


def test_equal_gangs_share_one_failure_and_are_woken_one_after_the_other():
    run = Cluster().see(node("n0").cpu("1"))
    for g in range(5):
        run.see(pod_group(f"g{g}").gang(2), *members(f"g{g}", 2))
    run.step()
    assert run.placed == {}
    assert all("needs 2 pods; room for 1" in run.condition(f"g{g}")[2] for g in range(5))
    run.see(node("n1").cpu("1"), node("n2").cpu("2")).step()
    assert sorted({name[:2] for name in run.placed}) == ["g0", "g1"]


def test_a_smaller_minimum_wakes_the_group_and_a_larger_one_makes_it_wait():
    run = Cluster().see(*nodes(2), pod_group("g").gang(3), *members("g", 3))
    run.step()
    run.see(pod_group("g").gang(2).generation(2)).step()
    assert len(run.placed) == 2
    run = Cluster().see(pod_group("g").gang(2), *members("g", 2))
    run.step()
    run.see(pod_group("g").gang(4).generation(2)).step()
    assert run.condition("g")[1] == "WaitingForMembers"
    run.see(*nodes(4)).step()
    assert run.placed == {}


def of_run(name, pods):
    return [each.annotate(RUN, name) for each in pods]


def test_members_completed_for_good_count_within_their_run_and_failed_ones_do_not():
    run = Cluster().see(*nodes(3), pod_group("g").gang(3), *of_run("one", members("g", 3)))
    run.step()
    run.update("g-0", phase="Succeeded").update("g-1", phase="Failed")
    run.see(*of_run("one", members("g", 1, start=3))).step()
    assert "g-3" not in run.placed, "it is not known that nothing follows the one that succeeded"
    run.annotate("g-0", COMPLETED_IN, "one").step()
    assert "g-3" in run.placed, "one completed, one runs, one replaces the failed one"


@pytest.mark.parametrize("marked", [True, False])
def test_what_an_earlier_run_completed_does_not_stand_for_the_next(marked):
    run = Cluster().see(*nodes(3), pod_group("g").gang(3), *of_run("one", members("g", 3)))
    run.step()
    for i in range(3):
        run.update(f"g-{i}", phase="Succeeded")
        if marked:
            run.annotate(f"g-{i}", COMPLETED_IN, "one")
    run.see(pod("in-the-way").cpu("1").node("n0"), *of_run("two", members("g", 3, start=3))).step()
    assert not {"g-3", "g-4", "g-5"} & run.placed.keys()
    run.gone("Pod", "in-the-way").step()
    assert {"g-3", "g-4", "g-5"} <= run.placed.keys()


def test_a_workload_made_again_does_not_count_what_ran_under_its_predecessor():
    run = Cluster().see(*nodes(2), workload("w").template("g", {"gang": {"minCount": 2}}).uid("first"))
    run.see(*(pod(f"old-{i}").workload("w", "g").cpu("1") for i in range(2))).step()
    assert len(run.placed) == 2
    key = implicit_key("default", "w", "g", "")
    assert run.engine.groups.conditions.is_true(key)
    run.gone("Workload", "w").see(
        workload("w").template("g", {"gang": {"minCount": 2}}).uid("second"), node("n9").cpu("1")
    ).step()
    assert not run.engine.groups.conditions.is_true(key)
    run.see(*(pod(f"new-{i}").workload("w", "g").cpu("1") for i in range(2))).step()
    assert not {"new-0", "new-1"} & run.placed.keys(), "one would fit beside the two that ran before"
    run.see(node("n10").cpu("1")).step()
    assert {"new-0", "new-1"} <= run.placed.keys()


def test_pods_of_different_priorities_make_a_gang_of_the_lowest_where_the_group_has_none():
    run = Cluster().see(*nodes(3), workload("w").template("g", {"gang": {"minCount": 3}}))
    run.see(*(pod(f"p-{value}").workload("w", "g").cpu("1").priority(value) for value in (1000, 10, 0))).step()
    assert len(run.placed) == 3
    run = Cluster().see(*nodes(3), *(pod(f"low-{i}").cpu("1").node(f"n{i}").priority(5) for i in range(3)))
    run.see(workload("w").template("g", {"gang": {"minCount": 2}}))
    run.see(*(pod(f"p-{value}").workload("w", "g").cpu("1").priority(value) for value in (1000, 0))).step()
    assert not any(isinstance(made, d.Evict) for made in run.log), "its lowest priority is below theirs"


def test_members_that_are_terminating_are_no_excuse_for_a_partial_gang():
    run = Cluster().see(*nodes(3), pod_group("g").gang(3), *members("g", 3))
    run.step()
    for i in range(3):
        run.update(f"g-{i}", phase="Running", started=True, ending=True)
    run.see(node("n8").cpu("2"), *members("g", 3, start=3)).step()
    assert not {"g-3", "g-4", "g-5"} & run.placed.keys(), "two of three would fit beside those that leave"
    run.finish().step()
    assert {"g-3", "g-4", "g-5"} <= run.placed.keys()


@pytest.mark.parametrize("second", [200, 100])
def test_a_replacement_goes_before_work_that_asked_earlier(second):
    run = Cluster().see(
        *nodes(2), pod_group("g").gang(2).created(100), *(each.created(110) for each in members("g", 2))
    )
    run.step()
    run.update("g-0", phase="Running", started=True).update("g-1", phase="Running", started=True)
    run.see(pod("new").cpu("1").created(second))
    run.step()
    run.gone("Pod", "g-1")
    run.see(*(each.created(300) for each in members("g", 1, start=2))).step()
    assert run.placed.keys() == {"g-0", "g-2"}


def test_a_scheduled_group_grows():
    run = Cluster().see(*nodes(5), pod_group("g").gang(2), *members("g", 2))
    run.step()
    run.see(*members("g", 2, start=2)).step()
    assert len(run.placed) == 4


def test_a_basic_group_takes_what_fits():
    run = Cluster().see(*nodes(2), pod_group("g"), *members("g", 4))
    run.step()
    assert len(run.placed) == 2 and run.condition("g")[:2] == ("True", "Scheduled")
    run = Cluster().see(pod_group("g"), *members("g", 4))
    run.step()
    assert run.condition("g")[:2] == ("False", "Unschedulable")


def test_one_gated_member_holds_the_group_and_is_named():
    run = Cluster().see(*nodes(3), pod_group("g").gang(2), *members("g", 2), pod("slow").group("g").cpu("1").gate("x"))
    run.step()
    assert run.placed == {}
    assert run.pod_condition("g-0") == "SchedulingGated: waiting for scheduling gates of default/slow"
    assert run.pod_condition("slow") == "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates"
    run.see(pod("slow").group("g").cpu("1")).step()
    assert len(run.placed) == 3


def test_the_condition_names_a_gated_member_once_no_member_is_missing():
    run = Cluster().see(*nodes(3), pod_group("g").gang(2), pod("slow").group("g").cpu("1").gate("x"))
    run.step()
    assert (
        run.condition("g") == ("False", "WaitingForMembers", run.condition("g")[2])
        and "1 missing" in run.condition("g")[2]
    )
    run.see(*members("g", 1)).step()
    assert run.condition("g") == ("False", "WaitingForMembers", "waiting for scheduling gates of default/slow")


def test_a_gated_latecomer_leaves_a_scheduled_group_scheduled():
    run = Cluster().see(*nodes(3), pod_group("g").gang(2), *members("g", 2))
    run.step()
    run.see(pod("slow").group("g").cpu("1").gate("x")).step()
    assert run.condition("g")[:2] == ("True", "Scheduled")


def test_a_pod_moves_between_groups_with_its_label():
    run = Cluster().see(pod_group("a").gang(2), pod_group("b").gang(2))
    for i in range(3):
        run.see(pod(f"p{i}").label(GROUP_LABEL, "a").cpu("1"))
    run.see(pod("q").label(GROUP_LABEL, "b").cpu("1"))
    run.step()
    run.see(pod("p2").label(GROUP_LABEL, "b").cpu("1")).step()
    run.see(*nodes(4)).step()
    assert len(run.placed) == 4
    assert run.condition("a")[0] == run.condition("b")[0] == "True"
    run.see(pod("alone").label(GROUP_LABEL, "c").cpu("1")).step()
    run.see(node("n9").cpu("1"), pod("alone").cpu("1")).step()
    assert "alone" in run.placed, "without the label it is a pod like any other"


def test_pods_that_disagree_are_a_scheduler_error_that_heals():
    run = Cluster().see(*nodes(3), pod_group("g").gang(2), *members("g", 1), pod("odd").group("g").cpu("1").priority(7))
    run.step()
    assert run.condition("g")[1] == "SchedulerError"
    assert "same priority as the pod group's priority" in run.pod_condition("odd")
    run.gone("Pod", "odd").see(*members("g", 1, start=1)).step()
    assert len(run.placed) == 2


def test_several_profiles_each_schedule_their_groups_and_do_not_share_one():
    settings = EngineSettings(profiles=(ProfileSettings("one"), ProfileSettings("two")))
    run = Cluster(Engine(settings)).see(
        *nodes(6), pod_group("g").gang(2), pod_group("h").gang(2), pod_group("m").gang(2)
    )
    for name in ("one", "two"):
        group = {"one": "g", "two": "h"}[name]
        run.see(*(each.scheduler(name) for each in members(group, 2)))
        run.see(pod(f"m-{name}").group("m").scheduler(name).cpu("1"))
    run.step()
    assert run.placed.keys() == {"g-0", "g-1", "h-0", "h-1"}
    assert "should have the same .spec.schedulerName" in run.condition("m")[2]


def test_members_of_another_scheduler_do_not_count():
    run = Cluster().see(*nodes(3), pod_group("g").gang(2), *members("g", 1), pod("f").group("g").scheduler("other"))
    run.step()
    assert run.placed == {} and run.condition("g")[1] == "WaitingForMembers"


def test_each_replica_of_a_workload_of_kep_4671_is_a_gang_with_the_priority_of_its_pods():
    run = Cluster().see(*nodes(2, cpu="2"), workload("w").template("t", {"gang": {"minCount": 2}}))
    for replica in ("0", "1"):
        for i in range(2):
            run.see(pod(f"w-{replica}-{i}").workload("w", "t", replica).cpu("1").priority(5 if replica == "1" else 1))
    run.see(pod("filler").cpu("2").priority(3))
    run.step()
    assert run.placed.keys() == {"w-1-0", "w-1-1", "filler"}
    run.see(*[node("n7").cpu("2")]).step()
    assert len(run.placed) == 5


@pytest.mark.parametrize("gate", ["GangScheduling", "TopologyAwareWorkloadScheduling", "CompositePodGroup"])
def test_features_that_are_switched_off_are_as_if_not_asked_for(gate):
    off = [gate] if gate != "TopologyAwareWorkloadScheduling" else [gate, "CompositePodGroup"]
    run = Cluster(Engine(gates=Gates.parse(",".join(f"{name}=false" for name in off))))
    run.see(node("n0").cpu("1").label("rack", "a"), node("n1").cpu("1").label("rack", "b"))
    if gate == "GangScheduling":
        run.see(pod_group("g").gang(3), *members("g", 2)).step()
        assert len(run.placed) == 2
    elif gate == "CompositePodGroup":
        run.see(pod_group("g").gang(2).parent("nowhere"), *members("g", 2)).step()
        assert len(run.placed) == 2
    else:
        run.see(pod_group("g").gang(2).topology("rack"), *members("g", 2)).step()
        assert len(run.placed) == 2


def test_status_updates_of_running_members_cost_nothing():
    run = Cluster().see(*nodes(3), pod_group("g").gang(3), *members("g", 3))
    run.step()
    run.update("g-0", phase="Running", started=True)
    assert not run.engine.groups.busy
    seen = run.pods["g-0"]
    run.see(msgspec.structs.replace(seen, status=msgspec.structs.replace(seen.status, phase="Running")))
    assert not run.engine.groups.busy


def test_a_gang_that_arrives_pod_by_pod_tells_each_pod_once():
    run = Cluster().see(pod_group("g").gang(200))
    announced: list[str] = []
    for each in members("g", 199):
        run.engine.apply(PodChanged(each.build()))
        announced += [c.name for c in run.engine.step(run.now) if isinstance(c, d.SetPodCondition)]
    assert sorted(announced) == sorted(f"g-{i}" for i in range(199))


def test_a_group_made_again_under_the_same_name_gets_its_own_condition():
    run = Cluster().see(*nodes(2), pod_group("g").gang(2).uid("first"), *members("g", 2))
    run.step()
    run.gone("Pod", "g-0").gone("Pod", "g-1")
    run.see(pod_group("g").gang(3).uid("second"), *members("g", 2, start=5)).step()
    assert run.condition("g")[1] == "WaitingForMembers"


def test_what_is_kept_of_a_failure_does_not_grow_with_the_cluster():
    """Thousands of gangs may wait; none of them may hold on to arrays over all nodes."""
    run = Cluster().see(*nodes(64), pod_group("g").gang(2), *members("g", 2, cpu="7"))
    run.step()
    refusal = run.engine.groups.failure("podgroup/default/g")
    assert refusal.outcome.shares == [] and not hasattr(refusal, "built")
    assert refusal.message.startswith("pod group is unschedulable")


def test_a_written_condition_that_was_refused_is_said_again():
    run = Cluster().see(pod_group("g").gang(2), *members("g", 1))
    first = [c for c in run.engine.step(run.now) if isinstance(c, d.SetGroupCondition)]
    run.engine.apply(Outcome(first[0].id, TRANSIENT))
    run.see(*members("g", 1, start=5), *members("g", 1, start=6)).step()
    run.gone("Pod", "g-5").gone("Pod", "g-6").step()
    assert run.condition("g")[1] == "WaitingForMembers"


def test_members_that_want_company_go_where_all_of_them_fit() -> None:
    """The first member decides the zone for all; the smaller zone comes first and must not be the end of it."""
    engine = Engine()
    for name, zone in (("a1", "small"), ("a2", "small"), ("b1", "large"), ("b2", "large"), ("b3", "large")):
        engine.apply(NodeChanged(node(name).cpu("1").label("zone", zone).build()))
    engine.apply(PodGroupChanged(pod_group("pg").gang(3).build()))
    for number in range(3):
        member = pod(f"p{number}").cpu("1").label("app", "s").group("pg").affinity("zone", {"app": "s"})
        engine.apply(PodChanged(member.build()))
    binds = [x.node for x in engine.step(1.0) if isinstance(x, d.Bind)]
    assert sorted(binds) == ["b1", "b2", "b3"]


def test_members_on_vanished_nodes_keep_the_gang_out_of_other_racks_until_they_are_gone():
    run = Cluster().see(*(node(f"n{i}").cpu("2").label("rack", f"r{i}") for i in range(2)))
    run.see(
        pod_group("g").gang(2).topology("rack"), *(pod(f"old-{i}").group("g").cpu("1").node("n0") for i in range(2))
    )
    run.gone("Node", "n0").see(*members("g", 2)).step()
    assert run.placed.keys() == {"old-0", "old-1"}
    assert run.pod_condition("g-0") == "SchedulerError: no topology domain found for pod default/old-0: node n0 is gone"
    run.gone("Pod", "old-0").gone("Pod", "old-1").step(60)
    assert run.placed == {"g-0": "n1", "g-1": "n1"}


def test_a_member_on_a_vanished_node_does_not_matter_while_others_show_its_rack():
    run = Cluster().see(*(node(f"n{i}").cpu("2").label("rack", f"r{i // 2}") for i in range(3)))
    run.see(
        pod_group("g").gang(2).topology("rack"), *(pod(f"old-{i}").group("g").cpu("1").node(f"n{i}") for i in (0, 1))
    )
    run.gone("Node", "n0").see(*members("g", 1)).step()
    assert run.placed["g-0"] == "n1"
