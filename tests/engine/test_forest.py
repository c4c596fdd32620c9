"""The group tree: what belongs to which group, what is missing, what is wrong, whatever the order of arrival."""

from __future__ import annotations

import pytest

from phalanx.model.groups import (
    COMPOSITE,
    GROUP_LABEL,
    POD_GROUP,
    PREFERRED_TOPOLOGY,
    GroupForest,
    GroupKey,
    MemberState,
    PodKey,
    Resolution,
    implicit_key,
)
from support.group_objects import composite, gang_template, pod, pod_group, workload


def pg(name: str) -> GroupKey:
    return GroupKey(POD_GROUP, "ns", name)


def cpg(name: str) -> GroupKey:
    return GroupKey(COMPOSITE, "ns", name)


def key(name: str) -> PodKey:
    return PodKey("ns", name)


def of_pod(forest: GroupForest, name: str) -> Resolution | None:
    leaf = forest.leaf_of(key(name))
    return forest.resolve(leaf) if leaf is not None else None


def test_a_pod_waits_for_its_group_and_then_for_its_ancestors_and_says_so() -> None:
    forest = GroupForest()
    forest.put_pod(pod("p", "workers"))
    waiting = of_pod(forest, "p")
    assert waiting is not None and waiting.root is None
    assert waiting.message == "waiting for PodGroup workers to appear"
    forest.put_pod_group(pod_group("workers", gang=1, parent="mid", workload="w"))
    waiting = of_pod(forest, "p")
    assert waiting is not None
    assert waiting.message == "waiting for CompositePodGroup mid, an ancestor of PodGroup workers, to appear"
    forest.put_composite(composite("mid", gang=1, parent="top", workload="w"))
    assert forest.put_composite(composite("top", gang=1, workload="w")) == (cpg("top"),)
    found = of_pod(forest, "p")
    assert found is not None and found.root == cpg("top")


def test_a_pod_without_any_link_is_no_member() -> None:
    forest = GroupForest()
    assert forest.put_pod(pod("alone")) == ()
    assert of_pod(forest, "alone") is None


def test_the_label_links_where_the_field_is_absent_and_the_field_wins() -> None:
    forest = GroupForest()
    forest.put_pod(pod("a", labels={GROUP_LABEL: "workers"}))
    forest.put_pod(pod("b", "other", labels={GROUP_LABEL: "workers"}))
    assert forest.leaf_of(key("a")) == pg("workers")
    assert forest.leaf_of(key("b")) == pg("other")


def test_equal_names_of_a_podgroup_and_a_composite_stay_apart() -> None:
    forest = GroupForest()
    forest.put_pod_group(pod_group("same", gang=1))
    forest.put_composite(composite("same", gang=1, workload="w"))
    forest.put_pod(pod("p", "same"))
    assert forest.roots() == [cpg("same"), pg("same")]
    assert forest.quorum(pg("same")).ready
    assert not forest.quorum(cpg("same")).ready


def test_children_stand_by_age_then_name() -> None:
    forest = GroupForest()
    forest.put_composite(composite("root", gang=3, workload="w"))
    forest.put_pod_group(pod_group("b", parent="root", workload="w"))
    forest.put_pod_group(pod_group("a", parent="root", workload="w"))
    forest.put_pod_group(pod_group("z", parent="root", workload="w", created="2025-01-01T00:00:00Z"))
    root = forest.group(cpg("root"))
    assert root is not None
    assert [c.key.name for c in root.sorted_children()] == ["z", "a", "b"]


def test_quorum_counts_known_members_and_names_what_is_missing() -> None:
    forest = GroupForest()
    forest.put_pod_group(pod_group("g", gang=3))
    for name in ("a", "b"):
        forest.put_pod(pod(name, "g"))
    quorum = forest.quorum(pg("g"))
    assert not quorum.ready
    assert quorum.message == (
        "waiting for minCount pods from a gang to appear in scheduling queue: PodGroup g has 2 of 3 pods, 1 missing"
    )
    assert not forest.ready(pg("g"))
    assert forest.put_pod(pod("c", "g")) == (pg("g"),)
    assert forest.quorum(pg("g")).ready and forest.ready(pg("g"))
    forest.put_pod_group(pod_group("g", gang=4))
    assert not forest.quorum(pg("g")).ready


