"""Which waiting groups lack nodes, and exactly which nodes would be enough for them."""

from __future__ import annotations

from phalanx.engine.explain.demand import demand
from phalanx.engine.explain.node_pools import DeclaredPool
from phalanx.engine.explain.values import GroupDemand, NodeDemand
from phalanx.model.objects import Node
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group
from support.submitted_gangs import submit

GPU = "nvidia.com/gpu"


def gpu_node(name: str, rack: str, gpus: int = 8) -> Node:
    built = node(name).cpu(64).gpu(gpus).label("rack", rack)
    return built.label("node.kubernetes.io/instance-type", f"gpu{gpus}").build()


def pool(nodes: int, racks: int, gpus: int = 8, name: str = "") -> DeclaredPool:
    name = name or f"gpu{gpus}"
    return DeclaredPool(name, [gpu_node(f"{name}-{i}", f"r{i * racks // nodes}", gpus) for i in range(nodes)])


def asked(run: Cluster, *pools: DeclaredPool) -> NodeDemand:
    return demand(run.engine.scheduler, pools)


def nodes_of(group: GroupDemand) -> list[tuple[str, int, str]]:
    return [(nodes.shape, nodes.count, nodes.domain) for nodes in group.nodes]


def test_a_gang_of_16_gpus_in_one_rack_asks_for_exactly_two_nodes_there() -> None:
    run = Cluster()
    submit(run, "train", 16, gpu=1, topology="rack")
    (group,) = asked(run, pool(8, racks=4)).groups
    assert nodes_of(group) == [("gpu8", 2, "r0")]
    assert group.nodes[0].nodes == ["gpu8-0", "gpu8-1"]
    assert (group.kind, group.name, group.pods, group.topology_key) == ("podgroup", "train", 16, "rack")
    assert group.requests[0].requests == {"cpu": "1", GPU: "1"}


def test_free_room_is_used_first() -> None:
    run = Cluster().see(gpu_node("n0", "r3"))
    submit(run, "train", 16, gpu=1, topology="rack")
    (group,) = asked(run, pool(8, racks=4)).groups
    assert nodes_of(group) == [("gpu8", 1, "r3")]


def test_a_gang_that_never_fits_asks_for_nothing_and_says_so() -> None:
    run = Cluster()
    submit(run, "wide", 4, gpu=16)
    submit(run, "tall", 24, gpu=1, topology="rack")
    answer = asked(run, pool(8, racks=4))
    assert [nodes_of(group) for group in answer.groups] == [[], []]
    assert all("never fits" in group.message for group in answer.groups)
    assert answer.shapes == []


def test_two_gangs_share_what_one_node_leaves() -> None:
    run = Cluster()
    submit(run, "one", 4, gpu=1)
    submit(run, "two", 4, gpu=1)
    answer = asked(run, pool(8, racks=4))
    assert [(shape.shape, shape.count) for shape in answer.shapes] == [("gpu8", 1)]
    assert [group.name for group in answer.groups] == ["one"]


def test_each_rack_bound_gang_gets_its_own_rack() -> None:
    run = Cluster()
    submit(run, "one", 16, gpu=1, topology="rack")
    submit(run, "two", 16, gpu=1, topology="rack")
    answer = asked(run, pool(8, racks=4))
    assert [nodes_of(group) for group in answer.groups] == [[("gpu8", 2, "r0")], [("gpu8", 2, "r1")]]


def test_groups_that_wait_for_members_or_gates_ask_for_nothing() -> None:
    run = Cluster()
    run.see(pod_group("half").gang(4), pod("half-0").gpu(1).group("half"))
    run.see(pod_group("gated").gang(1), pod("gated-0").gpu(1).group("gated").gate("example.com/later"))
    run.step()
    assert asked(run, pool(4, racks=1)).groups == []


def test_nothing_is_asked_for_where_preemption_makes_room() -> None:
    run = Cluster().see(gpu_node("n0", "r0"))
    submit(run, "low", 8, gpu=1)
    run.see(pod_group("high").gang(8).priority(10))
    run.see(*(pod(f"high-{i}").gpu(1).group("high").priority(10) for i in range(8)))
    assert asked(run, pool(4, racks=1)).groups == []


def test_the_smallest_shape_without_unused_devices_is_chosen() -> None:
    run = Cluster()
    run.see(pod_group("cpu").gang(2), *(pod(f"cpu-{i}").cpu(40).group("cpu") for i in range(2)))
    run.step()
    plain = DeclaredPool("plain", [node(f"plain-{i}").cpu(64).build() for i in range(4)])
    (group,) = asked(run, pool(4, racks=1), plain).groups
    assert nodes_of(group) == [("plain", 2, "")]


def test_shapes_are_combined_where_none_is_enough_alone() -> None:
    run = Cluster()
    run.see(composite("run").gang(2))
    run.see(pod_group("driver").gang(1).parent("run"), pod_group("workers").gang(8).parent("run"))
    run.see(pod("driver-0").cpu(100).group("driver"))
    run.see(*(pod(f"workers-{i}").cpu(1).gpu(1).group("workers") for i in range(8)))
    run.step()
    large = DeclaredPool("large", [node(f"large-{i}").cpu(128).build() for i in range(4)])
    (group,) = asked(run, pool(4, racks=1), large).groups
    assert sorted(nodes_of(group)) == [("gpu8", 1, ""), ("large", 1, "")]


def test_pods_beyond_the_minimum_ask_too() -> None:
    run = Cluster().see(gpu_node("n0", "r0"))
    submit(run, "elastic", 12, gpu=1, minimum=8)
    (group,) = asked(run, pool(4, racks=1)).groups
    assert (nodes_of(group), group.pods) == ([("gpu8", 1, "")], 4)


def test_without_declared_nodes_more_of_the_existing_types_are_asked_for() -> None:
    run = Cluster().see(*(gpu_node(f"n{i}", f"r{i // 2}") for i in range(4)))
    submit(run, "first", 8, gpu=1, topology="rack")
    submit(run, "train", 24, gpu=1, topology="rack")
    (group,) = asked(run).groups
    assert nodes_of(group) == [("gpu8", 1, "r1")]
    submit(run, "never", 4, gpu=16)
    assert [nodes_of(group) for group in asked(run).groups if group.name == "never"] == [[]]


def test_declared_nodes_that_nothing_uses_are_idle() -> None:
    pools = pool(4, racks=4)
    run = Cluster().see(*pools.nodes[:3])
    submit(run, "busy", 8, gpu=1)
    used = set(run.placed.values())
    assert sorted(asked(run, pools).idle) == sorted({n.metadata.name for n in pools.nodes[:3]} - used)


def test_asking_changes_no_decision() -> None:
    run = Cluster()
    submit(run, "train", 16, gpu=1, topology="rack")
    before = asked(run, pool(8, racks=4))
    assert asked(run, pool(8, racks=4)) == before
    run.see(*pool(8, racks=4).nodes[:2])
    run.step()
    assert set(run.placed.values()) == {"gpu8-0", "gpu8-1"}
    assert asked(run, pool(8, racks=4)).groups == []
