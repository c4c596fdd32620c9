"""What the engine says about itself: the right reason, the right remedy, and no trace of having been asked."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.cli.scheduler_client import Colours
from phalanx.cli.why import render
from phalanx.engine.explain import Unknown, why
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.testing.builders import composite, node, pod, pod_group, workload
from support.asked_engine import Asked, racks


def texts(item: object, fits: bool | None = True) -> list[str]:
    return [relaxation.text for relaxation in item.relaxations if relaxation.fits is fits]  # type: ignore[attr-defined]


def test_a_gang_too_large_for_a_rack_names_rack_shortage_and_remedies() -> None:
    run = Asked().see(*racks(), pod_group("g").gang(3).topology("rack"))
    run.see(*(pod(f"g-{i}").cpu("3").group("g") for i in range(3)))
    run.step()
    item = run.why("PodGroup", "g")
    assert not item.scheduled
    assert item.summary == run.last_message("g")
    assert "needs 3 pods in one rack; best rack r0 fits 2 (limited by cpu)" in item.summary
    assert item.last is not None and item.last.result == "impossible"
    proof = item.last.proof
    assert proof is not None
    assert (proof.key, proof.best, proof.needed, proof.fits, proof.limiting) == ("rack", "r0", 3, 2, "cpu")
    assert texts(item) == [
        "rack→block fits now",
        "minCount 2 instead of 3 fits now",
        "1 more free node like n0 in rack r0 would do",
    ]
    assert all(relaxation.checked for relaxation in item.relaxations)


def test_a_remedy_that_is_promised_really_works() -> None:
    for change in ("block", "nodes", "members"):
        run = Asked().see(*racks(), pod_group("g").gang(3).topology("rack"))
        run.see(*(pod(f"g-{i}").cpu("3").group("g") for i in range(3)))
        run.step()
        if change == "block":
            run.see(pod_group("g").gang(3).topology("block"))
        elif change == "members":
            run.see(pod_group("g").gang(2).topology("rack"))
        else:
            run.see(node("extra").cpu("4").label("rack", "r0").label("block", "b0"))
        run.step()
        item = run.why("PodGroup", "g")
        assert item.scheduled, change
        assert item.summary.startswith("PodGroup g is scheduled")


def test_the_smallest_number_of_nodes_is_found_beyond_one() -> None:
    run = Asked().see(*racks(2), pod_group("g").gang(9))
    run.see(*(pod(f"g-{i}").cpu("4").group("g") for i in range(9)))
    run.step()
    assert "7 more free nodes like n0 would do" in texts(run.why("PodGroup", "g"))


def test_the_filter_that_keeps_a_gang_out_is_named_and_lifting_it_helps() -> None:
    tainted = [node(f"t{i}").cpu("4").taint("team", "a") for i in range(2)]
    run = Asked().see(node("open").cpu("4"), *tainted, pod_group("g").gang(3))
    run.see(*(pod(f"g-{i}").cpu("3").group("g") for i in range(3))).step()
    assert "it would fit now if its pods tolerated the taint, on 2 more nodes" in texts(run.why("PodGroup", "g"))
    run.see(*(node(f"t{i}").cpu("4") for i in range(2))).step()
    assert run.why("PodGroup", "g").scheduled


def test_a_cordon_counts_as_one_reason_although_it_is_a_field_and_a_taint() -> None:
    closed = node("closed").cpu("4").unschedulable().taint("node.kubernetes.io/unschedulable")
    run = Asked().see(closed, pod_group("g").gang(1), pod("g-0").cpu("3").group("g"), pod("p").cpu("3"))
    run.step()
    assert "it would fit now without the cordon, on 1 more node" in texts(run.why("PodGroup", "g"))
    assert texts(run.why("Pod", "p")) == ["1 node (closed) would do without the cordon"]


def test_nodes_that_cannot_help_are_not_offered() -> None:
    run = Asked().see(node("small").cpu("2"), pod_group("g").gang(1))
    run.see(pod("g-0").cpu("4").group("g")).step()
    assert texts(run.why("PodGroup", "g")) == []


def test_a_gang_short_of_members_waits_and_says_how_many_are_missing() -> None:
    run = Asked().see(*racks(), pod_group("g").gang(3), pod("g-0").cpu("1").group("g"))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.queue is not None and item.queue.place == "gated" and item.queue.gate == "GangScheduling"
    assert "PodGroup g has 1 of 3 pods, 2 missing" in item.summary
    (level,) = item.levels
    assert (level.known, level.minimum, level.ready, level.reason) == (1, 3, False, "WaitingForMembers")
    assert item.relaxations == []


def test_a_pod_whose_group_was_never_made_says_which_object_it_waits_for() -> None:
    run = Asked().see(*racks(), pod("a").cpu("1").group("ghost"))
    run.step()
    item = run.why("Pod", "a")
    assert "waiting for PodGroup ghost to appear" in item.summary
    assert run.why("PodGroup", "ghost").summary == item.summary


def test_one_gated_member_holds_the_gang_and_is_named() -> None:
    run = Asked().see(*racks(), pod_group("g").gang(2))
    run.see(pod("g-0").cpu("1").group("g"), pod("g-1").cpu("1").group("g").gate("hold")).step()
    item = run.why("PodGroup", "g")
    assert item.queue is not None and "default/g-1" in item.queue.message
    assert item.levels[0].gated == 1


def test_a_tree_shows_every_level_and_the_one_where_it_dies() -> None:
    run = Asked().see(*racks(), composite("tree").gang(2).topology("block"))
    for name in ("a", "b"):
        run.see(pod_group(name).gang(3).topology("rack").parent("tree"))
        run.see(*(pod(f"{name}-{i}").cpu("3").group(name) for i in range(3)))
    run.step()
    item = run.why("CompositePodGroup", "tree")
    assert [(level.kind, level.name, level.depth) for level in item.levels] == [
        ("CompositePodGroup", "tree", 0),
        ("PodGroup", "a", 1),
        ("PodGroup", "b", 1),
    ]
    assert item.last is not None and item.last.proof is not None and item.last.proof.inner is not None
    assert item.last.proof.inner.key == "rack"
    assert run.why("PodGroup", "a").root == "compositepodgroup/default/tree"


def test_a_running_gang_says_in_which_domain_it_is() -> None:
    run = Asked().see(*racks(), pod_group("g").gang(2).topology("rack"))
    run.see(*(pod(f"g-{i}").cpu("3").group("g") for i in range(2))).step()
    item = run.why("PodGroup", "g")
    assert item.scheduled and item.levels[0].satisfied
    assert len(item.levels[0].domains) == 1
    assert {line.state for line in item.pods} == {"running"}
    assert run.why("Pod", "g-0").scheduled


def test_a_pod_without_a_group_gets_a_histogram_and_the_only_filter_that_rejects_it() -> None:
    run = Asked().see(
        node("full").cpu("1"), node("tainted").cpu("8").taint("team", "a"), node("wrong").cpu("8").label("disk", "hdd")
    )
    run.see(pod("p").cpu("4").select("disk", "ssd")).step()
    item = run.why("Pod", "p")
    assert item.summary == run.last_message("p")
    assert sum(reason.nodes for reason in item.node_reasons) == item.nodes == 3
    assert texts(item) == ["1 node (wrong) would do without its nodeSelector and node affinity"]
    assert item.queue is not None and item.queue.place == "waiting" and item.queue.attempts == 1


def test_a_node_that_is_too_small_when_empty_is_not_said_to_lack_room() -> None:
    run = Asked().see(node("full").cpu("4"), node("small").cpu("2"), pod("there").cpu("3").node("full"))
    run.see(pod("p").cpu("4"), pod("huge").cpu("5")).step()
    assert texts(run.why("Pod", "p")) == ["1 node (full) would do after other pods there have ended"]
    assert texts(run.why("Pod", "huge")) == []


def test_a_workload_of_group_objects_shows_each_of_its_roots() -> None:
    run = Asked().see(*racks(), workload("w").template("t", {"gang": {"minCount": 2}}))
    for name, cpu in (("fits", "1"), ("waits", "9")):
        run.see(pod_group(name).gang(2).from_workload("w", "t"))
        run.see(*(pod(f"{name}-{i}").cpu(cpu).group(name) for i in range(2)))
    run.step()
    report = why(run.engine, "Workload", "default", "w")
    assert {item.name: item.scheduled for item in report.items} == {"fits": True, "waits": False}


def test_places_in_line_are_counted_before_any_pod_is_tried() -> None:
    run = Asked().see(node("n").cpu("1"))
    run.see(pod("later").cpu("1").priority(1), pod("first").cpu("1").priority(9), pod("second").cpu("1").priority(5))
    positions = {}
    for name in ("first", "second", "later"):
        queue = run.why("Pod", name).queue
        assert queue is not None
        positions[name] = queue.position
    assert positions == {"first": 1, "second": 2, "later": 3}


def test_implicit_groups_are_found_by_their_workload() -> None:
    run = Asked().see(*racks(2), workload("train").template("w", {"gang": {"minCount": 2}}))
    run.see(*(pod(f"{key}-{i}").cpu("3").workload("train", "w", key) for key in ("0", "1") for i in range(2)))
    run.step()
    report = why(run.engine, "Workload", "default", "train")
    assert {item.name: item.scheduled for item in report.items} == {"train/w/0": True, "train/w/1": False}
    assert not report.scheduled
    assert "needs 2 pods" in run.why("Workload", "train/w/1").summary


def test_unknown_objects_are_distinguished_from_pending_ones() -> None:
    run = Asked().see(*racks())
    for kind in ("Pod", "PodGroup", "CompositePodGroup", "Workload"):
        with pytest.raises(Unknown):
            why(run.engine, kind, "default", "nobody")


def test_a_plan_under_way_is_part_of_the_answer() -> None:
    run = Asked().see(*racks(2))
    run.see(*(pod(f"low-{i}").cpu("3").priority(1) for i in range(2))).step()
    run.see(pod_group("g").gang(2).topology("rack").priority(10))
    run.see(*(pod(f"g-{i}").cpu("3").group("g").priority(10) for i in range(2))).step()
    item = run.why("PodGroup", "g")
    assert item.preemption is not None
    assert item.preemption.victims == ["default/low-0", "default/low-1"]
    assert {line.nominated for line in item.pods} == {"n0", "n1"}
    run.gone("Pod", "low-0").gone("Pod", "low-1").step()
    assert run.why("PodGroup", "g").scheduled


def test_answers_are_json_and_the_same_each_time() -> None:
    run = Asked().see(*racks(), pod_group("g").gang(5).topology("rack"))
    run.see(*(pod(f"g-{i}").cpu("3").group("g") for i in range(5))).step()
    first = msgspec.json.encode(why(run.engine, "PodGroup", "default", "g"))
    assert first == msgspec.json.encode(why(run.engine, "PodGroup", "default", "g"))
    assert msgspec.json.decode(first)["items"][0]["last"]["proof"]["best"] == "r0"


@pytest.mark.parametrize("parents", [{"x": "x"}, {"x": "y", "y": "z", "z": "x"}])
def test_every_group_of_a_cycle_says_so(parents: dict[str, str]) -> None:
    run = Asked().see(*racks(), *(composite(name).gang(1).parent(parent) for name, parent in parents.items()))
    run.see(pod_group("leaf").gang(1).parent("x"), pod("p").cpu("1").group("leaf"))
    run.step()
    for kind, name in [*(("CompositePodGroup", name) for name in parents), ("PodGroup", "leaf"), ("Pod", "p")]:
        item = run.why(kind, name)
        assert not item.scheduled and "cyclic parents" in item.summary


def test_a_scheduled_child_does_not_report_that_it_waits_for_pods_of_its_sibling() -> None:
    run = Asked().see(*racks(), composite("root").gang(1))
    run.see(pod_group("a").gang(1).parent("root"), pod_group("b").gang(1).parent("root"))
    run.see(pod("a-0").cpu("1").group("a"), pod("b-0").cpu("99").group("b"))
    run.step()
    assert run.why("PodGroup", "a").summary.endswith("has a node (Running 1 of 1)")
    assert run.why("CompositePodGroup", "root").summary.endswith("; 1 more pod waits")


def test_a_member_for_another_scheduler_says_so_and_not_that_it_waits_for_others() -> None:
    run = Asked().see(*racks(), pod_group("g").gang(2), pod("g-0").cpu("1").group("g"))
    run.see(pod("g-1").cpu("1").group("g").scheduler("elsewhere"))
    run.step()
    item = run.why("Pod", "g-1")
    assert not item.scheduled
    assert item.summary == (
        "is for the scheduler elsewhere (spec.schedulerName), not for this one; PodGroup g does not count it"
    )


def test_members_are_listed_by_number_and_not_by_text() -> None:
    run = Asked().see(node("n").cpu("12"), pod_group("g").gang(11))
    run.see(*(pod(f"g-{number}").group("g").cpu("1") for number in range(11))).step()
    assert [line.name for line in run.why("PodGroup", "g").pods] == [f"g-{number}" for number in range(11)]


def test_pods_of_a_large_gang_that_are_not_listed_are_counted() -> None:
    run = Asked().see(node("n").cpu("1"), pod_group("g").gang(230))
    run.see(*(pod(f"g-{i}").cpu("1").group("g") for i in range(230))).step()
    item = run.why("PodGroup", "g")
    assert (len(item.pods), item.pod_count) == (200, 230)
    for wide in (False, True):
        assert render(item, Colours(on=False), wide=wide).endswith("and 30 more: kubectl get pods -n default")


def test_the_settings_of_a_group_are_shown_in_the_words_that_every_view_prints() -> None:
    group = pod_group("g").gang(1).disrupt_all().annotate("scheduling.phalanx.dev/preferred-topology", "rack")
    run = Asked().see(*racks(), group, pod("g-0").cpu("1").group("g"))
    run.step()
    item = run.why("PodGroup", "g")
    expected = ["prefers one rack", "disrupted as a whole"]
    assert item.levels[0].settings == expected
    (line,) = (line for line in render(item, Colours(False)).splitlines() if "PodGroup g (gang)" in line)
    assert all(text in line for text in expected)
    view = EngineReader(run.engine, lambda: 0.0).groups()["podgroup/default/g"]
    assert view["settings"] == expected