def test_quorum_of_a_tree_is_recursive() -> None:
    forest = GroupForest()
    forest.put_composite(composite("root", gang=2, workload="w"))
    for child in ("one", "two", "three"):
        forest.put_pod_group(pod_group(child, gang=2, parent="root", workload="w"))
    forest.put_pod(pod("a1", "one"))
    forest.put_pod(pod("a2", "one"))
    forest.put_pod(pod("b1", "two"))
    assert "PodGroup two has 1 of 2 pods, 1 missing" in forest.quorum(cpg("root")).message
    forest.put_pod(pod("b2", "two"))
    assert forest.quorum(cpg("root")).ready
    forest.drop_pod("ns", "a1")
    assert not forest.quorum(cpg("root")).ready


def test_too_few_child_groups_are_reported_as_such() -> None:
    forest = GroupForest()
    forest.put_composite(composite("root", gang=2, workload="w"))
    forest.put_pod_group(pod_group("one", parent="root", workload="w"))
    forest.put_pod(pod("p", "one"))
    assert "CompositePodGroup root has 1 of 2 child groups, 1 missing" in forest.quorum(cpg("root")).message


@pytest.mark.parametrize(
    ("more", "state", "counts"),
    [
        ({"phase": "Succeeded", "node": "n"}, MemberState.SUCCEEDED, True),
        ({"phase": "Failed", "node": "n"}, MemberState.FAILED, False),
        ({"phase": "Running", "node": "n"}, MemberState.RUNNING, True),
        ({"phase": "Running", "node": "n", "deleting": True}, MemberState.ENDING, False),
        ({"deleting": True}, MemberState.LEAVING, False),
        ({"scheduler": "somebody-else"}, MemberState.FOREIGN, False),
    ],
)
def test_which_members_satisfy_their_gang(more: dict[str, object], state: MemberState, counts: bool) -> None:
    forest = GroupForest(lambda name: name == "phalanx")
    forest.put_pod_group(pod_group("g", gang=1))
    forest.put_pod(pod("p", "g", **more))
    group = forest.group(pg("g"))
    assert group is not None
    assert group.counts[state] == 1
    assert forest.quorum(pg("g")).ready is counts


def test_an_assumed_pod_is_placed_until_it_is_forgotten_or_bound() -> None:
    forest = GroupForest()
    forest.put_pod_group(pod_group("g", gang=1))
    forest.put_pod(pod("p", "g"))
    group = forest.group(pg("g"))
    assert group is not None
    assert forest.assume(key("p"), "n1") == (pg("g"),)
    assert group.placed == 1 and group.members[key("p")].node == "n1" and group.satisfied
    forest.forget(key("p"))
    assert group.placed == 0
    forest.assume(key("p"), "n1")
    forest.put_pod(pod("p", "g", node="n1"))
    assert group.counts[MemberState.RUNNING] == 1 and group.counts[MemberState.ASSUMED] == 0


def test_a_new_pod_of_the_same_name_is_not_assumed() -> None:
    forest = GroupForest()
    forest.put_pod_group(pod_group("g", gang=1))
    forest.put_pod(pod("p", "g"))
    forest.assume(key("p"), "n1")
    forest.put_pod(pod("p", "g", uid="another"))
    group = forest.group(pg("g"))
    assert group is not None and group.counts[MemberState.PENDING] == 1


def test_replica_keys_of_a_v1alpha1_workload_are_gangs_of_their_own() -> None:
    forest = GroupForest()
    for replica in ("r1", "r2"):
        forest.put_pod(pod(f"a-{replica}", ref=("job", "workers", replica)))
    first, second = (implicit_key("ns", "job", "workers", r) for r in ("r1", "r2"))
    assert forest.resolve(first).message == "waiting for Workload job with pod group workers to appear"
    assert set(forest.put_workload(workload("job", flat=[gang_template("workers", 2)]))) == {first, second}
    assert not forest.quorum(first).ready
    forest.put_pod(pod("b-r1", ref=("job", "workers", "r1")))
    assert forest.quorum(first).ready and not forest.quorum(second).ready
    forest.drop_workload("ns", "job")
    assert forest.resolve(first).root is None


