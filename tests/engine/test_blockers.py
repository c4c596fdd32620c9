"""The commonest mistakes are named: a label that no node has, a request larger than any node, taints, cordons."""

from __future__ import annotations

import pytest

from phalanx.cli.scheduler_client import Paint
from phalanx.cli.why import render
from phalanx.testing.builders import node, pod, pod_group
from support.asked_engine import Asked


def cluster() -> Asked:
    return Asked().see(*(node(f"n{i}").cpu("64").gpu(8).label("gpu", "a100") for i in range(4)))


@pytest.mark.parametrize(
    ("waiting", "headline"),
    [
        (pod("p").select("gpu", "h100"), "No node has label gpu=h100 (nodeSelector; nodes have gpu=a100)"),
        (pod("p").select("disk", "ssd"), "No node has label disk=ssd (nodeSelector; no node has a label disk)"),
        (
            pod("p").gpu(16),
            "A pod asks for 16 nvidia.com/gpu; the largest node has 8: this can never fit on the nodes there are",
        ),
        (pod("p").gpu(1, "amd.com/gpu"), "No node offers amd.com/gpu"),
        (
            pod("p").node_affinity(("gpu", "In", ["h100", "h200"])),
            "No node matches the required node affinity: gpu In h100, h200",
        ),
    ],
)
def test_what_rules_out_every_node_is_the_headline(waiting: object, headline: str) -> None:
    run = cluster().see(waiting)
    run.step()
    item = run.why("Pod", "p")
    assert item.headline == headline
    assert render(item, Paint(on=False)).splitlines()[1] == f"  {headline}"


def test_every_blocker_is_named_not_only_the_first() -> None:
    run = cluster().see(pod("p").select("gpu", "a100").gpu(16).cpu("100"))
    run.step()
    texts = run.why("Pod", "p").blockers
    assert [text.split(";")[0] for text in texts] == ["a pod asks for 100 cpu", "a pod asks for 16 nvidia.com/gpu"]


def test_a_request_that_no_node_can_hold_is_named_beside_a_label_that_no_node_has() -> None:
    run = cluster().see(pod("p").select("gpu", "h100").gpu(16))
    run.step()
    assert run.why("Pod", "p").blockers == [
        "no node has label gpu=h100 (nodeSelector; nodes have gpu=a100)",
        "a pod asks for 16 nvidia.com/gpu; the largest node has 8: this can never fit on the nodes there are",
    ]


def test_taints_and_cordons_of_all_matching_nodes() -> None:
    run = Asked().see(node("n1").cpu("4").taint("team", "a", "NoSchedule"), pod("p").cpu("1"))
    run.step()
    assert run.why("Pod", "p").blockers == [
        "the only matching node has taint team=a:NoSchedule, which it does not tolerate"
    ]
    run = Asked().see(node("n1").cpu("4").unschedulable(), node("n2").cpu("4").unschedulable(), pod("p").cpu("1"))
    run.step()
    assert run.why("Pod", "p").blockers == ["all 2 matching nodes are cordoned; `kubectl uncordon NODE` opens one"]


def test_a_gang_larger_than_the_cluster_can_never_fit() -> None:
    run = cluster().see(pod_group("g").gang(5))
    run.see(*(pod(f"g-{i}").gpu(8).group("g") for i in range(5)))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.headline == (
        "5 pods ask for 40 nvidia.com/gpu; the 4 matching nodes have 32: this can never fit on the nodes there are"
    )


def test_a_gang_that_waits_for_room_says_how_much_there_is() -> None:
    run = cluster().see(pod("other").gpu(8).node("n0"))
    run.see(pod_group("g").gang(4), *(pod(f"g-{i}").gpu(8).group("g") for i in range(4)))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.headline == "Needs 4 pods at once; there is room for 3 (short of GPU)"
    assert item.blockers == []
    assert "pod group is unschedulable" not in render(item, Paint(on=False))
    assert "pod group is unschedulable" in render(item, Paint(on=False), wide=True)


def test_a_gang_without_its_members_says_how_many_are_missing() -> None:
    run = cluster().see(pod_group("g").gang(3), pod("g-0").cpu("1").group("g"))
    run.step()
    assert run.why("PodGroup", "g").headline == "Waits until pods are created: g has 1 of 3"
