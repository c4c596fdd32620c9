"""Composite groups and topology in the engine: conditions on every level, broken trees that heal, domains that hold."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings
from phalanx.model.gates import Gates
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group

CPG = "CompositePodGroup"


def members(group: str, count: int, cpu: str = "1", start: int = 0):
    return [pod(f"{group}-{i}").group(group).cpu(cpu) for i in range(start, start + count)]


def rack(name: str, count: int, cpu: str = "1", block: str = ""):
    built = [node(f"{name}-{i}").cpu(cpu).label("rack", name) for i in range(count)]
    return [each.label("block", block) for each in built] if block else built


def racks_of(run: Cluster, prefix: str) -> set[str]:
    return {run.nodes[at].metadata.labels["rack"] for name, at in run.placed.items() if name.startswith(prefix)}


# ---- conditions on every level


def test_every_group_of_a_tree_says_that_it_is_scheduled():
    run = Cluster().see(*rack("r", 4), composite("top").gang(1), composite("mid").gang(2).parent("top"))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(2).parent("mid"), *members(name, 2))
    run.step()
    assert (
        run.condition("top", CPG)
        == run.condition("mid", CPG)
        == run.condition("a")
        == run.condition("b")
        == ("True", "Scheduled", "")
    )


def test_a_tree_below_its_quorum_names_the_groups_that_lack_members():
    run = Cluster().see(*rack("r", 4), composite("job").gang(2), pod_group("a").gang(2).parent("job"), *members("a", 2))
    run.see(pod_group("b").gang(2).parent("job"), *members("b", 1))
    run.step()
    assert run.placed == {}
    assert run.condition("job", CPG)[:2] == ("False", "WaitingForMembers")
    assert 'waiting for composite pod group "job" tree to meet quorum' in run.condition("job", CPG)[2]
    assert "PodGroup b has 1 of 2 pods, 1 missing" in run.condition("b")[2]
    assert run.condition("a")[0] == "", "it has all it needs"


def test_a_child_that_finds_no_room_is_reported_and_the_others_run():
    run = Cluster().see(*rack("r", 2), composite("job").gang(1))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(2).parent("job"), *members(name, 2))
    run.step()
    assert len(run.placed) == 2
    placed = {name[0] for name in run.placed}.pop()
    other = "b" if placed == "a" else "a"
    assert run.condition("job", CPG)[0] == run.condition(placed)[0] == "True"
    assert run.condition(other)[:2] == ("False", "Unschedulable")
    sleeping = run.attempts("compositepodgroup/default/job")
    run.step(60)
    assert run.attempts("compositepodgroup/default/job") == sleeping
    run.see(*rack("s", 2)).step()
    assert len(run.placed) == 4 and run.condition(other)[0] == "True"


def test_nothing_of_a_tree_is_bound_when_its_root_cannot_be_met():
    run = Cluster().see(*rack("r", 3), composite("job").gang(2))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(2).parent("job"), *members(name, 2))
    run.step()
    assert run.placed == {}
    for kind, name in ((CPG, "job"), ("PodGroup", "a"), ("PodGroup", "b")):
        assert run.condition(name, kind)[:2] == ("False", "Unschedulable")
    run.see(*rack("s", 1)).step()
    assert len(run.placed) == 4


def test_extras_of_one_child_never_take_what_a_sibling_needs():
    run = Cluster().see(*rack("r", 4), composite("job").gang(2))
    run.see(pod_group("greedy").gang(1).parent("job"), *members("greedy", 4))
    run.see(pod_group("modest").gang(2).parent("job"), *members("modest", 2))
    run.step()
    assert sum(name.startswith("modest") for name in run.placed) == 2
    assert len(run.placed) == 4


# ---- broken trees


@pytest.mark.parametrize(
    ("parts", "words", "repair"),
    [
        ([composite("job").parent("job")], "names itself as its parent", [composite("job")]),
        ([composite("job").parent("up"), composite("up").parent("job")], "cyclic parents", [composite("up")]),
        ([composite("job").gang(1).priority(3)], "same priority", [composite("job").gang(1)]),
    ],
)
def test_a_broken_tree_is_invalid_on_every_group_and_heals_when_it_is_repaired(parts, words, repair):
    run = Cluster().see(*rack("r", 2), pod_group("g").gang(2).parent("job"), *members("g", 2), *parts)
    run.step()
    assert run.placed == {}
    assert run.condition("g")[:2] == ("False", "Invalid") and words in run.condition("g")[2]
    assert run.condition("job", CPG)[:2] == ("False", "Invalid")
    run.see(*repair).step()
    assert len(run.placed) == 2 and run.condition("g")[0] == "True"


def test_groups_below_a_basic_group_may_have_different_priorities():
    run = Cluster().see(*rack("r", 2), composite("job").priority(5))
    for name, priority in (("high", 9), ("low", 1)):
        group = pod_group(name).gang(1).priority(priority).parent("job")
        run.see(group, pod(f"{name}-0").group(name).cpu("1").priority(priority))
    run.step()
    assert run.placed.keys() == {"high-0", "low-0"}
    run.see(pod("odd").group("low").cpu("1").priority(3)).step()
    assert "same priority as the pod group's priority" in run.pod_condition("odd")


def two_priorities(root=5, high=9, low=1):
    """A Basic tree with a group of each priority, and the pods of both."""
    parts = [composite("job").priority(root)]
    for name, priority in (("low", low), ("high", high)):
        parts.append(pod_group(name).gang(2).priority(priority).parent("job"))
        parts += [pod(f"{name}-{n}").group(name).cpu("1").priority(priority) for n in range(2)]
    return parts


def runs(name, count, priority):
    return [pod(f"{name}-{n}").cpu("1").priority(priority).node(f"r-{n}") for n in range(count)]


def test_a_group_below_a_basic_group_preempts_with_its_own_priority():
    run = Cluster().see(*rack("r", 4), *runs("other", 4, 5), *two_priorities())
    run.step()
    run.step()
    assert run.placed.keys() - {f"other-{n}" for n in range(4)} == {"high-0", "high-1"}
    assert len(run.evicted) == 2, "nothing is evicted for the group whose priority is lower"
    said = [each.event_message for each in run.log if isinstance(each, d.Evict)]
    assert all("podgroup high (priority 9)" in text for text in said), said


def test_a_group_that_waits_below_a_basic_group_wakes_for_pods_of_a_lower_priority_than_its_own():
    run = Cluster().see(*rack("r", 2), *runs("other", 2, 9), *two_priorities())
    run.step()
    assert run.evicted == []
    run.gone("Pod", "other-0").gone("Pod", "other-1").see(*runs("later", 2, 6)).step()
    run.step()
    assert {"high-0", "high-1"} <= run.placed.keys() and len(run.evicted) == 2


@pytest.mark.parametrize(("priority", "evicted"), [(2, {"low"}), (5, {"low"}), (10, {"low", "high"})])
def test_a_group_below_a_basic_group_is_preempted_by_its_own_priority(priority, evicted):
    run = Cluster().see(*rack("r", 4), *two_priorities())
    run.step()
    assert len(run.placed) == 4
    size = 2 * len(evicted)
    urgent = pod_group("urgent").gang(size).priority(priority)
    run.see(urgent, *(pod(f"urgent-{n}").group("urgent").cpu("1").priority(priority) for n in range(size)))
    run.step()
    run.step()
    assert {name.partition("-")[0] for name in run.evicted} == evicted
    assert sum(name.startswith("urgent") for name in run.placed) == size


def test_a_tree_of_five_levels_is_invalid():
    run = Cluster().see(*rack("r", 1), composite("l1"))
    for level in (2, 3, 4):
        run.see(composite(f"l{level}").parent(f"l{level - 1}"))
    run.see(pod_group("leaf").parent("l4"), *members("leaf", 1)).step()
    assert run.placed == {} and "not be deeper than 4 levels" in run.condition("leaf")[2]
    run.see(composite("l4").parent("l2")).step()
    assert len(run.placed) == 1


def test_a_group_may_change_its_parent_while_its_pods_wait():
    run = Cluster().see(composite("x").gang(2), composite("y").gang(1))
    run.see(pod_group("a").gang(1).parent("x"), pod_group("b").gang(1).parent("x"), *members("a", 1), *members("b", 1))
    run.step()
    run.see(pod_group("a").gang(1).parent("y"))
    run.see(*rack("r", 2)).step()
    assert run.placed.keys() == {"a-0"}, "x lacks a child now, y has what it needs"
    run.see(pod_group("c").gang(1).parent("x"), *members("c", 1)).step()
    assert run.placed.keys() == {"a-0"}, "one node is left, x needs two"
    run.see(*rack("s", 2)).step()
    assert run.placed.keys() == {"a-0", "b-0", "c-0"}


def test_min_group_count_may_change():
    run = Cluster(Engine(gates=Gates({"MutableMinGroupCount": True}))).see(*rack("r", 2), composite("job").gang(2))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(2).parent("job"), *members(name, 2))
    run.step()
    assert run.placed == {}
    run.see(composite("job").gang(1).generation(2)).step()
    assert len(run.placed) == 2 and run.condition("job", CPG)[0] == "True"


# ---- topology


def test_a_gang_stays_in_one_rack_and_takes_the_smallest_that_is_enough():
    run = Cluster().see(*rack("big", 4), *rack("small", 2), *rack("tiny", 1), node("bare").cpu("9"))
    run.see(pod_group("g").gang(2).topology("rack"), *members("g", 2)).step()
    assert racks_of(run, "g") == {"small"}


def test_growth_and_replacements_stay_where_the_group_runs():
    run = Cluster().see(*rack("a", 3), *rack("b", 6), pod_group("g").gang(2).topology("rack"), *members("g", 2))
    run.step()
    assert racks_of(run, "g") == {"a"}
    run.see(*members("g", 2, start=2)).step()
    assert racks_of(run, "g") == {"a"} and len(run.placed) == 3, "rack b has room, but it is another rack"
    assert "no further member of PodGroup g fits in rack a, where its running members are" in run.pod_condition("g-3")
    run.gone("Pod", "g-0").step()
    assert racks_of(run, "g") == {"a"} and len(run.placed) == 3


def test_a_running_member_on_a_node_without_the_label_is_a_scheduler_error_until_the_label_is_back():
    run = Cluster().see(*rack("a", 2), pod_group("g").gang(1).topology("rack"), *members("g", 1))
    run.step()
    at = run.placed["g-0"]
    run.see(node(at).cpu("1"), *members("g", 1, start=1)).step()
    assert f"node {at} has no label rack" in run.pod_condition("g-1")
    run.see(node(at).cpu("1").label("rack", "a")).step(2)
    assert racks_of(run, "g") == {"a"} and len(run.placed) == 2


def test_racks_of_the_same_name_in_two_blocks_are_two_racks_below_a_block():
    west = [node(f"w{i}").cpu("1").label("rack", "r1").label("block", "west") for i in range(2)]
    east = [node(f"e{i}").cpu("1").label("rack", "r1").label("block", "east") for i in range(2)]
    run = Cluster().see(*west, *east, composite("job").gang(1).topology("block"))
    run.see(pod_group("g").gang(3).topology("rack").parent("job"), *members("g", 3)).step()
    assert run.placed == {}
    alone = Cluster().see(*west, *east, pod_group("g").gang(3).topology("rack"), *members("g", 3))
    alone.step()
    assert len(alone.placed) == 3, "without a block above, one name is one rack"


def test_the_example_of_kep_6012_needs_a_second_look_at_the_first_group():
    """Block A has racks of 2 and 4, block B one of 4: pg-1 (2 pods) must leave the large rack to pg-2 (4 pods)."""
    run = Cluster().see(*rack("a1", 4, block="A"), *rack("a2", 2, block="A"), *rack("b1", 4, block="B"))
    run.see(composite("job").gang(2).topology("block"))
    run.see(pod_group("pg-1").gang(2).topology("rack").parent("job"), *members("pg-1", 2))
    run.see(pod_group("pg-2").gang(4).topology("rack").parent("job"), *members("pg-2", 4))
    run.step()
    assert racks_of(run, "pg-1") == {"a2"} and racks_of(run, "pg-2") == {"a1"}


def test_the_diagnosis_names_level_domain_and_limit():
    run = Cluster().see(
        *rack("r7", 5, cpu="1"), *rack("r8", 3), pod_group("g").gang(8).topology("rack"), *members("g", 8)
    )
    run.step()
    assert "needs 8 pods in one rack; best rack r7 fits 5 (limited by cpu)" in run.condition("g")[2]
    events = [e for e in run.log if isinstance(e, d.RecordEvent) and e.kind == "PodGroup"]
    assert [e.reason for e in events] == ["FailedScheduling"] and events[0].message == (
        "Needs 8 pods at once in one rack; the best one, r7, has room for 5 (short of CPU)"
    )


def test_members_with_spreading_and_affinity_rules_still_make_a_gang_or_nothing():
    run = Cluster().see(*rack("a", 1, cpu="4"), *rack("b", 1, cpu="4"), pod_group("g").gang(3))
    run.see(
        *(pod(f"g-{i}").group("g").cpu("1").label("app", "x").anti_affinity("rack", {"app": "x"}) for i in range(3))
    )
    run.step()
    assert run.placed == {}
    assert "keeps the pods' affinity, spreading and volume rules" in run.condition("g")[2]
    run.see(*rack("c", 1, cpu="4")).step()
    assert racks_of(run, "g") == {"a", "b", "c"}


def test_single_below_all_is_invalid_until_it_is_mended():
    run = Cluster().see(*rack("r", 2), composite("root").gang(1).disrupt_all())
    run.see(pod_group("g").gang(1).parent("root"), *members("g", 1)).step()
    assert run.placed == {}
    for key in (("root", CPG), ("g",)):
        status, reason, message = run.condition(*key)
        assert (status, reason) == ("False", "Invalid")
        assert "PodGroup g has disruption mode Single below CompositePodGroup root with mode All" in message
    run.see(composite("root").gang(1).generation(2)).step()
    assert run.placed.keys() == {"g-0"}
    run = Cluster().see(*rack("r", 2), composite("root").gang(1))
    run.see(pod_group("g").gang(1).parent("root").disrupt_all(), *members("g", 1)).step()
    assert run.placed.keys() == {"g-0"}, "All below Single is what groups are for"


@pytest.mark.parametrize("pods", [0, 1])
def test_a_child_of_a_missing_parent_says_what_it_waits_for(pods):
    run = Cluster().see(*rack("r", 2), pod_group("g").gang(1).parent("mid"), composite("mid").gang(1).parent("root"))
    run.see(*members("g", pods)).step()
    for key in (("g",), ("mid", CPG)):
        status, reason, message = run.condition(*key)
        assert (status, reason) == ("False", "WaitingForParent")
        assert "waiting for CompositePodGroup root" in message
    run.see(composite("root").gang(1)).step()
    if pods:
        assert run.condition("g")[0] == run.condition("mid", CPG)[0] == run.condition("root", CPG)[0] == "True"
    else:
        assert run.condition("g")[1] == "WaitingForParent", "no group needs it: nothing new to say"


def test_a_parent_that_a_gate_ignores_is_reported():
    run = Cluster(Engine(gates=Gates({"CompositePodGroup": False})))
    run.see(*rack("r", 2), pod_group("g").gang(1).parent("root"), *members("g", 1)).step()
    assert run.bound.keys() == {"g-0"}
    announced = [e for e in run.log if isinstance(e, d.RecordEvent) and e.reason == "ParentIgnored"]
    assert len(announced) == 1
    assert "parentCompositePodGroupName root is ignored" in announced[0].message


def test_a_search_that_gives_up_says_so():
    run = Cluster(Engine(EngineSettings(search_budget=1)))
    run.see(*rack("a1", 3, block="A"), *rack("a2", 2, block="A"), *rack("b1", 3, block="B"), *rack("b2", 2, block="B"))
    run.see(composite("job").gang(3).topology("block"))
    for name, size in (("x", 2), ("y", 2), ("z", 1)):
        run.see(pod_group(name).gang(size).topology("rack").parent("job"), *members(name, size))
    run.step()
    assert run.placed == {}
    assert "(search budget of 2 expansions used up, not proved impossible)" in run.condition("job", CPG)[2]


def test_more_members_of_a_gang_whose_first_ones_have_finished_may_go_to_another_rack():
    run = Cluster().see(*rack("a", 2), *rack("b", 2), pod_group("g").gang(2).topology("rack"), *members("g", 2))
    run.step()
    first = racks_of(run, "g")
    for i in range(2):
        run.update(f"g-{i}", phase="Succeeded")
    (other,) = {"a", "b"} - first
    run.see(*(pod(f"full-{i}").cpu("1").node(f"{first.copy().pop()}-{i}") for i in range(2)))
    run.see(pod("g-8").group("g").cpu("1"), pod("g-9").group("g").cpu("500m")).step()
    assert {run.nodes[run.placed[name]].metadata.labels["rack"] for name in ("g-8", "g-9")} == {other}