def test_a_workload_without_that_pod_group_leaves_the_pod_waiting() -> None:
    forest = GroupForest()
    forest.put_workload(workload("job", flat=[gang_template("drivers", 1)]))
    forest.put_pod(pod("p", ref=("job", "workers", "")))
    waiting = of_pod(forest, "p")
    assert waiting is not None and "pod group workers" in waiting.message


def test_cycles_and_self_parents_are_invalid_and_heal() -> None:
    forest = GroupForest()
    forest.put_composite(composite("c1", gang=1, parent="c2", workload="w"))
    forest.put_composite(composite("c2", gang=1, parent="c1", workload="w"))
    forest.put_pod_group(pod_group("g", gang=1, parent="c1", workload="w"))
    forest.put_pod(pod("p", "g"))
    invalid = forest.invalid(pg("g"))
    assert invalid is not None
    assert invalid.groups == (cpg("c1"), cpg("c2"), pg("g"))
    assert "cyclic parents: c1 -> c2 -> c1" in invalid.message
    forest.drop(cpg("c2"))
    assert forest.invalid(pg("g")) is None
    forest.put_composite(composite("c2", gang=1, workload="w"))
    assert forest.invalid(pg("g")) is None
    assert forest.resolve(pg("g")).root == cpg("c2")
    assert forest.quorum(cpg("c2")).ready
    forest.put_composite(composite("me", gang=1, parent="me", workload="w"))
    alone = forest.invalid(cpg("me"))
    assert alone is not None and "names itself" in alone.message


def test_five_levels_are_too_deep() -> None:
    forest = GroupForest()
    forest.put_composite(composite("l1", gang=1, workload="w"))
    for level in (2, 3, 4):
        forest.put_composite(composite(f"l{level}", gang=1, parent=f"l{level - 1}", workload="w"))
    assert forest.invalid(cpg("l1")) is None
    forest.put_pod_group(pod_group("leaf", gang=1, parent="l4", workload="w"))
    invalid = forest.invalid(cpg("l1"))
    assert invalid is not None
    assert "PodGroup leaf is on level 5" in invalid.message
    assert len(invalid.groups) == 5
    forest.drop(pg("leaf"))
    assert forest.invalid(cpg("l1")) is None


def test_two_workloads_or_two_priorities_in_a_tree_are_invalid_and_heal() -> None:
    forest = GroupForest()
    forest.put_composite(composite("root", gang=1, workload="w", priority=100))
    forest.put_pod_group(pod_group("g", gang=1, parent="root", workload="other", priority=100))
    invalid = forest.invalid(cpg("root"))
    assert invalid is not None and "Workload other" in invalid.message and "PodGroup g" in invalid.message
    forest.put_pod_group(pod_group("g", gang=1, parent="root", workload="w", priority=50))
    invalid = forest.invalid(cpg("root"))
    assert invalid is not None and "priority 50" in invalid.message
    forest.put_pod_group(pod_group("g", gang=1, parent="root", workload="w", priority=100))
    assert forest.invalid(cpg("root")) is None


def test_groups_must_follow_the_templates_of_an_existing_workload() -> None:
    forest = GroupForest()
    forest.put_composite(composite("root", gang=1, workload="w", template="top"))
    forest.put_pod_group(pod_group("g", gang=1, parent="root", workload="w", template="leaf"))
    assert forest.invalid(pg("g")) is None, "a missing Workload is no error"
    top = {"name": "top", "podGroupTemplates": [gang_template("leaf", 1)]}
    forest.put_workload(workload("w", nested=[top]))
    assert forest.invalid(pg("g")) is None
    elsewhere = {"name": "other", "podGroupTemplates": [gang_template("leaf", 1)]}
    forest.put_workload(
        workload("w", nested=[{"name": "top", "podGroupTemplates": [gang_template("x", 1)]}, elsewhere])
    )
    invalid = forest.invalid(pg("g"))
    assert invalid is not None and "template leaf below other" in invalid.message
    forest.put_workload(workload("w", flat=[gang_template("leaf", 1)]))
    invalid = forest.invalid(pg("g"))
    assert invalid is not None and "template top" in invalid.message
    forest.drop_workload("ns", "w")
    assert forest.invalid(pg("g")) is None


