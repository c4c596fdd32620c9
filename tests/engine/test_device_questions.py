"""`whatif`, `plan` and `top` about devices: which claims would get which devices, and what stands in the way."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engine.explain import plan, why
from phalanx.engine.explain.device_table import device_table
from phalanx.engine.explain.whatif import Question, whatif
from phalanx.serve.queries.variant import MoreNodes, Variant
from phalanx.testing import builders as b
from support.device_world import (
    DRIVER,
    World,
    ask,
    asks,
    claim,
    claim_template,
    claiming_job,
    consumer,
    device,
    device_class,
    device_cluster,
    device_node,
    published,
)

Json = dict[str, Any]


def test_a_gang_with_a_claim_template_gets_devices_of_its_own():
    outlook, notes = ask(
        device_cluster(), claim_template("one"), claiming_job("train", 4, {"resourceClaimTemplateName": "one"})
    )
    (item,) = outlook.items
    assert item.fits and item.pods == 4 and not notes
    assert item.devices == [f"{DRIVER}/n{n}/d{i}" for n in range(2) for i in range(2)]


def test_too_few_devices_are_named_with_the_selector_that_rules_them_out():
    world = device_cluster()
    world.see(device_node("old"), published("old", device("d0", model="a100")))
    wants = claim_template("one", cel=f'device.attributes["{DRIVER}"].model == "h100"')
    outlook, _ = ask(world, wants, claiming_job("train", 5, {"resourceClaimTemplateName": "one"}))
    (item,) = outlook.items
    assert not item.fits
    (hint,) = item.hints
    assert "needs 1 device; of 5 published 1 is ruled out by selector #0 of the request, 4 can be used now" in hint


def test_devices_of_victims_count_as_in_use_in_the_hints():
    world = World(device_node("a"), *published("a", device("g0"), device("g1")), claim("low"), consumer("low", "low"))
    world.run(3)
    world.see(claim("high", asks(count=2)))
    pod = consumer("high", "high", priority=10)
    outlook = whatif(world.engine.scheduler, Question(pods=[pod]))
    (item,) = outlook.items
    assert item.evicts == ["default/low"] and "of 2 published 1 is in use, 1 can be used now" in item.hints[0]


def test_units_of_one_question_do_not_share_a_device():
    one = {"resourceClaimTemplateName": "one"}
    outlook, _ = ask(
        device_cluster(1, 3), claim_template("one"), claiming_job("first", 2, one), claiming_job("second", 2, one)
    )
    assert [item.fits for item in outlook.items] == [True, False]
    outlook, _ = ask(
        device_cluster(2, 2), claim_template("one"), claiming_job("first", 2, one), claiming_job("second", 2, one)
    )
    devices = [device for item in outlook.items for device in item.devices]
    assert outlook.fits and len(set(devices)) == len(devices) == 4


def test_pods_share_a_claim_of_the_manifest():
    shared = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"},
              "spec": {"devices": {"requests": [asks("r", 2)]}}}  # fmt: skip
    outlook, _ = ask(device_cluster(3, 2), claiming_job("train", 3, {"resourceClaimName": "shared"}), shared)
    (item,) = outlook.items
    assert item.fits and len(item.devices) == 2
    assert [share.pods for share in item.places[0].nodes] == [3]  # all on the node of the devices


def test_a_group_claim_is_generated_once_for_the_group():
    entry = {"name": "gpu", "resourceClaimTemplateName": "two"}
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"},
             "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}, "resourceClaims": [entry]}}  # fmt: skip
    members = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"g-{n}"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [entry],
                     "schedulingGroup": {"podGroupName": "g"}},
        }
        for n in range(3)
    ]  # fmt: skip
    outlook, _ = ask(device_cluster(2, 2), claim_template("two", 2), group, *members)
    (item,) = outlook.items
    assert item.fits and len(item.devices) == 2 and [share.pods for share in item.places[0].nodes] == [3]


def test_templates_of_the_cluster_count_and_missing_ones_are_named():
    wants = claiming_job("train", 2, {"resourceClaimTemplateName": "there"})
    known = claim_template("there")
    known["metadata"]["namespace"] = "default"
    outlook, _ = ask(device_cluster(), wants, templates=[known])
    assert outlook.fits
    outlook, notes = ask(device_cluster(), wants)
    assert not outlook.fits and any('resource claim template "there" not found' in note for note in notes)


def test_a_claim_that_exists_already_is_the_one_that_counts():
    world = device_cluster(2, 2)
    world.see(claim("taken", asks("r", 2)), consumer("user", "taken")).run()
    mine = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "taken"},
            "spec": {"devices": {"requests": [asks("r", 1)]}}}  # fmt: skip
    outlook, notes = ask(world, mine, claiming_job("train", 1, {"resourceClaimName": "taken"}))
    assert outlook.fits and any("ResourceClaim taken: exists already" in note for note in notes)


def test_a_plan_says_which_devices_each_victim_frees():
    world = device_cluster(2, 2)
    for n in range(2):
        world.see(claim(f"low-{n}", asks("r", 2)), consumer(f"low-{n}", f"low-{n}"))
    world.run()
    world.see(claim("urgent", asks("r", 2)))
    world.see(consumer("urgent", "urgent", priority=9))
    found = plan(world.engine.scheduler, "Pod", "default", "urgent")
    (victim,) = found.victims
    where = world.bound[victim.name.rpartition("/")[2]]
    assert victim.devices == [f"{DRIVER}/{where}/d0", f"{DRIVER}/{where}/d1"]


@pytest.mark.parametrize("extended", [False, True])
def test_why_names_the_devices_of_a_placed_pod(extended: bool):
    world = device_cluster(nodes=1, devices=2)
    world.see(device_class("gpu", extendedResourceName="example.com/gpu"))
    if extended:
        world.see(b.pod("p").uid("p").cpu("1").resource("example.com/gpu", "2").build()).run()
    else:
        world.see(claim("c", asks(count=2)), consumer("p", "c")).run()
    (found,) = why(world.engine.scheduler, "Pod", "default", "p").items
    assert found.summary == f"is on node n0, with {DRIVER}/n0/d0, {DRIVER}/n0/d1"


def test_free_devices_are_counted_by_class_and_domain():
    world = device_cluster(2, 3)
    world.see(claim("c", asks("r", 2)), consumer("p", "c")).run()
    state = world.engine.indexes.devices
    (row,) = device_table(state, ())
    assert (row.device_class, row.devices, row.in_use, row.free, row.most_on_node) == ("gpu", 6, 2, 4, 3)
    free = {row.path[0]: row.free for row in device_table(state, ["kubernetes.io/hostname"])}
    assert free == {name: 1 if name == world.bound["p"] else 3 for name in ("n0", "n1")}


def test_added_nodes_have_the_devices_of_the_node_they_are_like():
    world = device_cluster(1, 2)
    Variant(add_nodes=[MoreNodes(2, "n0")]).put_into(world.engine)
    outlook, _ = ask(world, claim_template("two", 2), claiming_job("train", 3, {"resourceClaimTemplateName": "two"}))
    assert outlook.fits and len(outlook.items[0].devices) == 6


def test_why_says_how_many_devices_share_the_attribute_that_must_match():
    world = World(device_node("n0"), published("n0", *(device(f"d{i}", nvlink=i // 2) for i in range(6))))
    limits = [{"matchAttribute": f"{DRIVER}/nvlink"}]
    world.see(claim("four", asks("r", 4), constraints=limits), consumer("p", "four")).run()
    (item,) = why(world.engine.scheduler, "Pod", "default", "p").items
    (hint,) = [each for each in item.hints if "claim default/four" in each]
    assert "6 can be used now, at most 6 on one node" in hint
    assert f"at most 2 of them with the same {DRIVER}/nvlink" in hint


def test_a_group_with_one_attribute_in_common_is_tried_in_one_domain():
    world = World()
    for n, domain in enumerate("aab"):
        world.see(device_node(f"n{n}"), published(f"n{n}", device("d0", domain=domain)))
    annotations = {"scheduling.phalanx.dev/match-device-attribute": f"{DRIVER}/domain"}
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
             "metadata": {"name": "g", "annotations": annotations},
             "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}  # fmt: skip
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGroup": {"podGroupName": "g"},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}  # fmt: skip
    members = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"g-{n}"}, "spec": spec} for n in range(2)]
    outlook, notes = ask(world, claim_template("one"), group, *members)
    assert outlook.fits and not notes
    assert [share.node for share in outlook.items[0].places[0].nodes] == ["n0", "n1"]


def test_a_pool_that_offers_nothing_is_named_with_its_problem() -> None:
    world = device_cluster(1, 1)
    world.see(device_node("odd"), *published("odd", device("d0"), device("d0")))
    world.see(claim("two", asks("r", 2)), consumer("pod", "two")).run()
    (item,) = why(world.engine.scheduler, "Pod", "default", "pod").items
    assert item.hints[-1] == f"pool {DRIVER}/odd is currently invalid: duplicate device name d0"


def test_devices_of_a_node_that_does_not_exist_are_not_counted_as_free() -> None:
    world = World(device_node("a"), published("gone", device("g0")), claim("c"), consumer("p", "c")).run()
    (item,) = why(world.engine.scheduler, "Pod", "default", "p").items
    assert "of 1 published 1 belongs to nodes that do not exist, 0 can be used now" in item.hints[0]
    (row,) = device_table(world.engine.scheduler.cluster.devices, ())
    assert (row.path, row.devices, row.in_use, row.free) == (["no node"], 1, 0, 0)


def test_no_help_is_seen_in_going_without_devices() -> None:
    """A pool of the node contradicts itself: without the filter of devices the pod would have none."""
    world = World(device_node("a"), published("a", device("g0"), device("g0")), claim("c"), consumer("p", "c")).run()
    (item,) = why(world.engine.scheduler, "Pod", "default", "p").items
    assert item.relaxations == []
    assert item.hints[-1] == f"pool {DRIVER}/a is currently invalid: duplicate device name g0"
