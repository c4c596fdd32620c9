"""Where plain pods go, and what people read when there is no place."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.verdicts import binds, no_victims, not_helpful


def test_a_pod_is_bound_to_a_node_with_room():
    run = Cluster().see(node("full").cpu("1"), node("free").cpu("4"), pod("a").cpu("2"))
    assert binds(run.step()) == {"a": "free"}


def test_equal_nodes_are_taken_in_the_order_they_arrived():
    run = Cluster().see(node("zz").cpu("4"), node("aa").cpu("4"), pod("a").cpu("1"), pod("b").cpu("1"))
    assert binds(run.step()) == {"a": "zz", "b": "aa"}


def test_a_node_is_filled_exactly_and_not_beyond():
    run = Cluster().see(node("n").cpu("2").mem("4Gi"), *(pod(f"p{i}").cpu("1").mem("2Gi") for i in range(2)))
    assert len(binds(run.step())) == 2
    run.see(pod("late").mem("1Mi"))
    run.step()
    assert run.messages("late") == [no_victims("0/1 nodes are available: 1 Insufficient memory.")]


def test_every_reason_is_counted_and_sorted_as_text():
    run = Cluster().see(
        node("tainted").taint("k", "v"),
        node("cordoned").unschedulable(),
        *(node(f"small{i}").cpu("1").mem("1Gi") for i in range(10)),
        pod("big").cpu("8").mem("2Gi"),
    )
    run.step()
    assert run.messages("big") == [
        not_helpful(
            "0/12 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, "
            "10 Insufficient cpu, 10 Insufficient memory."
        )
    ]


def test_without_nodes_the_message_says_so():
    run = Cluster().see(pod("a"))
    run.step()
    assert run.messages("a") == ["no nodes available to schedule pods"]


def test_the_verdict_is_written_once_as_condition_and_event():
    run = Cluster().see(node("n").cpu("1"), pod("a").cpu("2"))
    first = run.step()
    assert [type(each) for each in first] == [d.SetPodCondition, d.RecordEvent]
    assert isinstance(first[1], d.RecordEvent) and first[1].reason == "FailedScheduling" and first[1].type == "Warning"
    run.see(node("n").cpu("1").label("x", "y"))
    assert run.step(400.0) == []


def test_the_verdict_is_written_again_when_it_changes():
    run = Cluster().see(node("n").cpu("1"), pod("a").cpu("2"))
    run.step()
    run.see(node("m").cpu("1"))
    run.step(400.0)
    assert run.messages("a")[-1] == not_helpful("0/2 nodes are available: 2 Insufficient cpu.")


def test_the_pod_count_limit_holds():
    run = Cluster().see(node("n").pods(2), *(pod(f"p{i}").cpu("100m") for i in range(3)))
    assert len(binds(run.step())) == 2
    assert run.messages("p2") == [no_victims("0/1 nodes are available: 1 Too many pods.")]


def test_extended_resources_are_counted_in_units():
    run = Cluster().see(node("plain"), node("gpus").gpu(2), *(pod(f"g{i}").gpu(1) for i in range(3)))
    assert list(binds(run.step()).values()) == ["gpus", "gpus"]
    assert run.messages("g2") == [
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: "
        "1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
    ]


@pytest.mark.parametrize("allocatable", [0, -5, "-3", "nonsense", "", "1e999", 10**30])
def test_nonsense_allocatable_offers_nothing_and_breaks_nothing(allocatable):
    run = Cluster().see(
        node("odd").resource("cpu", allocatable), node("good").cpu("1"), pod("a").cpu("1"), pod("b").cpu("1")
    )
    placed = binds(run.step())
    if allocatable == 10**30:
        assert set(placed) == {"a", "b"}
    else:
        assert placed == {"a": "good"}


def test_tolerations_open_tainted_nodes():
    run = Cluster().see(
        node("n1").taint("k", "v"),
        pod("plain"),
        pod("tolerant").tolerate("k", "v", "NoSchedule"),
        pod("exists").tolerate("k", operator="Exists"),
        pod("all").tolerate(operator="Exists"),
        pod("other").tolerate("k", "w", "NoSchedule"),
    )
    assert set(binds(run.step())) == {"tolerant", "exists", "all"}


def test_prefer_no_schedule_is_soft():
    run = Cluster().see(node("n1").taint("k", "v", "PreferNoSchedule"), node("n2"), pod("p"))
    assert binds(run.step()) == {"p": "n2"}
    run.see(node("n2").unschedulable(), pod("q"))
    assert binds(run.step()) == {"q": "n1"}


def test_node_affinity_operators():
    run = Cluster().see(
        node("n1").label("gen", "3").label("disk", "ssd"),
        node("n2").label("gen", "5"),
        node("n3"),
        pod("gt").node_affinity(("gen", "Gt", ["4"])),
        pod("nokey").node_affinity(("gen", "DoesNotExist", [])),
        pod("ored").node_affinity(("disk", "In", ["nvme"])).node_affinity(("disk", "In", ["ssd"])),
        pod("anded").select("disk", "ssd").node_affinity(("gen", "NotIn", ["3"])),
        pod("field").node_affinity(fields=[("metadata.name", "In", ["n3"])]),
    )
    placed = binds(run.step())
    assert placed["gt"] == "n2" and placed["nokey"] == "n3" and placed["field"] == "n3"
    assert "anded" not in placed
    assert run.messages("anded") == [
        not_helpful("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")
    ]


def test_preferred_node_affinity_wins_over_emptiness():
    run = Cluster().see(
        node("n1"), node("n2").label("disk", "ssd"), pod("p").cpu("1").prefer_node(100, ("disk", "In", ["ssd"]))
    )
    assert binds(run.step()) == {"p": "n2"}


def test_host_ports_are_given_out_once_per_node():
    run = Cluster().see(node("n"), pod("a").port(80), pod("b").port(80), pod("c").port(80, "UDP"), pod("d").port(81))
    assert set(binds(run.step())) == {"a", "c", "d"}
    assert run.messages("b") == [
        no_victims("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.")
    ]
    run.gone("Pod", "a")
    assert binds(run.step()) == {"b": "n"}


def test_the_wildcard_address_clashes_with_every_address():
    run = Cluster().see(
        node("n"), pod("a").port(80, host_ip="10.0.0.1"), pod("b").port(80, host_ip="10.0.0.2"), pod("c").port(80)
    )
    assert set(binds(run.step())) == {"a", "b"}


def test_images_attract_pods():
    size = 900 * 1024 * 1024
    run = Cluster().see(node("n1"), node("n2").image(size, "big:1"), pod("p").image("big:1"))
    assert binds(run.step()) == {"p": "n2"}


def test_pods_of_other_schedulers_are_left_alone_but_count_once_bound():
    run = Cluster().see(node("n").cpu("2"), pod("theirs").cpu("2").scheduler("other"))
    assert run.step() == []
    run.see(pod("theirs").cpu("2").scheduler("other").node("n"), pod("ours").cpu("1"))
    assert binds(run.step()) == {}
    run.gone("Pod", "theirs")
    assert binds(run.step()) == {"ours": "n"}


def test_finished_pods_give_their_room_back():
    run = Cluster().see(node("n").cpu("1"), pod("a").cpu("1"), pod("b").cpu("1"))
    assert binds(run.step()) == {"a": "n"}
    run.see(pod("a").cpu("1").node("n").phase("Succeeded"))
    assert binds(run.step()) == {"b": "n"}


def test_a_label_key_that_no_pod_asked_for_costs_no_column():
    run = Cluster().see(*(node(f"n{i}").label(f"key{i}", "v") for i in range(50)), pod("a").select("key7", "v"))
    assert binds(run.step()) == {"a": "n7"}
    assert set(run.engine.columns.labels) <= {"key7", "kubernetes.io/hostname", "topology.kubernetes.io/zone"}
