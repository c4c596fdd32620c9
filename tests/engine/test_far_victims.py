"""Victims that sit far from the members they make room for, in clusters too large to take everybody away at a time."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.framework.adapters import RowFilter
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.scheduling.attempt import constrained_preemption
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.engine.state.columns import Columns
from phalanx.testing import Cluster
from phalanx.testing.builders import gang, node, pod, pod_group
from support.small_clusters import NOW, crowd

ZONE = "topology.kubernetes.io/zone"
NODES, RIVALS, MEMBERS = 30, 4, 5


def full_cluster(run: Cluster, *, rivals: int) -> Cluster:
    """Nodes of 8 cpu in three zones, 6 of them taken by three pods; so many rivals in every zone, the first on the
    first nodes, of a higher priority than the rest."""
    run.see(*(node(f"n{i}").cpu(8).zone(f"z{i % 3}") for i in range(NODES)))
    for i in range(NODES):
        for j in range(3):
            low = pod(f"low-{i}-{j}").cpu("2").priority(j).node(f"n{i}").label("app", "old" if j == i % 3 else "any")
            run.see(low.label("app", "rival").priority(4) if j == 1 and i < 3 * rivals else low)
    run.step()
    return run


def apart(key: str, app: str) -> list[Any]:
    """A gang whose pods want no pod of `app` in their domain."""
    group, *members = gang("hard", MEMBERS, "3", 100)
    return [group, *(member.anti_affinity(key, {"app": app}) for member in members)]


def trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pods were taken off their nodes at a time."""
    taken: list[int] = []
    unplace_all = Columns.unplace_all
    monkeypatch.setattr(Columns, "unplace_all", lambda self, pods: taken.append(len(pods)) or unplace_all(self, pods))
    return taken


def test_pods_in_the_way_are_found_without_removing_every_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrained_preemption, "MAX_REMOVED_PODS", 12)
    taken = trials(monkeypatch)
    run = full_cluster(Cluster(), rivals=RIVALS)
    run.see(*apart(ZONE, "rival"))
    run.step()
    zones = {int(name.split("-")[1]) % 3 for name in run.evicted if name.split("-")[2] == "1"}
    assert len(zones) == 1, run.evicted
    (zone,) = zones
    rivals = {f"low-{i}-1" for i in range(3 * RIVALS) if i % 3 == zone}
    assert rivals < set(run.evicted) and len(run.evicted) == MEMBERS, "one more: rivals leave room for four members"
    assert sum(name.startswith("hard") for name in run.bound) == MEMBERS
    assert max(taken) <= 2 * 12, "of 90"


def test_where_a_few_will_not_do_all_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is only in one zone, where everybody has the highest priority: none of those who hurt least is there."""
    monkeypatch.setattr(constrained_preemption, "MAX_REMOVED_PODS", 12)
    run = Cluster().see(
        *(node(f"n{i}").cpu(8).zone(f"z{i % 3}").label("big", "yes" if i % 3 == 2 else "no") for i in range(12))
    )
    for i in range(12):
        for j in range(3):
            run.see(pod(f"low-{i}-{j}").cpu("2").priority(i % 3).node(f"n{i}"))
    run.step()
    run.see(pod_group("hard").gang(4).priority(100))
    for i in range(4):
        one = pod(f"hard-{i}").cpu("3").group("hard").priority(100).label("app", "hard").select("big", "yes")
        run.see(one.affinity(ZONE, {"app": "hard"}))
    run.step()
    assert len(run.evicted) == 4 and all(name.split("-")[1] in ("2", "5", "8", "11") for name in run.evicted)
    assert sum(name.startswith("hard") for name in run.bound) == 4


@pytest.mark.parametrize("work", [15, 60, 240])
def test_small_pods_that_come_between_the_slices_do_not_make_the_plan_dearer(work: int) -> None:
    """Two members fit on a node that loses two pods, to the last bit: as long as no other pod takes some of it."""
    run = Cluster(Engine(EngineSettings(search_slice=work)))
    run.see(*(node(f"n{i}").cpu(8).zone(f"z{i % 3}") for i in range(NODES)))
    for i in range(NODES):
        for j in range(3):
            low = pod(f"low-{i}-{j}").cpu("2").priority(j).node(f"n{i}")
            run.see(low.label("app", "old") if j == 0 else low)
    run.step()
    run.see(*apart("kubernetes.io/hostname", "old"))
    steps = 0
    while not any(isinstance(x, d.Evict) for x in run.log) and steps < 3_000:
        run.see(pod(f"small-{steps}").cpu("10m"))
        out = run.engine.step(run.now, 64)
        run.engine.validate()
        for decision in out:
            run.perform(decision)
        run.log += out
        steps += 1
    assert steps > 3, "it was never interrupted"
    run.step()
    assert len(run.evicted) == MEMBERS, run.evicted
    assert sum(name.startswith("hard") for name in run.bound) == MEMBERS
    assert all(root.queue_name is not QueueName.SEARCH for root in run.engine.queue.units.values())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["tied gang", "tied tree"])
def test_pods_that_a_filter_does_not_mind_change_nothing_it_says(kind: str, seed: int) -> None:
    made = crowd(seed, kind, 8)
    run = Cluster(evict=False, now=NOW)
    run.see(*made.objects).step()
    run.see(*made.preemptor)
    run.engine.step(NOW, 0)
    columns, cluster = run.engine.columns, run.engine.cluster
    members = [record for record in run.engine.pods.records.values() if record.row < 0]
    asked = 0
    for member in members:
        rules: list[Any] = [each for _, each in cluster.evaluation(member).filters if not isinstance(each, RowFilter)]
        for rule in rules:
            before = rule.mask.copy()
            off = [pod for pods in columns.pods for pod in pods.values() if not rule.affects_other_nodes(pod)]
            asked += len(off)
            mark = columns.journal.mark()
            columns.unplace_all(off)
            cluster.evaluation(member)
            assert (rule.mask == before).all(), (member, rule)
            columns.journal.rewind(mark)
            cluster.evaluation(member)
    assert members and asked


@pytest.mark.parametrize("stays", [True, False])
def test_a_pod_kept_out_by_a_pod_that_stays_evicts_no_pod(monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    """A rival in every zone, of which one may not be evicted, or may: who is in the way is asked before all go."""
    monkeypatch.setattr(constrained_preemption, "MAX_REMOVED_PODS", 12)
    taken = trials(monkeypatch)
    run = Cluster().see(*(node(f"n{i}").cpu(8).zone(f"z{i % 3}") for i in range(NODES)))
    for i in range(NODES):
        for j in range(3):
            low = pod(f"low-{i}-{j}").cpu("2").priority(j).node(f"n{i}")
            rival = j == 1 and i < 3
            run.see(low.label("app", "rival").priority(1_000 if stays or i else 4) if rival else low)
    run.step()
    run.see(*apart(ZONE, "rival"))
    run.step()
    hard = sum(name.startswith("hard") for name in run.bound)
    if stays:
        assert not run.evicted and hard == 0
        assert "no set of victims was found" in run.condition("hard")[2]
        assert max(taken) <= 2 * 12, "of 90"
    else:
        assert hard == MEMBERS and "low-0-1" in run.evicted and len(run.evicted) == MEMBERS
