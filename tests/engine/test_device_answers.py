"""What users read about a claim that gets no devices: the sentence names the request, and remedies hold."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.cli.scheduler_client import Colours
from phalanx.cli.why import render
from phalanx.engine.explain import why
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
    device_node,
    gang_group,
    published,
)

LINKED = [{"matchAttribute": f"{DRIVER}/link"}]
NEVER = ": this can never fit on the nodes there are"


def linked_cluster(nodes: int = 2) -> World:
    """Nodes with four devices, two of each link."""
    world = World()
    for n in range(nodes):
        devices = [device(f"d{i}", model="a100", link=f"{n}-{i // 2}") for i in range(4)]
        world.see(device_node(f"n{n}"), published(f"n{n}", *devices))
    return world


@pytest.mark.parametrize(
    ("wanted", "constraints", "says"),
    [
        (asks("gpu", 5), [], "asks for 5 devices, and no node has more than 4 that it can use" + NEVER),
        (
            asks("gpu", 3),
            LINKED,
            f"asks for 3 devices with the same {DRIVER}/link, and no node has more than 2" + NEVER,
        ),
        (
            asks("gpu", cel=f'device.attributes["{DRIVER}"].model == "h100"'),
            [],
            "can use none of the 8 published devices: 8 are ruled out by selector #0 of the request" + NEVER,
        ),
        (
            asks("gpu", cel=f'device.attributes["{DRIVER}"].missing == "x"'),
            [],
            "can use none of the 8 published devices: 8 make selector #0 of the request fail (CEL runtime error: no "
            "such key: missing. consider using CEL optional chaining (.? followed by orValue()) or guarding the check "
            "with has() for optional fields)" + NEVER,
        ),
    ],
)
def test_a_request_that_no_node_can_serve_is_the_headline(wanted: Any, constraints: list[Any], says: str) -> None:
    world = linked_cluster().see(claim("c", wanted, constraints=constraints), consumer("p", "c")).run()
    (item,) = why(world.engine.scheduler, "Pod", "default", "p").items
    assert item.headline == f"Request gpu of its ResourceClaim {says}"
    assert not item.relaxations
    assert world.events["p"].startswith((item.headline, "plugin DynamicResources: claim default/c: selector #0"))


def test_a_claim_that_other_pods_hold_devices_of_reads_what_would_help() -> None:
    world = linked_cluster(1).see(claim("first", asks("gpu", 3)), consumer("first", "first")).run()
    world.see(claim("c", asks("gpu", 2)), consumer("p", "c")).run()
    (item,) = why(world.engine.scheduler, "Pod", "default", "p").items
    assert item.headline == "Fits none of 1 node: 1 lacks free devices for its claims"
    assert world.events["p"].startswith(item.headline)
    assert [each.text for each in item.relaxations] == ["1 node (n0) would do after other pods there have ended"]


def test_added_nodes_that_would_help_a_gang_have_as_many_devices_as_existing_ones() -> None:
    world = linked_cluster(2)
    wants = claim_template("two", 2)
    wants["spec"]["spec"]["devices"]["constraints"] = LINKED
    outlook, _ = ask(world, wants, gang := claiming_job("train", 9, {"resourceClaimTemplateName": "two"}))
    texts = [each.text for each in outlook.items[0].relaxations]
    assert texts == ["minCount 4 instead of 9 fits now", "3 more free nodes like n0 would do"]
    more = linked_cluster(2)
    Variant(add_nodes=[MoreNodes(2, "n0")]).put_into(more.engine)
    assert not ask(more, wants, gang)[0].fits
    Variant(add_nodes=[MoreNodes(1, "n0")]).put_into(more.engine)
    assert ask(more, wants, gang)[0].fits


def test_why_names_as_many_nodes_as_a_pending_gang_needs() -> None:
    world = linked_cluster(1)
    for n in range(5):
        world.see(claim(f"c{n}", asks("gpu", 2), constraints=LINKED), consumer(f"p{n}", f"c{n}", group="g"))
    world.see(gang_group("g", 5)).run()
    (item,) = why(world.engine.scheduler, "PodGroup", "default", "g").items
    lines = render(item, Colours(on=False)).splitlines()
    assert any("2 more free nodes like n0 would do" in line for line in lines)
    assert not any("without the filter" in line for line in lines)


def test_a_tree_whose_claims_fit_only_one_by_one_waits_for_devices() -> None:
    world = linked_cluster(1)
    world.see(b.composite("t").gang(2).build())
    for name in ("x", "y"):
        world.see(b.pod_group(name).gang(2).parent("t").build(), claim(name, asks("gpu", 3)))
        world.see(*(consumer(f"{name}{i}", name, group=name) for i in range(2)))
    world.run(2)
    assert not world.bound
    item = why(world.engine.scheduler, "PodGroup", "default", "x").items[0]
    assert item.headline.endswith("follows all rules: free devices for the claims of all pods at once")
