"""Ranks: Pack against every permutation on small cases, and what the other placements promise."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.cli.scheduler_client import Colours
from phalanx.cli.whatif import render as render_whatif
from phalanx.engine import decisions as d
from phalanx.engine.explain import Question, plan, whatif, why
from phalanx.engine.placement.ranks import RankedMembers, balance, hops, pack, ring_cost, stripe
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group, workload_policy


@st.composite
def small_groups(draw):
    """Up to six members of up to two shapes on up to five nodes in racks and blocks; some sit already."""
    nodes = draw(st.integers(1, 5))
    racks = [draw(st.integers(0, 3)) for _ in range(nodes)]
    blocks = [draw(st.integers(0, 1)) for _ in range(4)]
    paths = {node: (blocks[racks[node]], racks[node], node) for node in range(nodes)}
    count = draw(st.integers(1, 6))
    shapes = [draw(st.integers(0, 1)) for _ in range(count)]
    fixed, slots = {}, {0: {}, 1: {}}
    for m in range(count):
        node = draw(st.integers(0, nodes - 1))
        if draw(st.integers(0, 3)) == 0:
            fixed[m] = node
        else:
            slots[shapes[m]][node] = slots[shapes[m]].get(node, 0) + 1
    return RankedMembers(shapes, fixed, slots), paths


def every_assignment(members):
    free = {s: [m for m, shape in enumerate(members.shapes) if shape == s and m not in members.fixed] for s in (0, 1)}
    places = {s: [n for n, c in members.slots[s].items() for _ in range(c)] for s in (0, 1)}
    for first in set(permutations(places[0])):
        for second in set(permutations(places[1])):
            found = [members.fixed.get(m, -1) for m in range(len(members.shapes))]
            for shape, nodes in ((0, first), (1, second)):
                for m, place in zip(free[shape], nodes, strict=True):
                    found[m] = place
            yield found


@settings(max_examples=300, deadline=None)
@given(small_groups())
def test_no_assignment_of_ranks_to_the_chosen_nodes_has_a_lower_ring_cost(made):
    members, paths = made
    found = pack(members, paths)
    assert ring_cost(found, paths) == min(ring_cost(each, paths) for each in every_assignment(members))


@settings(max_examples=100, deadline=None)
@given(small_groups())
def test_every_member_gets_a_place_of_its_shape_and_those_that_sit_stay(made):
    members, paths = made
    found = pack(members, paths)
    assert all(found[m] == node for m, node in members.fixed.items())
    for shape, counts in members.slots.items():
        got = Counter(found[m] for m, s in enumerate(members.shapes) if s == shape and m not in members.fixed)
        assert got == Counter({node: count for node, count in counts.items() if count})


def test_a_thousand_equal_members_are_packed_domain_by_domain():
    paths = {node: (node // 64, node // 8, node) for node in range(256)}
    found = pack(RankedMembers([0] * 1024, {}, {0: dict.fromkeys(range(256), 4)}), paths)
    assert ring_cost(found, paths) == 255 + 31 + 3  # every node, rack and block is entered once


def test_many_members_of_two_shapes_follow_each_other_from_node_to_node():
    """64 leaders with 7 workers each: a leader shares its node with its workers, not with other leaders."""
    paths = {node: (node // 16, node // 4, node) for node in range(64)}
    slots = {0: dict.fromkeys(range(64), 1), 1: dict.fromkeys(range(64), 7)}
    found = pack(RankedMembers([0, *[1] * 7] * 64, {}, slots), paths)
    assert ring_cost(found, paths) == 63 + 15 + 3


def test_a_few_members_of_many_return_to_their_neighbours():
    paths = {node: (node // 16, node // 4, node) for node in range(64)}
    fixed = {m: (511 - m) // 8 for m in range(512) if m not in (100, 400)}  # rank 0 is on the last node
    found = pack(RankedMembers([0] * 512, fixed, {0: {(511 - m) // 8: 1 for m in (100, 400)}}), paths, exact=False)
    assert (found[100], found[400]) == ((511 - 100) // 8, (511 - 400) // 8)


def test_hops_are_levels():
    assert [hops((0, 0, 0), path) for path in ((0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3))] == [0, 1, 2, 3]


def test_striped_neighbours_part_and_balanced_domains_are_even():
    assert stripe(5, 2) == [0, 1, 0, 1, 0]
    assert balance(5, 2) == [0, 0, 0, 1, 1]
    assert sorted(Counter(balance(10, 4)).values()) == [2, 2, 3, 3]


INDEX = "batch.kubernetes.io/job-completion-index"
BLOCK, RACK = "topology.phalanx.dev/block", "topology.phalanx.dev/rack"


def cluster(nodes=16, racks=4, cpu="2"):
    """Racks take turns in the order of nodes, as machines do that were bought at different times."""
    return Cluster().see(
        *(node(f"n{i}").cpu(cpu).label(RACK, f"r{i % racks}").label(BLOCK, f"b{i % racks // 2}") for i in range(nodes))
    )


def indexed(name, count, *, label=INDEX, start=0):
    return [
        pod_group(name).gang(count),
        *(pod(f"{name}-{i}").cpu("1").group(name).label(label, str(i)) for i in range(start, start + count)),
    ]


def racks_by_rank(world, name, count):
    return [world.engine.columns.nodes[world.engine.columns.row_of[world.bound[f"{name}-{i}"]]].metadata.labels[RACK]
            for i in range(count)]  # fmt: skip


@pytest.mark.parametrize(
    "label",
    [INDEX, "apps.kubernetes.io/pod-index", "leaderworkerset.sigs.k8s.io/worker-index",
     "training.kubeflow.org/replica-index"],
)  # fmt: skip
def test_members_are_placed_in_the_order_of_their_index_not_of_their_names(label):
    world = cluster().see(*indexed("g", 16, label=label))
    world.step()
    racks = racks_by_rank(world, "g", 16)
    parted = sum(a != b for a, b in pairwise(racks))
    assert parted == len(set(racks)) - 1, racks  # every rack is entered once
    assert all(world.bound[f"g-{i}"] == world.bound[f"g-{i + 1}"] for i in range(0, 16, 2))


@pytest.mark.parametrize("role", ["replica-type", "job-role"])
def test_the_launcher_comes_before_the_workers_although_both_count_from_zero(role):
    cluster = Cluster().see(*(node(f"n{n}").cpu("1") for n in range(3)), pod_group("g").gang(3))
    for name, part, index in (("a", "worker", 0), ("b", "worker", 1), ("c", "Launcher", 0)):
        labelled = pod(name).group("g").cpu("1").label(f"training.kubeflow.org/{role}", part)
        cluster.see(labelled.label("training.kubeflow.org/replica-index", str(index)))
    cluster.step()
    assert cluster.bound == {"c": "n0", "a": "n1", "b": "n2"}
    assert not [each for each in cluster.of(d.RecordEvent, "g") if each.reason == "RankIgnored"]


def test_jobs_of_a_jobset_follow_each_other_in_the_global_order():
    world = cluster().see(pod_group("g").gang(8))
    for job in range(2):
        for i in range(4):
            one = pod(f"g-{job}-{i}").cpu("1").group("g").label(INDEX, str(i))
            world.see(one.label("jobset.sigs.k8s.io/job-global-index", str(job)))
    world.step()
    nodes = [world.bound[f"g-{job}-{i}"] for job in range(2) for i in range(4)]
    assert all(a == b for a, b in zip(nodes[::2], nodes[1::2], strict=True))


def test_a_label_of_the_policy_gives_the_rank_and_pack_is_least():
    world = cluster().see(
        workload_policy("p").target("PodGroup", "g").set(ranks={"from": "Label", "key": "rank", "placement": "Pack"}),
        pod_group("g").gang(8),
        *(pod(f"g-{i}").cpu("1").group("g").label("rank", str(7 - i)) for i in range(8)),
    )
    world.step()
    racks = racks_by_rank(world, "g", 8)
    assert sum(a != b for a, b in pairwise(racks)) == len(set(racks)) - 1
    assert world.bound["g-7"] == world.bound["g-6"]


def test_bad_and_doubled_ranks_are_ignored_and_the_gang_is_placed():
    world = cluster().see(pod_group("g").gang(4))
    for i, text in enumerate(("0", "zero", "0", "-1")):
        world.see(pod(f"g-{i}").cpu("1").group("g").label(INDEX, text))
    world.step()
    assert len(world.bound) == 4
    (said,) = [event for event in world.of(d.RecordEvent) if event.reason == "RankIgnored"]
    assert "pod g-1: batch.kubernetes.io/job-completion-index: 'zero' is not a rank" in said.message
    assert "pod g-2: rank 0 is that of pod g-0, too" in said.message


def test_bad_ranks_are_reported_on_the_policy_until_they_are_gone():
    world = cluster().see(workload_policy("p").target("PodGroup", "g").set(ranks={"from": "Label", "key": "rank"}))
    world.see(pod_group("g").gang(3))
    for name, rank in (("a", "x"), ("b", "1"), ("c", "1")):
        world.see(pod(name).cpu("1").group("g").label("rank", rank))
    world.step()
    (said,) = world.objects["WorkloadPolicy"]["p"].status.conditions
    assert said.status == "False" and "spec.ranks.key: pod a: rank: 'x' is not a rank" in said.message
    assert "rank 1 is that of pod b, too" in said.message
    assert len(world.bound) == 3


def test_a_replacement_sits_with_its_neighbours():
    world = cluster(nodes=8, racks=4).see(*indexed("g", 8))
    world.step()
    home = world.bound["g-3"]
    world.gone("Pod", "g-3").gone("Pod", "g-7")
    world.see(*(pod(f"h-{i}").cpu("1").group("g").label(INDEX, str(i)) for i in (7, 3)))
    world.step()
    assert world.bound["h-3"] == home


def test_a_replacement_sits_with_neighbours_whose_ranks_are_annotations():
    ranks = {"from": "Annotation", "key": "example.com/rank"}
    world = cluster(nodes=2, racks=2).see(workload_policy("p").target("PodGroup", "g").set(ranks=ranks))
    world.see(pod_group("g").gang(4))
    member = lambda rank: pod(f"g-{rank}").cpu("1").group("g").annotate("example.com/rank", str(rank))  # noqa: E731
    world.see(member(3).node("n0"), member(0).node("n1"), member(1), member(2))
    world.step()
    assert world.bound == {"g-1": "n1", "g-2": "n0"}


def placement(how, key="", **more):
    return workload_policy("p").target("PodGroup", "g").set(ranks={"placement": how, "topologyKey": key, **more})


def test_stripe_parts_consecutive_ranks_and_balance_fills_racks_evenly():
    striped = cluster().see(placement("Stripe", RACK), *indexed("g", 8))
    striped.step()
    racks = racks_by_rank(striped, "g", 8)
    assert racks == racks[:4] * 2 and len(set(racks)) == 4
    balanced = cluster().see(placement("Balance", RACK), *indexed("g", 8))
    balanced.step()
    racks = racks_by_rank(balanced, "g", 8)
    assert sorted(Counter(racks).values()) == [2, 2, 2, 2]
    assert all(a == b for a, b in zip(racks[::2], racks[1::2], strict=True))


def test_domains_that_are_full_are_left_out():
    world = cluster(nodes=8, racks=4)
    world.see(*(pod(f"full{i}").cpu("2").node(f"n{i}") for i in (0, 4)))  # rack 0
    world.see(placement("Balance", RACK), *indexed("g", 9))
    world.step()
    racks = racks_by_rank(world, "g", 9)
    assert Counter(racks) == {"r1": 3, "r2": 3, "r3": 3}


def test_a_gang_that_cannot_be_spread_is_placed_all_the_same():
    world = Cluster().see(node("n").cpu("8").label(RACK, "r"), placement("Stripe", RACK), *indexed("g", 4))
    world.step()
    assert len(world.bound) == 4


def test_child_groups_are_balanced_over_domains():
    world = cluster(cpu="4").see(
        workload_policy("p")
        .target("CompositePodGroup", "tree")
        .set(ranks={"placement": "Balance", "topologyKey": BLOCK}),
        composite("tree").gang(4),
    )
    for child in range(4):
        world.see(pod_group(f"c{child}").gang(2).parent("tree").topology(RACK))
        world.see(*(pod(f"c{child}-{i}").cpu("1").group(f"c{child}") for i in range(2)))
    world.step()
    columns = world.engine.columns
    blocks = [columns.nodes[columns.row_of[world.bound[f"c{c}-0"]]].metadata.labels[BLOCK] for c in range(4)]
    assert sorted(Counter(blocks).values()) == [2, 2], blocks


def test_a_member_that_another_component_nominated_gets_its_node():
    world = cluster(nodes=6, racks=2).see(pod_group("g").gang(3))
    for i in range(3):
        one = pod(f"g-{i}").cpu("1").group("g")
        world.see(one.nominated("n5") if i == 1 else one)
    world.step()
    assert world.bound["g-1"] == "n5" and len(world.bound) == 3


def test_a_nomination_whose_room_is_gone_holds_up_no_gang():
    world = cluster(nodes=3, racks=1).see(pod("full").cpu("2").node("n2"), pod_group("g").gang(2))
    world.see(pod("g-0").cpu("1").group("g").nominated("n2"), pod("g-1").cpu("1").group("g"))
    world.step()
    assert len(world.bound) == 2 and world.bound["g-0"] != "n2"


def test_plan_and_whatif_show_the_ring_cost():
    world = cluster().see(placement("Pack"), *indexed("g", 8))
    world.engine.step(world.now, 0)
    assert plan(world.engine, "PodGroup", "default", "g").ring_cost == 3  # four nodes of one rack
    members = [one.build() for one in indexed("h", 4)]
    question = Question(pods=members[1:], pod_groups=members[:1])
    (would,) = whatif(world.engine, question).items
    assert would.places[0].ring_cost == 2  # two nodes in two racks of a block


def test_whatif_shows_where_a_gang_that_preempts_would_go_and_its_ring_cost():
    world = cluster(nodes=2, racks=1)
    world.see(*(pod(f"low-{n}").cpu("2").node(f"n{n}") for n in range(2)))
    members = [one.priority(10).build() for one in indexed("h", 4)]
    (would,) = whatif(world.engine, Question(pods=members[1:], pod_groups=members[:1])).items
    text = render_whatif(would, Colours(on=False))
    assert "would then go to n0 x2, n1 x2" in text and "ring cost: 1 hop between consecutive ranks" in text


def test_pack_chooses_neighbouring_racks_where_one_is_too_small():
    world = cluster(nodes=16, racks=8).see(placement("Pack"), *indexed("g", 8))
    world.step()
    racks = racks_by_rank(world, "g", 8)
    assert len(set(racks)) == 2 and sum(a != b for a, b in pairwise(racks)) == 1
    assert int(racks[0][1]) // 2 == int(racks[-1][1]) // 2  # of one block


@pytest.mark.parametrize("how", ["Pack", "Stripe", "Balance"])
def test_why_says_how_many_nodes_a_ranked_gang_lacks(how):
    world = cluster(nodes=4).see(placement(how, RACK), *indexed("g", 10))
    world.step()
    (found,) = why(world.engine, "PodGroup", "default", "g").items
    assert any("node" in str(each) for each in found.relaxations), found.relaxations


@pytest.mark.parametrize(("how", "lost"), [("Stripe", 5), ("Balance", 5), ("Stripe", 0), ("Balance", 7)])
def test_a_replacement_keeps_the_pattern(how, lost):
    world = cluster(cpu="4").see(placement(how, RACK), *indexed("g", 8))
    world.step()
    before = racks_by_rank(world, "g", 8)
    world.gone("Pod", f"g-{lost}").see(pod(f"g-{lost}").cpu("1").group("g").label(INDEX, str(lost)))
    world.step()
    assert racks_by_rank(world, "g", 8) == before


def test_a_child_group_that_returns_keeps_the_balance_of_its_tree():
    world = cluster(cpu="4").see(
        composite("tree").gang(4),
        workload_policy("p")
        .target("CompositePodGroup", "tree")
        .set(ranks={"placement": "Balance", "topologyKey": RACK}),
    )
    for child in range(4):
        world.see(pod_group(f"c{child}").gang(2).parent("tree"))
        world.see(*(pod(f"c{child}-{i}").cpu("1").group(f"c{child}") for i in range(2)))
    world.step()
    before = [racks_by_rank(world, f"c{child}", 2)[0] for child in range(4)]
    assert len(set(before)) == 4
    for i in range(2):
        world.gone("Pod", f"c1-{i}").see(pod(f"c1-{i}").cpu("1").group("c1"))
    world.step()
    assert racks_by_rank(world, "c1", 2) == [before[1]] * 2


def full(priority=lambda rack: 0):
    """Return a cluster of four racks of four nodes, each filled with two pods that may be preempted."""
    world = Cluster().see(*(node(f"n{i}").cpu("2").label(RACK, f"r{i // 4}") for i in range(16)))
    return world.see(
        *(pod(f"low{i}-{k}").cpu("1").priority(priority(i // 4)).node(f"n{i}") for i in range(16) for k in range(2))
    )


def urgent(name, count):
    members = [pod(f"{name}-{i}").cpu("1").priority(10).group(name).label(INDEX, str(i)) for i in range(count)]
    return [pod_group(name).gang(count).priority(10), *members]


def preempted(world):
    """Let the gang preempt and start; return the number of victims."""
    world.step()
    world.step(15)
    return len(world.evicted)


@pytest.mark.parametrize(("how", "expected"), [("Stripe", [0, 1, 2, 3] * 2), ("Balance", [0, 0, 1, 1, 2, 2, 3, 3])])
def test_a_preemption_plan_follows_the_pattern_where_it_costs_no_more(how, expected):
    world = full().see(placement(how, RACK), *urgent("g", 8))
    assert preempted(world) == 8
    racks = racks_by_rank(world, "g", 8)
    assert [racks.index(rack) for rack in racks] == [expected.index(rack) for rack in expected]


def test_no_more_important_pod_is_evicted_for_a_pattern():
    world = full(priority=lambda rack: 5 if rack == 0 else 0)  # pods in rack 0 matter more
    world.see(placement("Stripe", RACK), *urgent("g", 9))
    assert preempted(world) == 9
    racks = racks_by_rank(world, "g", 9)
    assert racks == racks[:3] * 3 and set(racks) == {"r1", "r2", "r3"}


def test_equal_ranks_share_a_node_after_preemption():
    world = full().see(
        composite("tree").gang(2).priority(10),
        workload_policy("p").target("PodGroup", "b").set(ranks={"coPlaceWith": "a"}),
    )
    for name in "ab":
        members = [pod(f"{name}-{i}").cpu("1").priority(10).group(name).label(INDEX, str(i)) for i in range(4)]
        world.see(pod_group(name).gang(4).parent("tree").priority(10), *members)
    assert preempted(world) == 8
    assert [world.bound[f"a-{i}"] for i in range(4)] == [world.bound[f"b-{i}"] for i in range(4)]
