"""Gangs with policies under random losses, cordons and time: every group ends in a documented state."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engine import decisions as d
from phalanx.engine.groups.group_state import Phase
from phalanx.engine.groups.restarts import NO_RESTARTS
from phalanx.model.groups import GroupKey, MemberState
from phalanx.serve.queries.repair import repair
from phalanx.testing.builders import node, pod, pod_group, workload_policy
from phalanx.testing.cluster import Cluster
from support.maintained import healthy

POLICIES = st.sampled_from(["Keep", "Replace", "TerminateAll", "Shrink", "Nonsense"])
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lose", "fail", "cordon", "uncordon", "wait", "make", "node gone", "terminate"]),
        st.integers(0, 7),
    ),
    max_size=14,
)


def world(policy: str, size: int, nodes: int) -> Cluster:
    cluster = Cluster(grace=True)
    cluster.see(*(node(f"n{n}").cpu("2").label("rack", f"r{n % 2}") for n in range(nodes)))
    rules = {"policy": policy, "graceSeconds": 20, "backoffSeconds": 5, "maxRestarts": 2}
    limits = {"scheduleSeconds": 60, "membersSeconds": 90}
    cluster.see(workload_policy("p").target("PodGroup", "g").set(rescheduling=rules, timeouts=limits))
    cluster.see(pod_group("g").gang(size), *(member(n) for n in range(size)))
    cluster.step()
    return cluster


def member(number: int) -> Any:
    return pod(f"g-{number}").group("g").cpu("1").created(1000.0 + number)


def cordoned(cluster: Cluster, name: str, on: bool) -> None:
    found = cluster.nodes.get(name)
    if found is not None:
        cluster.see(msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, unschedulable=on)))


def happen(cluster: Cluster, what: str, which: int, made: list[int]) -> None:
    names = sorted(cluster.pods)
    if what == "wait":
        cluster.step(10 * which)
    elif what == "make":
        made.append(len(made) + 100)
        cluster.see(member(made[-1]))
    elif what == "node gone" and f"n{which}" in cluster.nodes:
        cluster.gone("Node", f"n{which}")
    elif what in ("cordon", "uncordon"):
        cordoned(cluster, f"n{which}", what == "cordon")
    elif names and what == "lose":
        cluster.gone("Pod", names[which % len(names)])
    elif names and what == "fail":
        cluster.update(names[which % len(names)], phase="Failed")
    elif what == "terminate":
        cluster.finish()


@settings(max_examples=60, deadline=None)
@given(POLICIES, st.integers(1, 4), st.integers(1, 5), EVENTS)
def test_every_loss_ends_in_a_documented_state(
    policy: str, size: int, nodes: int, events: list[tuple[str, int]]
) -> None:
    cluster, made = world(policy, size, nodes), list[int]()
    for what, which in events:
        happen(cluster, what, which, made)
        cluster.step(1)
    cluster.step(1000)
    group = cluster.engine.cluster.forest.group(GroupKey("PodGroup", "default", "g"))
    assert group is not None
    state = cluster.engine.groups.members.health.state(group)
    assert healthy(cluster)[1] in (state.phase, ""), "what kubectl shows"
    assert 0 <= state.placed <= state.wanted
    assert (state.phase is Phase.RUNNING) is (state.placed >= size)
    restarts = cluster.engine.groups.members.health.restarts.get(group.key, NO_RESTARTS).count
    if state.phase is Phase.DEGRADED:
        working = [each for each in group.members.values() if each.state is MemberState.RUNNING]
        assert policy != "TerminateAll" or restarts == 2 or not working, "after the grace time no member holds a node"
    else:
        assert state.phase is Phase.RUNNING or not state.placed
    evicted = [each for each in cluster.log if isinstance(each, d.Evict) and each.reason == "GangTerminated"]
    assert not evicted or policy == "TerminateAll"
    assert restarts <= 2


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.sets(st.integers(0, 5), max_size=3))
def test_a_repair_moves_only_what_must_move_where_there_is_room(size: int, nodes: int, bad: set[int]) -> None:
    """Without a topology every free node is spare room: the fewest moves are the members on unusable nodes."""
    cluster = world("Keep", size, nodes)
    if len(cluster.bound) < size:
        return
    for number in bad:
        cordoned(cluster, f"n{number}", True)
    lost = [name for name, at in cluster.bound.items() if int(at[1:]) in bad]
    usable = [n for n in range(nodes) if n not in bad]
    used = sum(int(at[1:]) not in bad for at in cluster.bound.values())
    move = repair(cluster.engine, GroupKey("PodGroup", "default", "g"))
    if 2 * len(usable) - used >= len(lost):
        assert (move.moved, move.placed, move.whole) == (len(lost), len(lost), False)
    else:
        assert move.placed < move.moved


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.booleans(),
)
def test_no_plan_leaves_a_gang_below_its_minimum_unless_its_mode_says_so(
    gangs: list[tuple[int, bool, int]], asked: int, grouped: bool
) -> None:
    """`gangs`: pods, whether they go as a whole, priority. `asked`: pods of the preemptor."""
    cluster = Cluster().see(*(node(f"n{n}").cpu("2") for n in range(4)))
    for number, (size, whole, priority) in enumerate(gangs):
        group = pod_group(f"low{number}").gang(size).priority(priority)
        cluster.see(group.disrupt_all() if whole else group)
        cluster.see(*(pod(f"low{number}-{n}").cpu("1").group(f"low{number}").priority(priority) for n in range(size)))
        cluster.step()
    before = set(cluster.bound)
    if grouped:
        cluster.see(pod_group("high").gang(asked).priority(9))
    for number in range(asked):
        made = pod(f"high-{number}").cpu("1").priority(9)
        cluster.see(made.group("high") if grouped else made)
    cluster.step()
    for number, (size, whole, _) in enumerate(gangs):
        members = {f"low{number}-{n}" for n in range(size)}
        if members <= before and whole:
            assert len(members & set(cluster.evicted)) in (0, size)
    assert not set(cluster.evicted) or any(name.startswith("high") for name in cluster.bound)
