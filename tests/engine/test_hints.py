"""Mistakes that look like waiting are reported: no schedulingGroup, a group in another namespace, whose pod it is.

And what is waited for is what is missing: not cpu where a label or the rack is the limit.
"""

from __future__ import annotations

import json

import pytest

from phalanx.cli.scheduler_client import Colours
from phalanx.cli.why import render
from phalanx.model.groups.expected_pods import CONTROLLERS, TO_COME
from phalanx.testing.builders import composite, node, pod, pod_group, workload_policy
from support.asked_engine import Asked, racks


def waits_for(run: Asked, kind: str, name: str) -> str:
    queue = run.why(kind, name).queue
    assert queue is not None
    return queue.waits_for[0]


def test_pods_that_look_like_members_but_name_no_group_are_reported() -> None:
    run = Asked().see(node("n1").cpu("8"), pod_group("train").gang(3), pod("train-0").cpu("1").group("train"))
    run.see(pod("train-1").cpu("100"), pod("web").cpu("1"))
    run.step()
    item = run.why("PodGroup", "train")
    assert item.hints == [
        "pods without spec.schedulingGroup look like members (train-1): a pod joins with"
        " schedulingGroup: {podGroupName: train} when it is created"
    ]
    assert f"  hint:       {item.hints[0]}" in render(item, Colours(on=False))
    (hint,) = run.why("Pod", "train-1").hints
    assert hint.startswith("PodGroup train lacks members and this pod looks like one")
    run.see(pod("train-2").cpu("1").group("train"), pod("train-3").cpu("1").group("train"))
    run.step()
    assert run.why("PodGroup", "train").hints == []  # no member is missing: pods of like names may be others


def test_a_group_in_another_namespace_is_reported_on_both_sides() -> None:
    run = Asked().see(node("n1").cpu("8"), pod_group("train").ns("team").gang(1), pod("a").cpu("1").group("train"))
    run.see(pod_group("far").gang(2), pod("b").ns("team").cpu("1").group("far"))
    run.step()
    assert run.why("Pod", "a").hints == [
        "there is a PodGroup train in namespace team: pods and their group share one namespace"
    ]
    assert run.why("PodGroup", "far").hints == [
        "pods in namespace team (b) name a PodGroup far there: pods and their group share one namespace"
    ]


def test_what_is_waited_for_is_what_is_missing() -> None:
    run = Asked().see(*racks(), pod_group("rack").gang(3).topology("rack"))
    run.see(*(pod(f"rack-{i}").cpu("3").group("rack") for i in range(3)))
    run.see(pod("label").cpu("1").select("disk", "ssd"), pod("large").cpu("99"))
    run.step()
    assert waits_for(run, "PodGroup", "rack") == "a rack has room for it"
    assert waits_for(run, "Pod", "large") == "a node has 99 cpu free"
    found = waits_for(run, "Pod", "label")
    assert found == "a node is added or changes"


@pytest.mark.parametrize(("minimum", "amount"), [(2, "99"), (1, "7")])
def test_the_child_that_can_never_fit_is_what_a_tree_waits_for(minimum: int, amount: str) -> None:
    """Unless the tree runs without it."""
    run = Asked().see(node("n1").cpu("8"), pod("used").cpu("2").node("n1"), composite("root").gang(minimum))
    for child, cpu in (("a", "7"), ("b", "99")):
        run.see(pod_group(child).gang(1).parent("root"), pod(f"{child}-0").cpu(cpu).group(child))
    run.step()
    for kind, name in (("CompositePodGroup", "root"), ("PodGroup", "a"), ("PodGroup", "b"), ("Pod", "a-0")):
        assert waits_for(run, kind, name) == f"a node has {amount} cpu free"


def test_a_pod_of_another_scheduler_names_it() -> None:
    run = Asked().see(node("n1").cpu("8"), pod_group("g").gang(2))
    run.see(pod("g-0").cpu("1").group("g"), pod("g-1").cpu("1").group("g").scheduler("volcano"))
    run.step()
    text = render(run.why("PodGroup", "g"), Colours(on=False))
    assert "g-1 waits: for the scheduler volcano (spec.schedulerName), not for this one" in text
    assert "foreign" not in text


def test_room_that_looks_free_and_is_kept_for_others_is_named() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    to_come = json.dumps({"size": 3, "template": {"metadata": {}, "spec": spec}})
    run = Asked().see(node("n").cpu("5"))
    run.see(pod_group("a").gang(1).annotate(TO_COME, to_come).written_by(CONTROLLERS, TO_COME))
    run.see(pod("a-0").group("a").cpu("1")).step()
    run.see(pod("b").cpu("1")).step()
    assert run.placed == {"a-0": "n"}
    assert run.why("Pod", "b").hints == ["room on n is kept for 2 pods to come of group a"]
    run.see(pod_group("g").gang(1), pod("g-0").group("g").cpu("1")).step()
    assert run.why("PodGroup", "g").hints == ["room on n is kept for 2 pods to come of group a"]


def test_members_that_cannot_end_on_a_node_that_does_not_respond_are_named() -> None:
    """Seen: a gang waited for two replacements while no kubelet confirmed the end of the old pods on a failed node."""
    lost = node("n1").cpu("8").taint("node.kubernetes.io/unreachable", effect="NoExecute")
    run = Asked().see(lost, node("n2").cpu("8"), pod_group("train").gang(3))
    run.see(pod("train-0").cpu("1").group("train").node("n1").deleting(), pod("train-1").cpu("1").group("train"))
    run.step()
    (hint,) = run.why("PodGroup", "train").hints
    assert hint.startswith("train-0 cannot end because node n1 does not respond")
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in hint
    run.see(node("n1").cpu("8"))
    run.step()
    assert run.why("PodGroup", "train").hints == []


def test_a_policy_with_a_wrong_value_is_named() -> None:
    run = Asked().see(node("n1").cpu("4"), pod_group("g").gang(2), pod("g-0").cpu("1").group("g"))
    run.see(workload_policy("p").target("PodGroup", "g").set(counts={"min": 9, "max": 3}))
    run.step()
    (hint,) = run.why("PodGroup", "g").hints
    assert hint.startswith("WorkloadPolicy p: spec.counts.min: 9 is more than max, which is 3; such values are ignored")
