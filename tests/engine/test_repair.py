"""What a drain hits, and how a gang is repaired with the fewest moved pods. The engine is thrown away afterwards."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import BadRequest, NotFound
from phalanx.model.groups import GroupKey
from phalanx.serve.queries.repair import drain, repair
from phalanx.testing.builders import composite, gang, node, pod, pod_group
from phalanx.testing.cluster import Cluster

RACK = "rack"


def racks(*sizes: int) -> list[Any]:
    """Nodes of 2 CPUs: so many in each rack."""
    return [node(f"r{r}-n{n}").cpu("2").label(RACK, f"r{r}") for r, size in enumerate(sizes) for n in range(size)]


def rack_gang(name: str, size: int) -> list[Any]:
    return gang(name, size, "2", topology=RACK)


def cordon(cluster: Cluster, name: str) -> None:
    found = cluster.nodes[name]
    cluster.see(msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, unschedulable=True)))


def with_deletion(found: Any) -> Any:
    meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(found, metadata=meta)


KEY = GroupKey("PodGroup", "default", "g")


def test_spare_room_in_the_domain_moves_only_the_lost_member() -> None:
    cluster = Cluster().see(*racks(3), *rack_gang("g", 2))
    cluster.step()
    cordon(cluster, cluster.bound["g-0"])
    move = repair(cluster.engine, KEY)
    assert (move.moved, move.placed, move.whole, move.pods) == (1, 1, False, 2)
    assert move.nodes[0].startswith("r0-")


def test_without_spare_room_the_whole_gang_moves_to_another_domain() -> None:
    cluster = Cluster().see(*racks(2, 3), *rack_gang("g", 2))
    cluster.step()
    assert {n[:2] for n in cluster.bound.values()} == {"r0"}
    cordon(cluster, "r0-n0")
    move = repair(cluster.engine, KEY)
    assert (move.moved, move.placed, move.whole) == (2, 2, True)
    assert {name[:2] for name in move.nodes} == {"r1"}


def test_where_nothing_fits_the_answer_says_what_is_missing() -> None:
    cluster = Cluster().see(*racks(2), *rack_gang("g", 2))
    cluster.step()
    cordon(cluster, "r0-n0")
    move = repair(cluster.engine, KEY)
    assert (move.moved, move.placed) == (1, 0)
    assert move.message


def test_a_member_that_terminates_on_a_lost_node_moves_until_it_is_replaced() -> None:
    cluster = Cluster().see(*racks(3), *rack_gang("g", 2))
    cluster.step()
    cordon(cluster, cluster.bound["g-0"])
    found = cluster.pods["g-0"]
    cluster.see(with_deletion(found))
    move = repair(cluster.engine, KEY)
    assert (move.moved, move.placed, move.whole) == (1, 1, False)
    assert move.nodes[0].startswith("r0-") and move.nodes[0] != found.spec.node_name


def test_a_gang_whose_lost_member_is_gone_waits_for_its_controller() -> None:
    cluster = Cluster().see(*racks(3), *rack_gang("g", 2))
    cluster.step()
    cluster.gone("Pod", "g-0")
    move = repair(cluster.engine, KEY)
    assert move.moved == 0
    assert move.message == "waits for 1 pod that its controller has not created yet"


def test_a_whole_gang_needs_no_repair() -> None:
    cluster = Cluster().see(*racks(2), *rack_gang("g", 2))
    cluster.step()
    assert repair(cluster.engine, KEY).moved == 0


def test_a_drain_names_the_gangs_it_hits_and_where_each_would_go() -> None:
    whole, *members = rack_gang("whole", 2)
    cluster = Cluster().see(*racks(3, 3), *rack_gang("single", 2), whole.disrupt_all(), *members)
    cluster.step()
    nodes = [cluster.bound["single-0"], cluster.bound["whole-0"]]
    answer = drain(cluster.engine, nodes)
    found = {move.group: move for move in answer.moves}
    assert (found["podgroup/default/single"].moved, found["podgroup/default/whole"].moved) == (1, 2)
    assert found["podgroup/default/whole"].together
    assert answer.fits
    assert not {name for move in answer.moves for name in move.nodes} & set(nodes)


def test_a_domain_is_drained_as_a_whole() -> None:
    cluster = Cluster().see(*racks(2, 2), *rack_gang("g", 2))
    cluster.step()
    answer = drain(cluster.engine, [], "rack=r0")
    assert answer.nodes == ["r0-n0", "r0-n1"]
    assert {name[:2] for name in answer.moves[0].nodes} == {"r1"}


def test_bad_questions_are_answered_in_words() -> None:
    cluster = Cluster().see(*racks(1))
    for nodes, domain, problem in (([], "", BadRequest), (["none"], "", NotFound), ([], "rack", BadRequest)):
        with pytest.raises(problem):
            drain(cluster.engine, nodes, domain)
    with pytest.raises(NotFound) as no_domain:
        drain(cluster.engine, [], "rack=r9")
    assert str(no_domain.value) == "no node has the label rack=r9: the values are r0"
    with pytest.raises(NotFound, match="^no node has the label row$"):
        drain(cluster.engine, [], "row=1")
    with pytest.raises(NotFound) as no_node:
        drain(cluster.engine, ["none"])
    with pytest.raises(NotFound) as no_group:
        repair(cluster.engine, KEY)
    # The command takes an answer without a kind for one of a server that has no scheduler.
    assert [each.value.kind for each in (no_domain, no_node, no_group)] == ["Node", "Node", "PodGroup"]


def test_only_the_pod_group_that_lost_a_node_moves() -> None:
    cluster = Cluster().see(*racks(2, 2, 2), composite("t").gang(2))
    for name in ("a", "b"):
        cluster.see(pod_group(name).gang(2).topology(RACK).parent("t"))
        cluster.see(*(pod(f"{name}-{n}").group(name).cpu("2") for n in range(2)))
    cluster.step()
    home = {name: cluster.bound[f"{name}-0"][:2] for name in ("a", "b")}
    cordon(cluster, cluster.bound["a-0"])
    move = repair(cluster.engine, GroupKey("CompositePodGroup", "default", "t"))
    assert (move.moved, move.placed, move.whole) == (2, 2, False)
    assert {each[:2] for each in move.nodes}.isdisjoint(home.values())


def fewest_moves(cluster: Cluster, size: int) -> int | None:
    """Try every assignment of the gang to usable nodes of one rack; return the fewest pods that change their node."""
    usable = {name: found for name, found in cluster.nodes.items() if not found.spec.unschedulable}
    taken = Counter(at for name, at in cluster.placed.items() if not name.startswith("g-"))
    best: int | None = None
    for choice in product(sorted(usable), repeat=size):
        counts = Counter(choice)
        if len({usable[at].metadata.labels[RACK] for at in choice}) != 1:
            continue
        if any(2 * count + 2 * taken[at] > 2 for at, count in counts.items()):
            continue
        moved = sum(cluster.bound[f"g-{n}"] != at for n, at in enumerate(choice))
        best = moved if best is None else min(best, moved)
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sets(st.integers(0, 8), max_size=3),
    st.sets(st.integers(0, 8), max_size=2),
)
def test_a_repair_moves_no_more_pods_than_brute_force(
    sizes: list[int], size: int, cordoned: set[int], others: set[int]
) -> None:
    cluster = Cluster().see(*racks(*sizes))
    names = sorted(cluster.nodes)
    for number in others:
        if number < len(names):
            cluster.see(pod(f"other-{number}").cpu("2").node(names[number]))
    cluster.see(*rack_gang("g", size))
    cluster.step()
    if len(cluster.bound) < size:
        return
    for number in cordoned:
        if number < len(names):
            cordon(cluster, names[number])
    best = fewest_moves(cluster, size)
    move = repair(cluster.engine, KEY)
    if best is None:
        assert move.placed < move.moved
    else:
        assert (move.moved, move.placed) == (best, best)
