"""Wrong devices and claims: the pod waits with a clear message, other pods go on, nothing is allocated twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.engine import decisions as d
from phalanx.engine.explain import why
from phalanx.engine.explain.pending import PendingReasons
from phalanx.model import objects as o
from support.device_world import DRIVER, World, asks, claim, consumer, device, device_node, gang_group, published

Json = dict[str, Any]
ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def cluster(*objects: Any) -> World:
    return World(
        device_node("a"), device_node("b"), published("a", device("d0", model="x"), device("d1", model="x")), *objects
    )


def others_go_on(world: World) -> None:
    """A pod with a claim that is right gets a device, whatever is wrong with the others."""
    world.see(claim("right"), consumer("right", "right")).run()
    assert world.bound["right"] == "a" and len(world.devices("right")) == 1
    world.engine.validate()


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("device.", "compil"),
        ("device.nothing == 1", "undefined field"),
        ("1 + 1", "must evaluate to bool"),
        (f"{ATTRIBUTES}.absent == 1", "no such key: absent"),
        (f"{ATTRIBUTES}.model > 3", "no such overload"),
        (f"{ATTRIBUTES}.model", "could not be converted to bool"),
        (
            "{0}.all(a, {0}.all(b, {0}.all(c, true)))".format(f"[{','.join(['0'] * 200)}]"),
            "cost",
        ),
    ],
)
def test_an_expression_that_cannot_be_evaluated_is_named(expression: str, says: str) -> None:
    world = cluster(claim("wrong", asks(cel=expression)), consumer("wrong", "wrong"))
    world.run()
    assert "wrong" not in world.bound and says in world.messages["wrong"], world.messages["wrong"]
    others_go_on(world)


def test_each_of_two_pods_with_the_same_mistake_reads_the_name_of_its_own_claim() -> None:
    world = cluster()
    for name in ("c1", "c2"):
        world.see(claim(name, asks(cel=f"{ATTRIBUTES}.absent == 1")), consumer(f"p{name}", name))
    world.run()
    for name in ("c1", "c2"):
        assert f"claim default/{name}: selector #0 on device {DRIVER}/a/d0: " in world.messages[f"p{name}"]


def test_the_list_of_pending_units_says_what_failed_in_the_last_attempt() -> None:
    world = cluster(claim("c", asks(cel=f"{ATTRIBUTES}.absent == 1")), consumer("p", "c")).run()
    (unit,) = world.engine.queue.units.values()
    sentence = PendingReasons(world.engine.scheduler).of(unit).headline
    assert sentence.startswith("Is tried again when its turn comes; last time: ") and "no such key: absent" in sentence


def test_a_class_that_does_not_exist_is_awaited() -> None:
    world = cluster(claim("early", asks(deviceClassName="later")), consumer("early", "early")).run()
    assert "device class later does not exist" in world.messages["early"]
    waits = why(world.engine, "Pod", "default", "early").items[0].queue.waits_for
    assert waits[0] == "a claim, a device or a device class changes"
    others_go_on(world)
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    world.see(msgspec.convert({"metadata": {"name": "later"}, "spec": spec}, o.DeviceClass)).run()
    assert world.bound["early"] == "a"


def test_members_of_a_gang_and_why_name_the_class_that_does_not_exist() -> None:
    unknown = asks(deviceClassName="late")
    world = cluster(claim("c", unknown), claim("d", unknown), gang_group("g", 2))
    world.see(consumer("p", "c", group="g"), consumer("q", "d", group="g")).run()
    assert {"request r: device class late does not exist" in world.messages[name] for name in "pq"} == {True}
    (found,) = why(world.engine.scheduler, "PodGroup", "default", "g").items
    assert found.headline == "DeviceClass late does not exist (request r of its ResourceClaim)"


def test_a_class_whose_selector_does_not_compile() -> None:
    spec = {"selectors": [{"cel": {"expression": "nonsense("}}]}
    world = cluster(msgspec.convert({"metadata": {"name": "odd"}, "spec": spec}, o.DeviceClass))
    world.see(claim("wrong", asks(deviceClassName="odd")), consumer("wrong", "wrong")).run()
    assert "wrong" not in world.bound and "class odd" in world.messages["wrong"]
    others_go_on(world)


def test_slices_that_contradict_each_other_offer_nothing() -> None:
    world = cluster()
    first, second = published("b", device("d0")), published("b", device("d0"))
    twice = msgspec.structs.replace(second[0], metadata=msgspec.structs.replace(second[0].metadata, name="b-again"))
    pool = msgspec.structs.replace(first[0].spec.pool, resource_slice_count=2)
    world.see(
        *(
            msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, pool=pool))
            for each in (first[0], twice)
        )
    )
    for number in range(4):
        world.see(claim(f"c{number}"), consumer(f"p{number}", f"c{number}"))
    world.run()
    assert sorted(world.bound.values()) == ["a", "a"]  # the same device in two slices of b is no device


def test_a_pool_of_which_slices_are_missing_offers_nothing_until_they_are_there() -> None:
    world = cluster()
    (whole,) = published("b", device("d0"))
    pool = msgspec.structs.replace(whole.spec.pool, resource_slice_count=2)
    world.see(msgspec.structs.replace(whole, spec=msgspec.structs.replace(whole.spec, pool=pool)))
    for number in range(3):
        world.see(claim(f"c{number}"), consumer(f"p{number}", f"c{number}"))
    world.run()
    assert sorted(world.bound.values()) == ["a", "a"]
    world.see(whole).run()
    assert sorted(world.bound.values()) == ["a", "a", "b"]


def test_attributes_of_different_types_never_match() -> None:
    limits = [{"matchAttribute": f"{DRIVER}/group"}]
    world = World(
        device_node("a"), published("a", device("d0", group=1), device("d1", group="1"), device("d2", group=True))
    )
    world.see(claim("two", asks(count=2), constraints=limits), consumer("two", "two")).run()
    assert "two" not in world.bound and "cannot allocate all claims" in world.messages["two"]


@pytest.mark.parametrize(
    "allocation",
    [
        {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "nowhere", "device": "none"}]}},
        {"devices": {"results": [{"request": "other", "driver": "", "pool": "", "device": ""}]}},
        {"devices": {"results": []}},
        {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Odd"}]}]}},
        {"nodeSelector": {"nodeSelectorTerms": []}},
        {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "a", "device": "d0",
                                  "consumedCapacity": {"memory": "much"}, "shareID": "x"}]}},
    ],
)  # fmt: skip
def test_a_claim_that_was_edited_into_nonsense_harms_no_other(allocation: Json) -> None:
    world = cluster()
    body = {
        "metadata": {"name": "odd", "namespace": "default", "uid": "odd"},
        "spec": {"devices": {"requests": [asks()]}},
        "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "ghost", "uid": "ghost"}]},
    }
    world.see(msgspec.convert(body, o.ResourceClaim), consumer("odd", "odd"))
    for _ in range(20):
        world.now += 2
        for decision in world.engine.step(world.now):
            world._perform(decision)
    world.see(claim("right"), consumer("right", "right"))
    for _ in range(20):
        world.now += 2
        for decision in world.engine.step(world.now):
            world._perform(decision)
    assert world.bound["right"] == "a" and len(world.devices("right")) == 1
    taken = {(each.get("pool"), each.get("device")) for each in (allocation.get("devices") or {}).get("results") or ()}
    assert not taken & {tuple(each.split("/")) for each in world.devices("right")}


@pytest.mark.parametrize("group", ["", "g"], ids=["pods", "members of a gang"])
@pytest.mark.parametrize("in_use", [False, True], ids=["neither claim in use", "one claim in use"])
def test_a_device_that_was_written_into_two_claims_is_given_to_one_pod(group: str, in_use: bool) -> None:
    world = cluster(*([gang_group("g", 2)] if group else []))
    for name in ("c1", "c2"):
        allocation = {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "a", "device": "d0"}]}}
        users = [{"resource": "pods", "name": "other", "uid": "other"}] if in_use and name == "c1" else []
        body = {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"devices": {"requests": [asks()]}},
            "status": {"allocation": allocation, "reservedFor": users},
        }
        world.see(msgspec.convert(body, o.ResourceClaim))
    for _ in range(5):
        world.now += 2
        world.engine.step(world.now)
    world.see(*(consumer(f"p{name}", name, group=group) for name in ("c1", "c2"))).run()
    assert sorted(world.bound) == ["pc1", "pc2"]
    assert sorted(world.devices("c1") + world.devices("c2")) == ["a/d0", "a/d1"]
    assert not in_use or world.devices("c1") == ["a/d0"]


def test_a_driver_that_never_prepares_a_device_gives_it_back_after_the_time_limit() -> None:
    waits = {**device("d0"), "bindingConditions": ["prepared"], "bindingFailureConditions": ["broken"]}
    world = World(device_node("a"), published("a", waits), claim("c"), consumer("p", "c"))
    world.run(20)
    assert "p" not in world.bound and world.devices("c") == ["a/d0"]  # allocated, and not bound
    (placed,) = why(world.engine.scheduler, "Pod", "default", "p").items
    assert "waiting for device d0 of claim c (condition prepared)" in placed.summary
    released: list[d.ReleaseClaim] = []
    said = ""
    for _ in range(320):  # more than 600 s, in steps of 2 s
        world.now += 2.0
        for decision in world.engine.step(world.now):
            if isinstance(decision, d.ReleaseClaim):
                released.append(decision)
            elif isinstance(decision, d.SetPodCondition):
                said += decision.message
            world._perform(decision)
        if released:
            break
    assert [each.name for each in released] == ["c"] and released[0].deallocate
    assert "timed out waiting for device d0 of claim c (condition prepared)" in said
    assert "p" not in world.bound
    world.gone("ResourceSlice", "a-0").see(device_node("b"), published("b", device("d0"))).run()
    assert world.bound["p"] == "b"  # the claim is free again


def test_a_device_that_fails_to_prepare_is_given_back_at_once() -> None:
    waits = {**device("d0"), "bindingConditions": ["prepared"], "bindingFailureConditions": ["broken"]}
    world = World(device_node("a"), published("a", waits), claim("c"), consumer("p", "c"))
    world.run(5)
    held = world.objects["ResourceClaim", "c"]
    condition = {"type": "broken", "status": "True"}
    failed = {"driver": DRIVER, "pool": "a", "device": "d0", "conditions": [condition]}
    status = msgspec.convert({**msgspec.to_builtins(held.status), "devices": [failed]}, type(held.status))
    world.see(msgspec.structs.replace(held, status=status))
    world.run(1)
    assert world.devices("c") == []
    world.gone("ResourceSlice", "a-0").see(device_node("b"), published("b", device("d0"))).run(30)
    assert world.bound["p"] == "b"


def test_a_device_that_is_never_ready_is_tried_by_the_next_pod_after_the_time_limit() -> None:
    waits = {**device("d0"), "bindingConditions": ["prepared"]}
    world = World(device_node("a"), published("a", waits))
    world.see(*(claim(name) for name in "cd"), consumer("first", "c"), consumer("second", "d"))
    world.run(20)
    assert world.devices("c") == ["a/d0"] and not world.devices("d")
    for _ in range(700):
        world.now += 1.0 if world.devices("c") and world.now < 1595.0 else 0.1
        for decision in world.engine.step(world.now):
            world._perform(decision)
            if isinstance(decision, d.SetPodCondition):  # the API server shows the condition, as a new version
                pod = world.objects["Pod", decision.name]
                world.see(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Pending")))
    assert world.devices("d") == ["a/d0"] and not world.devices("c")
