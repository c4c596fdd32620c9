"""Nodes that come one by one for a gang that waits are reserved for it as long as it can still be completed."""

from __future__ import annotations

from phalanx.engine import decisions as d
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- reservations: {%s}
"""


def waiting(size: int = 6, *, nodes: int = 0, settings: str = "", topology: str = "") -> Cluster:
    """A gang that lacks nodes, and `nodes` full nodes."""
    run = Cluster(config=CONFIG % settings).see(*(node(f"full{i}").cpu(1) for i in range(nodes)))
    run.see(*(pod(f"busy{i}").cpu(1).created(run.now) for i in range(nodes))).step()
    group = pod_group("gang").gang(size)
    run.see(group.topology(topology) if topology else group)
    run.see(*(pod(f"gang-{i}").cpu(1).group("gang").created(run.now) for i in range(size))).step()
    return run


def plain(run: Cluster, name: str, priority: int = 0) -> None:
    run.see(pod(name).cpu(1).priority(priority).created(run.now))


def placed(run: Cluster) -> int:
    return sum(name.startswith("gang-") for name in run.placed)


def test_plain_pods_that_arrive_between_new_nodes_do_not_take_the_room_of_a_gang() -> None:
    for nodes in (0, 10):
        run = waiting(nodes=nodes)
        for number in range(6):
            plain(run, f"plain{number}")
            run.see(node(f"new{number}").cpu(1)).step(5.0)
        run.step(1.0)
        assert placed(run) == 6
        assert not any(name.startswith("plain") for name in run.placed)
        run.see(node("more").cpu(1)).step(5.0)
        assert sum(name.startswith("plain") for name in run.placed) == 1, "nothing is reserved any more"


def test_a_node_that_becomes_usable_again_is_reserved_as_well() -> None:
    run = waiting(2)
    run.see(node("a").cpu(1).unschedulable(), node("b").cpu(1).taint("repair")).step()
    plain(run, "plain")
    run.see(node("a").cpu(1)).step(5.0)
    assert "plain" not in run.placed
    run.see(node("b").cpu(1)).step(5.0)
    assert placed(run) == 2


def test_it_says_which_nodes_are_reserved_and_until_when() -> None:
    run = waiting(3)
    run.see(node("a").cpu(1)).step(1.0)
    text = run.engine.starts.text(run.engine.queue.units["podgroup/default/gang"])
    assert text == "reserved a for 1 of 3 pods until 1970-01-01T00:21:41Z, in case more nodes come"
    plain(run, "plain")
    run.step()
    assert "Room is reserved for PodGroup default/gang" in run.message("plain")


def test_the_nodes_are_free_when_no_more_come() -> None:
    run = waiting(3, settings="nodesToComeSeconds: 60")
    run.see(node("a").cpu(1)).step(1.0)
    plain(run, "plain")
    run.step(50.0)
    assert "plain" not in run.placed
    run.step(20.0)
    run.step(20.0)
    assert "plain" in run.placed
    plain(run, "later")
    run.see(node("b").cpu(1)).step(1.0)
    assert "later" in run.placed, "it had its time: a gang that is never complete does not hold every new node"


def test_without_the_setting_new_nodes_are_for_any_pod() -> None:
    run = waiting(3, settings="nodesToComeSeconds: 0")
    plain(run, "plain")
    run.see(node("a").cpu(1)).step(5.0)
    assert "plain" in run.placed


def test_pods_that_waited_before_the_gang_and_pods_of_higher_priority_use_new_nodes() -> None:
    run = Cluster()
    plain(run, "older")
    run.step(10.0)
    run.see(pod_group("gang").gang(2))
    run.see(*(pod(f"gang-{i}").cpu(1).group("gang").created(run.now) for i in range(2))).step()
    run.see(node("a").cpu(1)).step(5.0)
    assert "older" in run.placed
    plain(run, "urgent", priority=10)
    run.see(node("b").cpu(1)).step(5.0)
    assert "urgent" in run.placed
    plain(run, "younger")
    for name in ("c", "d"):
        run.see(node(name).cpu(1)).step(5.0)
    assert placed(run) == 2 and "younger" not in run.placed


def test_only_nodes_of_one_domain_are_reserved_for_a_gang_that_must_stay_together() -> None:
    run = waiting(2, topology="rack")
    run.see(node("a").cpu(1).label("rack", "r1")).step(1.0)
    run.see(node("elsewhere").cpu(1)).step(1.0)
    plain(run, "plain")
    run.step(1.0)
    assert run.placed["plain"] == "elsewhere"
    run.see(node("b").cpu(1).label("rack", "r1")).step(1.0)
    assert placed(run) == 2


def test_nothing_is_reserved_on_a_node_that_the_gang_cannot_use() -> None:
    run = waiting(2)
    run.see(node("small").cpu("500m")).step(1.0)
    run.see(pod("plain").cpu("500m").created(run.now)).step(1.0)
    assert run.placed["plain"] == "small"


def test_nodes_that_were_there_when_the_scheduler_started_are_not_reserved() -> None:
    run = Cluster().see(*(node(f"n{i}").cpu(1) for i in range(4)))
    run.see(pod_group("gang").gang(6), *(pod(f"gang-{i}").cpu(1).group("gang").created(run.now) for i in range(6)))
    plain(run, "plain")
    run.step()
    assert "plain" in run.placed
    run.restart()
    plain(run, "another")
    run.step(1.0)
    assert "another" in run.placed


def test_a_deleted_gang_holds_no_node() -> None:
    run = waiting(2)
    run.see(node("a").cpu(1)).step(1.0)
    plain(run, "plain")
    for number in range(2):
        run.gone("Pod", f"gang-{number}")
    run.gone("PodGroup", "gang").step(1.0)
    run.step(1.0)
    assert "plain" in run.placed and not run.engine.nominations


def test_a_gang_whose_nominated_node_grows_is_counted_there_once() -> None:
    """Found by a random life: the step failed with a KeyError."""
    run = Cluster(grace=True).see(*(node(f"n{i}").cpu(4) for i in range(2)))
    run.see(*(pod(f"old{i}").cpu(4) for i in range(2))).step()
    run.see(pod_group("gang").gang(2).priority(9))
    run.see(*(pod(f"gang-{i}").group("gang").cpu(3).priority(9) for i in range(2))).step()
    assert {evict.name for evict in run.of(d.Evict)} == {"old0", "old1"}
    run.gone("Pod", "old0").gone("Pod", "old1").see(node("n0").cpu(16), node("n1").cpu(16)).step()
    run.engine.validate()
    assert placed(run) == 2
