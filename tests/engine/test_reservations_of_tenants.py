"""Room for expected pods is reserved only for what our controllers announce, within quotas, for a while, by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from phalanx.engine.explain import why
from phalanx.engine.explain.pending import PendingReasons
from phalanx.engine.groups import expected_pods
from phalanx.engine.scheduling.commit.group_reservations import RESERVED_FOR
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import REPLACES
from phalanx.model.objects import ResourceQuota
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group, workload, workload_policy
from support.replicas import TO_COME, leader, replica


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> ResourceQuota:
    body = {
        "metadata": {"name": "q", "namespace": "default", "uid": "q"},
        "spec": {"hard": hard, **spec},
        "status": {"used": used or {}},
    }
    return msgspec.convert(body, ResourceQuota)


def eight_nodes() -> Cluster:
    return Cluster().see(*(node(f"n{i}").cpu("3") for i in range(8)))


def others(count: int = 8) -> list[Any]:
    return [pod(f"other-{i}").cpu("3") for i in range(count)]


def test_an_announcement_of_another_author_reserves_nothing_and_is_reported() -> None:
    run = eight_nodes()
    forged = replica("a", 7, "3").dict()
    text = forged["metadata"]["annotations"][TO_COME]
    for number, managers in enumerate(([], ["kubectl-annotate"], ["phalanx-controllers", "kubectl-annotate"])):
        group = pod_group(f"g{number}").gang(1).annotate(TO_COME, text)
        for manager in managers:
            group.written_by(manager, TO_COME)
        run.see(group, leader(f"g{number}", "10m"))
    run.step()
    run.see(*others(7)).step(30)
    assert sum(name.startswith("other") for name in run.placed) == 7
    ignored = [each for each in run.log if getattr(each, "reason", "") == "AnnotationIgnored"]
    assert len(ignored) == 3 and all("phalanx-controllers" in each.message for each in ignored)  # type: ignore[union-attr]


@pytest.mark.parametrize(("author", "first"), [("phalanx-controllers", "late"), ("kubectl-annotate", "early")])
def test_only_our_controllers_can_say_that_a_group_replaces_another(author: str, first: str) -> None:
    run = Cluster().see(node("n").cpu("2"), pod("lasts").cpu("2"))
    run.step()
    old = workload("old").template("t").created(1)
    run.see(old, pod_group("early").gang(2), *(pod(f"early-{i}").group("early").cpu("1") for i in range(2))).step()
    late = pod_group("late").gang(2).from_workload("old", "t").annotate(REPLACES, "gone").written_by(author, REPLACES)
    run.see(late, *(pod(f"late-{i}").group("late").cpu("1") for i in range(2))).step()
    run.finish("lasts").step()
    assert {name.rpartition("-")[0] for name in run.placed if name != "lasts"} == {first}


@pytest.mark.parametrize(
    ("hard", "used", "left"),
    [
        ({"pods": "1"}, {"pods": "1"}, 0),
        ({"count/pods": "4"}, {"count/pods": "1"}, 3),
        ({"requests.cpu": "100m"}, {"requests.cpu": "10m"}, 0),
        ({"cpu": "7"}, {"cpu": "10m"}, 2),
        ({"requests.memory": "1Gi", "secrets": "0"}, {}, 7),
    ],
)
def test_no_more_is_reserved_than_the_quota_lets_be_created(
    hard: dict[str, str], used: dict[str, str], left: int
) -> None:
    run = eight_nodes().see(quota(hard, used))
    run.see(replica("a", 7, "3"), leader("a", "10m")).step()
    assert "a-0" in run.placed
    run.see(*others()).step(30)
    assert sum(name.startswith("other") for name in run.placed) == 7 - left


def test_groups_of_a_namespace_share_its_quota() -> None:
    run = eight_nodes().see(quota({"pods": "5"}, {"pods": "2"}))
    run.see(replica("a", 3, "3"), leader("a", "10m"), replica("b", 3, "3"), leader("b", "10m")).step()
    reserved = [record.name for _, record in run.engine.nominations.all() if expected_pods.is_expected(record)]
    assert len(reserved) == 3


@pytest.mark.parametrize(
    ("scopes", "applies"),
    [(["BestEffort"], False), (["NotBestEffort"], True), (["Terminating"], False), (["PriorityClass"], False)],
)
def test_a_quota_counts_where_its_scopes_do(scopes: list[str], applies: bool) -> None:
    run = eight_nodes().see(quota({"pods": "0"}, scopes=scopes))
    run.see(replica("a", 7, "3"), leader("a", "10m")).step()
    assert bool(run.engine.nominations) is not applies


def test_a_pod_that_waits_for_reserved_room_says_whose_it_is() -> None:
    run = eight_nodes().see(replica("a", 7, "3"), leader("a", "10m"))
    run.step()
    run.see(pod("other").cpu("3"), pod_group("g").gang(2), *(pod(f"g-{i}").group("g").cpu("3") for i in range(2)))
    run.step(5)
    for name in ("other", "g-0"):
        assert "reserved for expected pods of PodGroup default/a" in run.message(name), run.message(name)
    (item,) = why(run.engine, "PodGroup", "default", "g").items
    assert item.headline.endswith("; free room is reserved for another group or pod")
    unit = run.engine.queue.units["podgroup/default/g"]
    assert PendingReasons(run.engine).of(unit).headline == item.headline
    run.step(RESERVED_FOR + 60)
    assert {"other", "g-0", "g-1"} <= run.placed.keys(), "the time is over"


def test_a_restart_does_not_begin_the_time_again() -> None:
    run = Cluster(now=1_800_000_000.0).see(*(node(f"n{i}").cpu("3") for i in range(8)))
    run.see(replica("a", 7, "3"), leader("a", "10m").created(1_800_000_000.0)).step()
    run.step(RESERVED_FOR - 100)
    run.restart()
    run.see(*others()).step(5)
    assert "other-0" not in run.placed
    run.step(150)
    assert sum(name.startswith("other") for name in run.placed) == 7


def test_an_announcement_costs_what_the_cluster_could_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counted(PodRecord):
        __slots__ = ()

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self.name)

    monkeypatch.setattr(expected_pods, "PodRecord", Counted)
    run = Cluster().see(*(node(f"n{i}").cpu("4").pods(10) for i in range(2)))
    for number in range(40):
        text = json.dumps({"size": 10_000, "template": {"spec": {"containers": [{"name": "c"}]}}})
        group = pod_group(f"g{number}").gang(1).annotate(TO_COME, text).written_by("phalanx-controllers", TO_COME)
        run.see(group, pod(f"g{number}-0").group(f"g{number}").cpu("10m"))
    run.see(pod("other").cpu("1")).step()
    assert "other" in run.placed
    assert len(made) < 40 * 100, "of each attempt no more than the 20 pods that two nodes can hold, and those beside"


# ---- starts of waiting units

CONSERVATIVE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- reservations: {backfill: Conservative, %s}
"""


