"""Messages of the groups of a tree: what a group lacks itself, or what its siblings lack."""

from __future__ import annotations

from typing import Any

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.explain import why
from phalanx.model.gates import Gates
from phalanx.model.groups import COMPOSITE
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group

NAMES = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "CompositePodGroup")


def world(*objects):
    made = Cluster(Engine(gates=Gates(dict.fromkeys(NAMES, True))))
    return made.see(*(node(f"n{i}").cpu("4") for i in range(2)), *objects)


def members(group, *numbers, cpu="1"):
    return [pod(f"{group}-{i}").cpu(cpu).group(group) for i in numbers]


def test_a_complete_group_says_that_it_waits_for_its_siblings():
    cluster = world(
        composite("tree").gang(2), *(pod_group(name).gang(2).parent("tree") for name in "ab"), *members("a", 0)
    )
    cluster.step()
    assert "a has 1 of 2 pods, 1 missing" in cluster.condition("a")[2]
    cluster.see(*members("a", 1)).step()
    status, reason, message = cluster.condition("a")
    assert (status, reason) == ("False", "WaitingForMembers")
    assert "a has" not in message and "b has 0 of 2 pods, 2 missing" in message
    answer = why(cluster.engine, "PodGroup", "default", "a")
    assert "a has" not in str(answer) and "b has 0 of 2" in str(answer)
    cluster.see(*members("b", 0)).step()
    assert "b has 1 of 2 pods, 1 missing" in cluster.condition("b")[2]
    cluster.see(*members("b", 1)).step()
    assert len(cluster.placed) == 4 and cluster.condition("a")[0] == "True"


def test_an_optional_child_says_which_of_its_groups_is_missing():
    cluster = world(
        composite("tree").gang(1),
        composite("first").gang(1).parent("tree"),
        composite("second").gang(2).parent("tree"),
        pod_group("a").gang(1).parent("first"),
        pod_group("b").gang(1).parent("second"),
        *members("a", 0),
        *members("b", 0),
    )
    cluster.step()
    assert sorted(cluster.placed) == ["a-0"]
    for kind, name in (("CompositePodGroup", "second"), ("PodGroup", "b")):
        _, reason, message = cluster.condition(name, kind)
        assert reason == "WaitingForMembers", name
        assert "CompositePodGroup second has 1 of 2 child groups, 1 missing" in message
    assert "second has 1 of 2 child groups" in cluster.pod_condition("b-0")
    cluster.see(pod_group("c").gang(1).parent("second"), *members("c", 0)).step()
    assert sorted(cluster.placed) == ["a-0", "b-0", "c-0"]


def test_an_optional_child_says_how_many_of_its_pods_are_missing():
    cluster = world(
        composite("tree").gang(1),
        *(pod_group(name).gang(2).parent("tree") for name in "ab"),
        *members("a", 0, 1),
        *members("b", 0),
    )
    cluster.step()
    assert sorted(cluster.placed) == ["a-0", "a-1"]
    assert (
        cluster.condition("b")[1] == "WaitingForMembers" and "b has 1 of 2 pods, 1 missing" in cluster.condition("b")[2]
    )
    assert "no further member" not in cluster.pod_condition("b-0")
    cluster.see(*members("b", 1)).step()
    assert len(cluster.placed) == 4


def test_the_message_of_a_composite_names_its_min_group_count():
    cluster = world(
        composite("tree").gang(2),
        *(pod_group(name).gang(1).parent("tree") for name in "ab"),
        *members("a", 0),
        *members("b", 0, cpu="9"),
    )
    cluster.step()
    message = cluster.condition("tree", "CompositePodGroup")[2]
    assert "minGroupCount (2) cannot be satisfied" in message and "minCount (" not in message


def test_a_complete_group_does_not_go_on_telling_old_counts_of_its_siblings() -> None:
    run = Cluster().see(node("n").cpu("8"), composite("root").gang(2))
    run.see(pod_group("full").gang(3).parent("root"), pod_group("short").gang(3).parent("root"))
    for number in range(3):
        run.see(pod(f"full-{number}").group("full").cpu("1")).step()
    run.see(pod("short-0").group("short").cpu("1")).step(5)
    messages = {key.name: text for key, (_, _, text) in conditions_of(run).items()}
    assert all("1 of 3" in messages[name] for name in ("root", "short", "full")), messages


