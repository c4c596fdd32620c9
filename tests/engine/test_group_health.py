"""The state of a group, and the condition scheduling.phalanx.dev/Healthy that says it."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.cli.scheduler_client import Colours
from phalanx.cli.why import render
from phalanx.engine import decisions as d
from phalanx.engine.explain import why
from phalanx.model.groups import GroupKey
from phalanx.model.objects.pod import PodCondition
from phalanx.testing.builders import composite, gang, node, pod, pod_group
from phalanx.testing.cluster import Cluster

HEALTHY = "scheduling.phalanx.dev/Healthy"


def healthy(cluster: Cluster, name: str = "g", kind: str = "PodGroup") -> tuple[str, str, str]:
    conditions = cluster.objects[kind][name].status.conditions or ()
    return next(((c.status, c.reason, c.message) for c in conditions if c.type == HEALTHY), ("", "", ""))


def running(size: int = 3) -> Cluster:
    cluster = Cluster().see(node("n").cpu("8"), *gang("g", size))
    cluster.step()
    assert healthy(cluster)[:2] == ("True", "Running")
    return cluster


def test_a_gang_waits_for_members_then_for_room_then_runs() -> None:
    cluster = Cluster().see(pod_group("g").gang(2), pod("a").group("g").cpu("1"))
    cluster.step()
    assert healthy(cluster) == ("False", "Waiting", "0 of 2 pods have a node, 2 are needed")
    cluster.see(pod("b").group("g").cpu("1"))
    cluster.step()
    assert healthy(cluster)[:2] == ("False", "Scheduling")
    cluster.see(node("n").cpu("8"))
    cluster.step(30)
    assert healthy(cluster) == ("True", "Running", "2 of 2 pods have a node")


def test_a_gang_below_its_minimum_is_degraded_and_says_which_member_was_lost_and_why() -> None:
    cluster = running()
    lost = cluster.pods["g-1"]
    conditions = [PodCondition(type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI")]
    cluster.see(msgspec.structs.replace(lost, status=msgspec.structs.replace(lost.status, conditions=conditions)))
    cluster.update("g-1", ending=True)
    cluster.step()
    assert healthy(cluster) == ("False", "Degraded", "2 of 3 pods have a node, 3 are needed; lost: g-1 (drained)")
    cluster.gone("Pod", "g-1")
    cluster.step(5)
    assert healthy(cluster)[1] == "Degraded"
    assert cluster.condition("g")[:2] == ("True", "Scheduled")  # KEP-4671: initially scheduled, for good
    cluster.see(pod("again").group("g").cpu("1"))
    cluster.step(5)
    assert healthy(cluster) == ("True", "Running", "3 of 3 pods have a node")


def test_a_member_that_is_rejected_by_the_kubelet_is_distinguished_from_one_that_failed() -> None:
    cluster = running()
    for name, reason in (("g-0", "OutOfcpu"), ("g-1", "")):
        found = cluster.pods[name]
        status = msgspec.structs.replace(found.status, phase="Failed", reason=reason)
        cluster.see(msgspec.structs.replace(found, status=status))
    cluster.step(5)
    assert "lost: g-0 (rejected by the kubelet OutOfcpu); g-1 (failed)" in healthy(cluster)[2]


def test_a_lost_node_is_a_cause() -> None:
    cluster = running()
    cluster.gone("Node", "n")
    cluster.gone("Pod", "g-2")
    cluster.step(5)
    assert "g-2 (node lost (n))" in healthy(cluster)[2]


def test_a_preempted_gang_is_preempting_then_preempted_and_names_the_preemptor() -> None:
    cluster = Cluster(grace=True).see(node("n").cpu("3"), *gang("g", 3), pod_group("g").gang(3).disrupt_all())
    cluster.step()
    high = [pod(f"h-{n}").group("h").cpu("1").priority(1000) for n in range(2)]
    cluster.see(pod_group("h").gang(2).priority(1000).owner("Job", "hotfix", api_version="batch/v1"), *high)
    cluster.step(5)
    assert healthy(cluster)[:2] == ("False", "Preempting")
    event = cluster.of(d.Evict)[0]
    assert event.event_message == "Preempted by podgroup h (Job hotfix, priority 1000)"
    cluster.finish()
    cluster.step(5)
    status, reason, message = healthy(cluster)
    assert (status, reason) == ("False", "Preempted")
    assert "lost: 3 pods preempted by PodGroup h (Job hotfix, priority 1000): g-0, g-1, g-2" in message
    (item,) = why(cluster.engine, "PodGroup", "default", "g").items
    assert "  lost:       3 pods preempted by PodGroup h" in render(item, Colours())
    assert cluster.engine.groups.members.health.losses.remembered == 0  # no pod of them is left


def test_children_of_a_preempted_root_are_targets_too() -> None:
    cluster = Cluster(grace=True).see(
        node("n").cpu("2"),
        composite("tree").gang(2).disrupt_all(),
        *(pod_group(name).gang(1).parent("tree").disrupt_all() for name in ("a", "b")),
        *(pod(f"{name}-0").group(name).cpu("1") for name in ("a", "b")),
    )
    cluster.step()
    assert healthy(cluster, "tree", "CompositePodGroup") == (
        "True",
        "Running",
        "2 of 2 child groups have their minimum",
    )
    cluster.see(pod("high").cpu("2").priority(10))
    cluster.step(5)
    targets = {each.name for each in cluster.of(d.SetGroupCondition) if each.type == "DisruptionTarget"}
    assert targets == {"tree", "a", "b"}
    assert healthy(cluster, "tree", "CompositePodGroup")[1] == "Preempting"
    assert healthy(cluster, "a")[1] == "Preempting"


def test_a_tree_that_runs_without_one_of_its_gangs_still_names_the_lost_members_of_that_gang() -> None:
    cluster = Cluster().see(node("n").cpu("8"), composite("tree"))
    for name in ("a", "b"):
        cluster.see(pod_group(name).gang(2).parent("tree"), *(pod(f"{name}-{n}").group(name).cpu("1") for n in (0, 1)))
    cluster.step()
    cluster.update("b-1", phase="Failed").step(5)
    cluster.gone("Pod", "b-1").step(5)
    cluster.see(pod("extra").group("b").cpu("9")).step(5)  # written again
    assert healthy(cluster, "tree", "CompositePodGroup")[:2] == ("True", "Running")
    assert healthy(cluster, "b")[1:] == ("Degraded", "1 of 2 pods have a node, 2 are needed; lost: b-1 (failed)")
    cluster.see(pod("again").group("b").cpu("1"))
    cluster.step(5)
    assert healthy(cluster, "b") == ("True", "Running", "2 of 3 pods have a node")


def test_a_gang_whose_pods_have_succeeded_is_completed() -> None:
    cluster = running(2)
    cluster.update("g-0", phase="Succeeded").update("g-1", phase="Succeeded")
    cluster.step(5)
    assert healthy(cluster)[:2] == ("True", "Completed")


def test_a_gang_with_no_pod_on_a_node_is_never_called_running() -> None:
    cluster = running(2)
    cluster.gone("Pod", "g-0").gone("Pod", "g-1")
    cluster.step(5)
    assert healthy(cluster)[:2] == ("False", "Waiting")
    cluster.see(*(pod(f"new-{n}").group("g").cpu("100") for n in range(2)))
    cluster.step(5)
    assert healthy(cluster)[:2] == ("False", "Scheduling")


def test_pods_that_come_one_by_one_do_not_cost_a_write_each() -> None:
    cluster = Cluster().see(node("n").cpu("64"), pod_group("g"))
    for number in range(20):
        cluster.see(pod(f"p{number}").group("g").cpu("1"))
        cluster.step(0.01)
    assert len([each for each in cluster.of(d.SetGroupCondition, "g") if each.type == HEALTHY]) <= 2
    cluster.step(5)
    assert healthy(cluster)[2] == "20 of 20 pods have a node"


def test_a_new_scheduler_process_writes_nothing_that_is_written_already() -> None:
    cluster = running()
    cluster.log.clear()
    cluster.restart()
    cluster.step(5)
    assert cluster.of(d.SetGroupCondition) == []
    group = cluster.engine.cluster.forest.group(GroupKey("PodGroup", "default", "g"))
    assert group is not None
    assert str(cluster.engine.groups.members.health.state(group)) == "Running 3 of 3"


def health_writes(cluster: Cluster, name: str) -> list[str]:
    return [each.reason for each in cluster.of(d.SetGroupCondition, name) if each.type == HEALTHY]


def test_gangs_that_are_placed_within_a_second_are_never_called_scheduling() -> None:
    cluster = Cluster().see(node("n").cpu("8"), *gang("a", 3), *gang("b", 3))
    cluster.step(limit=1)  # one in each round
    assert health_writes(cluster, "a") == health_writes(cluster, "b") == ["Running"]


def test_a_gang_that_is_not_tried_for_a_second_is_called_scheduling() -> None:
    cluster = Cluster().see(node("n").cpu("8"), *gang("g", 2))
    assert cluster.engine.step(cluster.now, limit=0) == []
    said = cluster.engine.step(cluster.now + 1, limit=0)
    assert [(each.reason, each.message) for each in said if isinstance(each, d.SetGroupCondition)] == [
        ("Scheduling", "0 of 2 pods have a node, 2 are needed")
    ]
    cluster.step(2)
    assert health_writes(cluster, "g") == ["Running"]


def test_writes_that_only_change_counts_are_made_in_the_order_of_their_times() -> None:
    cluster = Cluster().see(node("n").cpu("64"), *gang("a", 2))
    start = cluster.now
    cluster.step(0)
    cluster.see(*gang("b", 2))
    cluster.step(0.5)
    for name, seconds in (("b", 0.1), ("a", 0.3)):  # b changes first, and its write is due after that of a
        cluster.see(pod(f"{name}-more").group(name).cpu("1"))
        cluster.step(seconds)
    assert healthy(cluster, "a")[2] == healthy(cluster, "b")[2] == "2 of 2 pods have a node"
    assert cluster.engine.next_wake() == start + 1
    cluster.step(0.2)
    assert healthy(cluster, "a")[2] == "3 of 3 pods have a node"
    assert healthy(cluster, "b")[2] == "2 of 2 pods have a node"
    cluster.step(0.5)
    assert healthy(cluster, "b")[2] == "3 of 3 pods have a node"


def test_preempted_pods_without_a_group_are_not_remembered() -> None:
    cluster = Cluster(grace=True).see(node("n").cpu("1"), pod("low").cpu("1"))
    cluster.step()
    cluster.see(pod("high").cpu("1").priority(9))
    cluster.step(5)
    assert [decision.name for decision in cluster.of(d.Evict)] == ["low"]
    assert cluster.engine.groups.members.health.losses.remembered == 0


def test_why_names_the_restart_of_a_jobset_and_both_revisions_of_a_stateful_set_that_rolls() -> None:
    attempt, revision = "jobset.sigs.k8s.io/restart-attempt", "controller-revision-hash"
    cluster = Cluster().see(node("n").cpu("8"), pod_group("js").gang(2), pod_group("sts").gang(2))
    for number, (restart, hashed) in enumerate([("0", "a"), ("0", "a"), ("1", "b")]):
        cluster.see(pod(f"js-{number}").group("js").cpu("1").label(attempt, restart))
        cluster.see(pod(f"sts-{number}").group("sts").cpu("1").label(revision, hashed))
        cluster.step()
        if number == 1:
            assert settings(cluster, "js") == settings(cluster, "sts") == []
    assert settings(cluster, "js") == ["restart attempts 0 and 1"]
    assert settings(cluster, "sts") == ["revisions a and b"]
    for name in ("js-0", "js-1", "sts-0", "sts-1"):
        cluster.gone("Pod", name)
    cluster.step()
    assert (settings(cluster, "js"), settings(cluster, "sts")) == (["restart attempt 1"], [])


def settings(cluster: Cluster, name: str) -> list[str]:
    return why(cluster.engine, "PodGroup", "default", name).items[0].levels[0].settings


def test_a_gang_that_lost_its_members_to_preemption_one_by_one_is_preempted() -> None:
    cluster = Cluster(grace=True).see(node("n").cpu("4"), pod_group("g").gang(4), *gang_members(4))
    cluster.step()
    cluster.see(pod("high").cpu("4").priority(100))
    cluster.step()
    assert len(cluster.evicted) == 4
    cluster.step(2)
    assert healthy(cluster)[1] == "Preempting"
    cluster.finish()
    cluster.step(2)
    assert healthy(cluster)[1] == "Preempted" and "preempted by Pod high" in healthy(cluster)[2]
    cluster.see(*gang_members(4, "again"))
    cluster.step(2)
    assert healthy(cluster)[1] == "Preempted", "until it runs again"
    restarted = Cluster().see(*cluster.objects["Node"].values(), *cluster.objects["PodGroup"].values())
    restarted.see(pod("high").cpu("4").priority(100).node("n"), *gang_members(4, "again"))
    restarted.step(2)
    assert healthy(restarted)[1] == "Preempted", "a new process does not know the losses"
    restarted.gone("Pod", "high")
    restarted.step(5)
    assert healthy(restarted) == ("True", "Running", "4 of 4 pods have a node")


def gang_members(size: int, prefix: str = "g") -> list[Any]:
    return [pod(f"{prefix}-{n}").group("g").cpu("1") for n in range(size)]


def test_every_group_of_an_invalid_tree_is_invalid_until_it_is_corrected() -> None:
    cluster = Cluster().see(
        node("n").cpu("4"),
        composite("tree").gang(2).priority(10),
        pod_group("a").gang(1).parent("tree").priority(10),
        pod_group("b").gang(1).parent("tree").priority(1000),
        *(pod(name).group(name).cpu("1").priority(1000 if name == "b" else 10) for name in "ab"),
    )
    cluster.step(5)
    assert {healthy(cluster, name)[1] for name in "ab"} == {"Invalid"}
    assert healthy(cluster, "tree", "CompositePodGroup")[1] == "Invalid"
    cluster.see(pod_group("b").gang(1).parent("tree").priority(10), pod("b").group("b").cpu("1").priority(10))
    cluster.step(5)
    assert {healthy(cluster, name)[1] for name in "ab"} == {"Running"}