def busy_cluster(nodes: int, settings: str = "starvationSeconds: 300") -> Cluster:
    """Nodes of which all but two are used for 1,000 seconds."""
    run = Cluster(config=CONSERVATIVE % settings).see(*(node(f"n{i:02}").cpu(1) for i in range(nodes)))
    for i in range(nodes - 2):
        long = pod(f"long-{i}").cpu(1).created(run.now)
        long.spec["activeDeadlineSeconds"] = 1000
        run.see(long)
    run.step()
    return run


def waiting_gang(run: Cluster, name: str, size: int, namespace: str = "default", priority: int = 0) -> None:
    run.see(pod_group(name).ns(namespace).gang(size).priority(priority))
    members = (pod(f"{name}-{i}").ns(namespace).cpu(1).group(name).priority(priority) for i in range(size))
    run.see(*(member.created(run.now) for member in members)).step()


def held(run: Cluster) -> dict[str, int]:
    """Namespace -> nodes that reservations of its waiting units hold."""
    nodes: dict[str, set[str]] = {}
    for each in run.engine.starts.held.values():
        names = {run.engine.columns.names[row] for _, row in each.planned.assignment}
        nodes.setdefault(each.unit.key.split("/")[1], set()).update(names)
    return {namespace: len(names) for namespace, names in sorted(nodes.items())}