def test_a_deleted_node_is_not_counted_in_the_message_of_a_group() -> None:
    run = Cluster().see(*(node(f"n{i}").cpu("1") for i in range(6)))
    for number in range(5):
        run.gone("Node", f"n{number}")
    run.see(pod_group("g").gang(2), *(pod(f"g-{i}").group("g").cpu("1") for i in range(2))).step()
    assert "ruled out" not in run.message("g-0"), run.message("g-0")


def test_a_waiting_group_stops_counting_nodes_that_are_gone() -> None:
    run = Cluster().see(*(node(f"n{i}").cpu("1") for i in range(6)), pod_group("g").gang(2))
    run.see(*(pod(f"g-{i}").group("g").cpu("1").select("gpu", "yes") for i in range(2))).step()
    assert "6 nodes" in run.condition("g")[2]
    for number in range(2, 6):
        run.gone("Node", f"n{number}")
    run.step(10)
    assert "2 nodes" in run.condition("g")[2] and "0/2 nodes" in run.message("g-0")
    run.step(600)
    assert "2 nodes" in run.condition("g")[2] and run.attempts("podgroup/default/g") <= 4


def conditions_of(run: Cluster) -> dict[Any, tuple[str, str, str]]:
    conditions = run.engine.groups.conditions
    groups = [group.key for root in run.engine.cluster.forest.roots() for group in run.engine.cluster.forest.tree(root)]
    return {key: found for key in groups if (found := conditions.last_written(key)).status}


def test_the_message_of_a_tree_names_the_child_that_never_fits_rather_than_one_that_preemption_helps():
    cluster = Cluster().see(*(node(f"n{i}").gpu(2) for i in range(4)), *(pod(f"low-{i}").gpu(2) for i in range(4)))
    cluster.step()
    cluster.see(
        composite("tree").gang(2).priority(9),
        *(pod_group(name).gang(count).parent("tree").priority(9) for name, count in (("helped", 1), ("never", 3))),
        pod("helped-0").gpu(2).group("helped").priority(9),
        *(pod(f"never-{i}").gpu(8).group("never").priority(9) for i in range(3)),
    )
    cluster.step()
    message = cluster.condition("tree", "CompositePodGroup")[2]
    assert "PodGroup never needs 3 pods; room for 0" in message and "helped" not in message


def test_a_basic_tree_says_how_many_pods_are_needed_and_what_runs_out():
    cluster = Cluster().see(*(node(f"n{i}").gpu(2) for i in range(4)))
    cluster.see(composite("tree").basic(), *(pod_group(name).gang(3).parent("tree") for name in "ab"))
    cluster.see(*(pod(f"{name}-{i}").gpu(2).group(name) for name in "ab" for i in range(3)))
    cluster.step()
    for text in (cluster.condition("b")[2], cluster.pod_condition("b-0")):
        assert "PodGroup b needs 3 pods; room for 1 (limited by nvidia.com/gpu)" in text
    other = Cluster().see(node("n").gpu(2), composite("tree").basic(), pod_group("a").gang(3).parent("tree"))
    other.see(*(pod(f"a-{i}").gpu(2).group("a") for i in range(3))).step()
    text = other.condition("tree", "CompositePodGroup")[2]
    assert "minGroupCount" not in text  # it has none
    assert (
        "no child group of it fits" in text
        and "PodGroup a needs 3 pods; room for 1 (limited by nvidia.com/gpu)" in text
    )


def test_a_group_whose_pods_are_deleted_says_how_many_it_has_now() -> None:
    run = Cluster().see(node("n").cpu("8"), composite("root").gang(2))
    run.see(*(pod_group(name).gang(3).parent("root") for name in ("full", "short")))
    run.see(*members("full", 0), *members("short", 0, 1)).step()
    run.see(*members("full", 1, 2)).step()
    run.gone("Pod", "short-1").step()
    assert all("short has 1 of 3" in run.condition(name)[2] for name in ("full", "short")), run.condition("short")
    run.gone("Pod", "short-0").step()
    assert all("short has 0 of 3" in run.condition(name)[2] for name in ("full", "short")), run.condition("short")


