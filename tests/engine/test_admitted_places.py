"""A workload is admitted only with a place for all its pods, and the place is kept until the pods arrive."""

from __future__ import annotations

from typing import Any

from phalanx.engine import decisions as d
from phalanx.engine.events import PlaceReleased, PlaceRequested
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group


def cluster(nodes: int) -> Cluster:
    return Cluster().see(*(node(f"n{i}").cpu(2).label("rack", f"r{i // 2}") for i in range(nodes)))


def ask(run: Cluster, name: str, size: int, *, cpu: int = 2, topology: str = "", **more: Any) -> d.PlaceAnswered:
    group = pod_group(name).gang(size)
    if topology:
        group.topology(topology)
    pods = [pod(f"{name}-{i}").cpu(cpu).group(name).build() for i in range(size)]
    until = more.pop("until", run.now + 600)
    request = PlaceRequested("default", name, f"uid-{name}", until, pods, [group.build()], owners=[name], **more)
    run.engine.apply(request)
    run.step()
    return run.of(d.PlaceAnswered, name)[-1]


def arrive(run: Cluster, name: str, size: int, *, cpu: int = 2, gang: bool = True) -> None:
    """The pods of an admitted Job, which have its name in a label."""
    if gang:
        run.see(pod_group(f"{name}-group").gang(size))
    for i in range(size):
        member = pod(f"{name}-pod-{i}").cpu(cpu).label("batch.kubernetes.io/job-name", name)
        run.see(member.group(f"{name}-group") if gang else member)
    run.step()


def test_a_place_is_kept_for_its_workload_and_for_no_other() -> None:
    run = cluster(4)
    answer = ask(run, "train", 2, topology="rack")
    assert answer.placed and len(answer.nodes) == 2
    arrive(run, "other", 4)  # would fit if nothing was reserved
    assert not run.placed
    arrive(run, "single", 2, gang=False)
    assert len(run.placed) == 2 and not set(run.placed.values()) & set(answer.nodes)
    arrive(run, "train", 2)
    assert {run.placed[f"train-pod-{i}"] for i in range(2)} == set(answer.nodes)
    assert not run.engine.scheduler.places.held


def test_pods_that_arrive_one_by_one_each_take_their_part() -> None:
    run = cluster(2)
    assert ask(run, "train", 2).placed
    arrive(run, "train", 1, gang=False)
    assert len(run.placed) == 1
    arrive(run, "other", 1, gang=False)
    assert "other-pod-0" not in run.placed
    run.see(pod("train-pod-1").cpu(2).label("batch.kubernetes.io/job-name", "train")).step()
    assert set(run.placed) == {"train-pod-0", "train-pod-1"}


def test_a_workload_without_room_says_why_and_reserves_nothing() -> None:
    run = cluster(2)
    answer = ask(run, "train", 3)
    assert not answer.placed and "3" in answer.message
    arrive(run, "other", 2)
    assert len(run.placed) == 2


def test_places_of_two_workloads_do_not_overlap() -> None:
    run = cluster(4)
    first, second = ask(run, "one", 2), ask(run, "two", 2)
    assert first.placed and second.placed and not set(first.nodes) & set(second.nodes)
    assert not ask(run, "three", 1).placed


def test_a_place_ends_when_it_is_released_and_after_its_time() -> None:
    run = cluster(2)
    assert ask(run, "train", 2, until=run.now + 60).placed
    arrive(run, "other", 2)
    assert not run.placed
    run.step(61)
    assert len(run.placed) == 2
    run = cluster(2)
    assert ask(run, "train", 2).placed
    arrive(run, "other", 2)
    run.engine.apply(PlaceReleased("default", "train"))
    run.step()
    assert len(run.placed) == 2


def test_a_place_that_is_lost_with_a_node_is_looked_for_again() -> None:
    run = cluster(3)
    answer = ask(run, "train", 2)
    run.gone("Node", answer.nodes[0]).step()
    again = run.of(d.PlaceAnswered, "train")[-1]
    assert again.placed and answer.nodes[0] not in again.nodes
    run.gone("Node", again.nodes[0]).step()
    assert not run.of(d.PlaceAnswered, "train")[-1].placed


def test_nothing_is_evicted_for_a_place_and_higher_priority_passes() -> None:
    run = cluster(2)
    arrive(run, "low", 2, gang=False)
    assert not ask(run, "train", 2).placed and not run.evicted
    run = cluster(2)
    assert ask(run, "train", 2).placed
    run.see(pod("urgent").cpu(2).priority(10)).step()
    assert "urgent" in run.placed


def test_the_pods_of_a_workload_are_known_by_their_owner_too() -> None:
    run = cluster(2)
    assert ask(run, "train", 2, owner_uids=["job-uid"]).placed
    run.see(pod("other").cpu(2)).step()
    run.see(pod("mine").cpu(2).owner("Job", "another-name", "job-uid")).step()
    assert set(run.placed) == {"mine"}
