"""Properties of the group cycle, by hypothesis: whatever the cluster and the tree, and whichever pod comes first."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group

CPG = "CompositePodGroup"


@st.composite
def trees(draw: st.DrawFn) -> list[Any]:
    """A composite with a few gangs of a few pods, some with topology; creation times are all different."""
    made: list[Any] = [composite("job").created(0)]
    count = draw(st.integers(1, 4))
    if draw(st.booleans()):
        made[0].gang(draw(st.integers(1, count)))
    if draw(st.booleans()):
        made[0].topology("block")
    clock = 1
    for g in range(count):
        size = draw(st.integers(1, 4))
        group = pod_group(f"g{g}").parent("job").created(clock)
        if draw(st.booleans()):
            group.gang(draw(st.integers(1, size)))
        if draw(st.booleans()):
            group.topology("rack")
        made.append(group)
        for i in range(size):
            clock += 1
            made.append(pod(f"g{g}-{i}").group(f"g{g}").cpu(draw(st.sampled_from(["500m", "1", "2"]))).created(clock))
    return made


@st.composite
def clusters(draw: st.DrawFn) -> list[Any]:
    return [
        node(f"n{i}")
        .cpu(draw(st.sampled_from(["1", "2", "3"])))
        .label("rack", f"r{i // 2}")
        .label("block", f"b{i // 4}")
        for i in range(draw(st.integers(1, 8)))
    ]


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(clusters(), trees(), st.integers(0, 1 << 30))
def test_the_order_in_which_objects_arrive_does_not_change_the_result(nodes, tree, seed):
    first = Cluster().see(*(each.copy() for each in nodes), *(each.copy() for each in tree))
    first.step()
    mixed = [each.copy() for each in tree]
    random.Random(seed).shuffle(mixed)
    second = Cluster().see(*(each.copy() for each in nodes), *mixed)
    second.step()
    assert first.placed == second.placed


@quick
@given(clusters(), trees(), st.data())
def test_a_tree_is_whole_or_absent_in_one_domain_and_never_too_much_for_a_node(nodes, tree, data):
    run = Cluster().see(*(each.copy() for each in nodes), *(each.copy() for each in tree))
    run.step()
    check(run)
    # Life goes on: some leave, some come, room appears.
    for name in data.draw(st.lists(st.sampled_from(sorted(run.pods)), unique=True, max_size=4)):
        run.gone("Pod", name)
    run.see(node("late").cpu("2").label("rack", "r0").label("block", "b0")).step(11)
    check(run, scheduled_before=True)


def check(run: Cluster, *, scheduled_before: bool = False) -> None:
    used: dict[str, float] = {}
    for name, at in run.placed.items():
        cpu = run.pods[name].spec.containers[0].resources.requests["cpu"]
        used[at] = used.get(at, 0.0) + (float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu))
    for at, amount in used.items():
        assert amount <= float(run.nodes[at].status.allocatable["cpu"])
    forest = run.engine.groups.forest
    groups = [(kind, name, group) for kind in ("PodGroup", CPG) for name, group in run.objects[kind].items()]
    for kind, name, group in groups:
        below = run.placed if kind == CPG else {p: at for p, at in run.placed.items() if p.startswith(f"{name}-")}
        spec = group.spec
        if spec.scheduling_constraints is not None and spec.scheduling_constraints.topology:
            key = spec.scheduling_constraints.topology[0].key
            assert len({run.nodes[at].metadata.labels[key] for at in below.values()}) <= 1
        if not scheduled_before and below:
            found = next(g for g in forest.tree(forest.roots()[0]) if g.key.name == name and g.key.kind == kind)
            assert found.satisfied, f"{name} is there in part"
            assert run.condition(name, kind)[0] == "True"


@quick
@given(clusters(), trees())
def test_what_failed_for_want_of_room_is_placed_as_soon_as_the_room_is_there(nodes, tree):
    """Blockers fill all nodes; they leave one after the other; in the end the tree is where it would be at once."""
    blockers = [pod(f"blocker{i}").cpu(each.status["allocatable"]["cpu"]).node(f"n{i}") for i, each in enumerate(nodes)]
    run = Cluster().see(*(each.copy() for each in nodes), *blockers, *(each.copy() for each in tree))
    run.step()
    assert all(name.startswith("blocker") for name in run.placed)
    for i in range(len(blockers)):
        run.gone("Pod", f"blocker{i}").step()
    fresh = Cluster().see(*(each.copy() for each in nodes), *(each.copy() for each in tree))
    fresh.step()
    if fresh.placed:
        assert run.placed, "it fits, but nothing woke it"
        assert run.condition("job", CPG)[0] == fresh.condition("job", CPG)[0] == "True"
    else:
        assert not run.placed