def test_a_single_group_whose_pods_are_all_deleted_says_that_it_has_none() -> None:
    run = Cluster().see(node("n").cpu("8"), pod_group("g").gang(3), *members("g", 0, 1))
    run.step()
    assert "g has 2 of 3" in run.condition("g")[2]
    run.gone("Pod", "g-0").gone("Pod", "g-1").step()
    assert "g has 0 of 3" in run.condition("g")[2]


def test_a_group_of_a_large_tree_says_how_many_pods_it_has_now() -> None:
    names = [f"g{i:02}" for i in range(70)]
    run = Cluster().see(node("n").cpu("8"), composite("root").gang(70))
    run.see(*(pod_group(name).gang(3).parent("root") for name in names), *members("g05", 0, 1)).step()
    assert "g05 has 2 of 3" in run.condition("g05")[2]
    run.gone("Pod", "g05-1").step()
    assert "g05 has 1 of 3" in run.condition("g05")[2]


def test_an_inner_group_that_loses_a_child_says_what_it_lacks() -> None:
    run = world(composite("root").gang(1), composite("inner").gang(2).parent("root"))
    run.see(*(pod_group(name).gang(2).parent("inner") for name in "ab"), *members("a", 0)).step()
    run.see(*members("a", 1)).step()
    assert "b has 0 of 2 pods" in run.condition("root", "CompositePodGroup")[2]
    run.gone("PodGroup", "b").step()
    for kind, name in (("CompositePodGroup", "inner"), ("PodGroup", "a")):
        assert "inner has 1 of 2 child groups" in run.condition(name, kind)[2], name


def test_a_complete_group_names_the_gates_of_a_pod_of_its_sibling() -> None:
    run = world(composite("root").gang(2), *(pod_group(name).gang(2).parent("root") for name in ("full", "short")))
    run.see(*members("full", 0), *members("short", 0)).step()
    run.see(*members("full", 1)).step()
    run.see(pod("short-1").cpu("1").group("short").gate("example.com/later")).step()
    names = (("CompositePodGroup", "root"), ("PodGroup", "full"), ("PodGroup", "short"))
    assert [run.condition(name, kind)[2] for kind, name in names] == [
        "waiting for scheduling gates of default/short-1"
    ] * 3


def test_a_group_whose_sibling_loses_a_pod_after_an_attempt_says_what_is_missing_now() -> None:
    run = world(composite("root").gang(2), *(pod_group(name).gang(2).parent("root") for name in ("full", "short")))
    run.see(*members("full", 0, 1), *members("short", 0, 1, cpu="100")).step()
    assert all(run.condition(name)[1] == "Unschedulable" for name in ("full", "short"))
    run.gone("Pod", "short-0").step()
    assert all("short has 1 of 2 pods" in run.condition(name)[2] for name in ("full", "short")), run.condition("full")


def test_a_long_chain_of_parents_costs_few_writes_for_each_link() -> None:
    cluster = Cluster()
    for number in range(60):
        cluster.see(composite(f"c{number:02}").parent(f"c{number + 1:02}"))
        cluster.step()
    assert len(cluster.of(d.SetGroupCondition)) < 60 * 8
    assert cluster.condition("c00", COMPOSITE)[1:] == (
        "Invalid",
        "CompositePodGroup c00 is on level 6 or below, the hierarchy must not be deeper than 4 levels",
    )
    assert cluster.condition("c59", COMPOSITE)[1] == "WaitingForParent"
    cluster.see(composite("c60").parent("c00")).step()
    status, reason, message = cluster.condition("c30", COMPOSITE)
    assert (status, reason) == ("False", "Invalid")
    names = "c00 -> c01 -> c02 -> c03 -> c04 -> c05 -> c06 -> (54 more) -> c00"
    assert message == f"cyclic parents: {names} (CompositePodGroups)"