def test_pods_that_differ_from_their_group_are_a_scheduler_error() -> None:
    forest = GroupForest()
    forest.put_pod_group(pod_group("g", gang=2, priority=10))
    forest.put_pod(pod("a", "g", priority=10, scheduler="sched1"))
    assert forest.mismatch(pg("g")) is None
    forest.put_pod(pod("b", "g", priority=10, scheduler="sched2"))
    assert forest.mismatch(pg("g")) == (
        'all pods in a single pod group should have the same .spec.schedulerName set, got: "sched2" and "sched1"'
    )
    forest.put_pod(pod("b", "g", priority=7, scheduler="sched1"))
    assert forest.mismatch(pg("g")) == (
        "all pods in a single pod group should have the same priority as the pod group's priority, got 7 and 10"
    )
    forest.put_pod(pod("b", "g", priority=10, scheduler="sched1", policy="Never"))
    assert forest.mismatch(pg("g")) == (
        "all pods in a single pod group should have the same preemption policy, got PreemptLowerPriority and Never"
    )


def test_with_its_gate_the_preemption_policy_of_the_root_decides() -> None:
    forest = GroupForest(group_preemption_policy=True)
    forest.put_pod_group(pod_group("g", gang=1, policy="Never"))
    forest.put_pod(pod("a", "g"))
    assert forest.mismatch(pg("g")) == (
        "all pods in a single pod group should have the same preemption policy as the pod group's preemption policy,"
        " got PreemptLowerPriority and Never"
    )
    assert forest.preemption_policy(pg("g")) == "Never"


def test_the_pods_decide_the_priority_of_an_implicit_group() -> None:
    forest = GroupForest()
    forest.put_workload(workload("job", flat=[gang_template("workers", 2)]))
    root = implicit_key("ns", "job", "workers", "")
    forest.put_pod(pod("a", ref=("job", "workers", ""), priority=5))
    assert forest.priority(root) == 5 and forest.mismatch(root) is None
    forest.put_pod(pod("b", ref=("job", "workers", ""), priority=6))
    assert forest.priority(root) == 5 and forest.mismatch(root) is None, "KEP-4671: the lowest of its pods'"


def test_the_highest_all_ancestor_is_disrupted_as_a_whole() -> None:
    forest = GroupForest()
    forest.put_composite(composite("top", gang=1, workload="w"))
    forest.put_composite(composite("mid", gang=1, parent="top", workload="w", all=True))
    forest.put_pod_group(pod_group("leaf", gang=1, parent="mid", workload="w"))
    forest.put_pod_group(pod_group("other", gang=1, parent="top", workload="w"))
    assert forest.disruption_unit(pg("leaf")) == cpg("mid")
    assert forest.disruption_unit(pg("other")) is None


def test_gated_members_and_topology_requests_are_known() -> None:
    forest = GroupForest()
    forest.put_pod_group(pod_group("g", gang=1, key="rack", annotations={PREFERRED_TOPOLOGY: "host"}))
    forest.put_pod(pod("b", "g", gated=True))
    forest.put_pod(pod("a", "g", gated=True))
    assert forest.gated(pg("g")) == [key("a"), key("b")]
    forest.put_pod(pod("a", "g"))
    assert forest.gated(pg("g")) == [key("b")]
    group = forest.group(pg("g"))
    assert group is not None and group.spec is not None
    assert (group.spec.topology_key, group.spec.preferred_key) == ("rack", "host")


def test_deleting_a_group_sends_its_pods_back_to_waiting() -> None:
    forest = GroupForest()
    forest.put_composite(composite("root", gang=1, workload="w"))
    forest.put_pod_group(pod_group("g", gang=1, parent="root", workload="w"))
    forest.put_pod(pod("p", "g"))
    assert forest.quorum(cpg("root")).ready
    assert forest.drop(pg("g")) == (cpg("root"),)
    assert not forest.quorum(cpg("root")).ready
    waiting = of_pod(forest, "p")
    assert waiting is not None and waiting.missing == pg("g")
    forest.put_pod_group(pod_group("g", gang=1, parent="root", workload="w"))
    assert forest.quorum(cpg("root")).ready
