"""What a drain hits if pods hold devices: a moved pod gives its devices back, and its replacement gets others."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.model.groups import GroupKey
from phalanx.model.objects.meta import OwnerReference
from phalanx.model.objects.pod import PodResourceClaim, PodResourceClaimStatus
from phalanx.serve.queries.repair import drain, repair
from phalanx.testing import builders as b
from support.device_world import World, asks, claim, consumer, device_cluster, gang_group

KEY = GroupKey("PodGroup", "default", "g")
replace = msgspec.structs.replace


def generated(pod_name: str, *requests: Any) -> list[Any]:
    """A pod of group g with a claim of its own, as made from a template."""
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod_name, uid=pod_name, controller=True)
    made = claim(f"{pod_name}-x", *requests)
    pod = b.pod(pod_name).uid(pod_name).cpu("1").group("g").build()
    spec = replace(pod.spec, resource_claims=[PodResourceClaim(name="gpu", resource_claim_template_name="gpu")])
    claims = [PodResourceClaimStatus(name="gpu", resource_claim_name=made.metadata.name)]
    status = replace(pod.status, resource_claim_statuses=claims)
    return [
        replace(made, metadata=replace(made.metadata, owner_references=[owner])),
        replace(pod, spec=spec, status=status),
    ]


def cordon(world: World, name: str) -> None:
    node = world.objects["Node", name]
    world.see(replace(node, spec=replace(node.spec, unschedulable=True)))


def test_a_moved_pod_with_a_claim_from_a_template_gets_devices_of_another_node():
    world = device_cluster(nodes=3, devices=2)
    world.see(gang_group("g", 2), *generated("p0", asks(count=2)), *generated("p1", asks(count=2))).run(5)
    (move,) = drain(world.engine, [world.bound["p0"]]).moves
    assert (move.moved, move.placed, move.message) == (1, 1, "")
    assert move.nodes[0] not in world.bound.values()


def test_without_free_devices_elsewhere_a_drain_says_that_they_are_missing():
    world = device_cluster(nodes=2, devices=2)
    world.see(gang_group("g", 2), *generated("p0", asks(count=2)), *generated("p1", asks(count=2))).run(5)
    (move,) = drain(world.engine, [world.bound["p0"]]).moves
    assert (move.moved, move.placed) == (1, 0)
    assert "claims" in move.message


def test_a_claim_shared_by_moved_pods_moves_with_the_last_of_them():
    world = device_cluster(nodes=2, devices=1)
    world.see(gang_group("g", 2), claim("shared"), *(consumer(f"p{n}", "shared", group="g") for n in range(2))).run(5)
    (node,) = set(world.bound.values())
    (move,) = drain(world.engine, [node]).moves
    assert (move.moved, move.placed) == (2, 2)
    assert set(move.nodes) == {"n0", "n1"} - {node}


def test_the_devices_of_a_moved_pod_can_be_used_by_others():
    """A gang that is evicted as a whole: its members may use the devices which the others gave back."""
    world = device_cluster(nodes=3, devices=2)
    group = b.pod_group("g").uid("g").gang(2).disrupt_all().build()
    world.see(group, *generated("p0", asks(count=2)), *generated("p1", asks(count=2))).run(5)
    (move,) = drain(world.engine, [world.bound["p0"]]).moves
    assert (move.moved, move.placed, move.together) == (2, 2, True)


def test_a_pod_whose_devices_must_be_prepared_counts_where_it_waits():
    world = device_cluster(nodes=3, devices=2)
    world.see(gang_group("g", 1), *generated("p0", asks())).run(5)
    for number in range(3):
        (published,) = (obj for key, obj in world.objects.items() if key == ("ResourceSlice", f"n{number}-0"))
        devices = [
            replace(each, binding_conditions=["Ready"], binding_failure_conditions=["Failed"])
            for each in published.spec.devices
        ]
        world.see(replace(published, spec=replace(published.spec, devices=devices)))
    (move,) = drain(world.engine, [world.bound["p0"]]).moves
    assert (move.moved, move.placed) == (1, 1)


def test_a_repair_plan_moves_the_lost_member_with_its_devices():
    world = device_cluster(nodes=3, devices=2)
    world.see(gang_group("g", 2), *generated("p0", asks(count=2)), *generated("p1", asks(count=2))).run(5)
    cordon(world, world.bound["p0"])
    move = repair(world.engine, KEY)
    assert (move.moved, move.placed, move.whole) == (1, 1, False)
