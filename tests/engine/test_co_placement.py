"""Equal ranks of two groups of a tree share a node or domain (`ranks.coPlaceWith`)."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group, workload_policy

INDEX = "batch.kubernetes.io/job-completion-index"
RACK = "topology.phalanx.dev/rack"
ACCEPTED = "Accepted"


def world(nodes: int = 4, cpu: str = "4", racks: int = 2) -> Cluster:
    return Cluster().see(*(node(f"n{i}").cpu(cpu).label(RACK, f"r{i % racks}") for i in range(nodes)))


def group(name: str, count: int, cpu: str = "1", *, first: int = 0, parent: str = "tree") -> list[Any]:
    return [
        pod_group(name).gang(count).parent(parent),
        *(pod(f"{name}-{i}").cpu(cpu).group(name).label(INDEX, str(i)) for i in range(first, count)),
    ]


def policy(target: str, other: str, key: str = "", name: str = "together") -> Any:
    ranks = {"coPlaceWith": other, **({"topologyKey": key} if key else {})}
    return workload_policy(name).target("PodGroup", target).set(ranks=ranks)


def by_rank(cluster: Cluster, name: str, count: int, key: str = "") -> list[str]:
    nodes = [cluster.bound[f"{name}-{i}"] for i in range(count)]
    return [cluster.nodes[each].metadata.labels[key] for each in nodes] if key else nodes


def accepted(cluster: Cluster, name: str = "together") -> tuple[str, str]:
    conditions = cluster.objects["WorkloadPolicy"][name].status.conditions or ()
    return next(((c.status, c.message) for c in conditions if c.type == ACCEPTED), ("", ""))


def test_equal_ranks_share_a_node() -> None:
    cluster = world().see(composite("tree").gang(2), policy("b", "a"), *group("a", 4, "3"), *group("b", 4))
    cluster.step()
    assert by_rank(cluster, "a", 4) == by_rank(cluster, "b", 4)
    assert accepted(cluster)[0] == "True"


@pytest.mark.parametrize("size", [2, 4, 6])
def test_ranks_follow_each_other_node_by_node(size: int) -> None:
    cluster = world().see(composite("tree").gang(2), policy("b", "a"), *group("a", size), *group("b", size))
    cluster.step()
    assert by_rank(cluster, "a", size) == by_rank(cluster, "b", size)
    assert len(set(by_rank(cluster, "a", size))) == -(-size // 2)


def test_equal_ranks_share_a_domain_of_the_topology_key() -> None:
    cluster = world(nodes=8, cpu="2").see(
        composite("tree").gang(2), policy("b", "a", RACK), *group("a", 4, "2"), *group("b", 4, "2")
    )
    cluster.step()
    assert by_rank(cluster, "a", 4, RACK) == by_rank(cluster, "b", 4, RACK)
    assert set(by_rank(cluster, "a", 4)).isdisjoint(by_rank(cluster, "b", 4))


def test_equal_ranks_that_fill_whole_nodes_share_a_rack() -> None:
    nodes = [node(f"n{i}").cpu("1").label(RACK, f"r{i // 4}") for i in range(12)]
    cluster = Cluster().see(*nodes, composite("tree").gang(2), policy("b", "a", RACK), *group("a", 5), *group("b", 5))
    cluster.step()
    assert by_rank(cluster, "a", 5, RACK) == by_rank(cluster, "b", 5, RACK)


def test_a_replacement_returns_to_the_node_of_its_rank() -> None:
    cluster = world().see(composite("tree").gang(2), policy("b", "a"), *group("a", 4, "3"), *group("b", 4))
    cluster.step()
    before = by_rank(cluster, "b", 4)
    cluster.gone("Pod", "b-2")
    cluster.see(pod("b-2").cpu("1").group("b").label(INDEX, "2"))
    cluster.step()
    assert by_rank(cluster, "b", 4) == before == by_rank(cluster, "a", 4)


def test_the_topology_of_the_tree_holds_as_well() -> None:
    cluster = world(nodes=8).see(
        composite("tree").gang(2).topology(RACK), policy("b", "a"), *group("a", 4, "3"), *group("b", 4)
    )
    cluster.step()
    assert by_rank(cluster, "a", 4) == by_rank(cluster, "b", 4)
    assert len(set(by_rank(cluster, "a", 4, RACK))) == 1


def test_groups_that_cannot_be_placed_together_are_placed_all_the_same() -> None:
    cluster = world(cpu="3").see(composite("tree").gang(2), policy("b", "a"), *group("a", 2, "3"), *group("b", 2))
    cluster.step()
    assert len(cluster.bound) == 4


def test_three_groups_in_a_chain() -> None:
    cluster = world().see(
        composite("tree").gang(3), policy("b", "a"), policy("c", "b", name="second"),
        *group("a", 4, "2"), *group("b", 4), *group("c", 4),
    )  # fmt: skip
    cluster.step()
    assert by_rank(cluster, "a", 4) == by_rank(cluster, "b", 4) == by_rank(cluster, "c", 4)


def test_a_cycle_is_reported_and_ignored() -> None:
    cluster = world().see(
        composite("tree").gang(2), policy("b", "a"), policy("a", "b", name="back"), *group("a", 4), *group("b", 4)
    )
    cluster.step()
    assert len(cluster.bound) == 8
    for name in ("together", "back"):
        status, message = accepted(cluster, name)
        assert status == "False" and "spec.ranks.coPlaceWith: is a cycle" in message


def test_a_group_that_does_not_exist_is_reported() -> None:
    cluster = world().see(composite("tree").gang(1), policy("a", "x"), *group("a", 2))
    cluster.step()
    assert len(cluster.bound) == 2
    status, message = accepted(cluster)
    assert status == "False"
    assert message.startswith("spec.ranks.coPlaceWith: no group x is in the tree of PodGroup a")


def test_one_policy_for_a_tree_places_each_group_with_the_one_below_its_own_parent() -> None:
    cluster = world(nodes=4, cpu="4").see(
        composite("top").gang(2),
        workload_policy("together").target("CompositePodGroup", "top").set(ranks={"coPlaceWith": "trainer"}),
    )
    for slice_ in ("s0", "s1"):
        cluster.see(composite(slice_).gang(2).parent("top"))
        for role, cpu in (("trainer", "3"), ("loader", "1")):
            name = f"{slice_}-{role}"
            made = pod_group(name).gang(2).parent(slice_).from_workload("w", role)
            cluster.see(made, *(pod(f"{name}-{i}").cpu(cpu).group(name).label(INDEX, str(i)) for i in range(2)))
    cluster.step()
    for slice_ in ("s0", "s1"):
        assert by_rank(cluster, f"{slice_}-trainer", 2) == by_rank(cluster, f"{slice_}-loader", 2)
    assert accepted(cluster)[0] == "True"