def test_a_tenant_cannot_hold_room_by_asking() -> None:
    run = busy_cluster(20)
    for number in range(100):
        waiting_gang(run, f"ask{number}", 3, "greedy")
    for _ in range(40):
        run.step(1.0)
    assert held(run) == {"greedy": 3}, "at most a quarter of the nodes, however many gangs wait"
    waiting_gang(run, "fair", 3, "modest")
    for _ in range(5):
        run.step(1.0)
    assert held(run)["modest"] == 3, "another namespace has its own share"


def test_nothing_is_reserved_beyond_a_quota_that_was_lowered() -> None:
    run = busy_cluster(8).see(quota({"requests.cpu": "4"}, {"requests.cpu": "8"}))
    waiting_gang(run, "gang", 8)
    for _ in range(3):
        run.step(1.0)
    assert held(run) == {}
    run.see(pod("other").ns("modest").cpu(1).created(run.now)).step()
    assert "modest/other" in run.placed
    run.gone("Pod", "modest/other").see(quota({"requests.cpu": "8"}, {"requests.cpu": "8"})).step(40.0)
    run.step(1.0)
    assert held(run) == {"default": 8}


def expected(run: Cluster) -> list[str]:
    """Names of the groups that room is reserved for, one for each expected pod."""
    return [expected_pods.owner_of(each).name for _, each in run.engine.nominations.all() if "/" in each.name]


def replacing(name: str) -> list[Any]:
    rules = workload_policy(name).target("PodGroup", name).set(rescheduling={"policy": "Replace"})
    return [rules, pod_group(name).gang(2), *(pod(f"{name}-{i}").group(name).cpu("3") for i in range(2))]


def used(pods: int) -> ResourceQuota:
    return quota({"pods": "2"}, {"pods": str(pods)})


@pytest.mark.parametrize("end", ["fails", "is deleted"])
def test_gangs_that_lose_members_in_turn_reserve_no_more_than_the_quota(end: str) -> None:
    run = eight_nodes().see(used(0))
    for name in ("a", "b", "c"):
        run.see(*replacing(name), used(2))
        run.step()
        for member in (f"{name}-0", f"{name}-1"):
            assert member in run.placed
            if end == "fails":
                run.update(member, phase="Failed")
            run.step()
            run.gone("Pod", member)
        run.see(used(0))
        run.step()
    most = len(expected(run))
    assert most == (6 if end == "fails" else 3), "the status of a quota may be late"
    for _ in range(7):
        run.step(1.0)
    assert len(expected(run)) == 2
    run.see(*others(6)).step(2)
    assert sum(name.startswith("other") for name in run.placed) == 6
    run.see(used(2))
    for _ in range(7):
        run.step(1.0)
    assert not expected(run), "other pods use the quota now"


def test_room_of_a_lost_member_stays_reserved_while_the_quota_allows_its_successor() -> None:
    run = eight_nodes().see(used(0)).see(*replacing("a"), used(2))
    run.step()
    run.update("a-0", phase="Failed").step(30.0)
    run.see(used(1)).step(1.0)
    assert expected(run) == ["a"], "the failed pod is counted no more"
    run.step(300.0)
    run.step(1.0)
    assert expected(run) == ["a"]


def test_expected_pods_lose_their_room_when_others_use_the_quota() -> None:
    run = eight_nodes().see(quota({"pods": "8"}, {"pods": "1"}), replica("a", 7, "3"), leader("a", "10m"))
    run.step()
    assert len(expected(run)) == 7
    run.see(quota({"pods": "8"}, {"pods": "8"}))
    for _ in range(7):
        run.step(1.0)
    assert not expected(run)


def test_a_promise_that_a_unit_of_higher_priority_breaks_says_so() -> None:
    run = busy_cluster(8)
    waiting_gang(run, "gang", 8)
    run.step(1.0)
    assert held(run) == {"default": 8}
    run.see(pod("urgent").cpu(1).priority(10).created(run.now)).step(2.0)
    assert "urgent" in run.placed
    run.step(2.0)
    conditions = {c.type: c for c in run.objects["PodGroup"]["gang"].status.conditions or ()}
    promise = conditions["scheduling.phalanx.dev/StartPromised"]
    assert (promise.status, promise.reason) == ("False", "HigherPriority")
    assert "a unit of higher priority took its room" in promise.message
