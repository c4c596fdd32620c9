"""Arithmetic of rolls and restarts of LeaderWorkerSets, without a cluster."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.controllers.workloads.leaderworkerset.rollout import Allowed, Leaders, ReplicaState, allowed_of, next_step
from phalanx.controllers.workloads.leaderworkerset.rules import must_recreate
from phalanx.model.leaderworkerset.names import subgroup_index

Json = dict[str, Any]
OLD, NEW, DOWN = ReplicaState(ready=True), ReplicaState(ready=True, updated=True), ReplicaState(updated=True)


def test_a_new_set_starts_whole_and_a_new_template_moves_nothing_at_first() -> None:
    assert next_step(Allowed(3, 1, 0, 0), None, "b", []) == (0, 3)
    assert next_step(Allowed(3, 1, 0, 0), Leaders(3, 0, "a", 3), "b", [OLD] * 3) == (3, 3)
    assert next_step(Allowed(3, 1, 2, 0), Leaders(3, 0, "a", 3), "b", [OLD] * 3) == (3, 5), "room for surge is made"


def test_steps_go_down_from_the_highest() -> None:
    allowed = Allowed(3, 1, 0, 0)
    assert next_step(allowed, Leaders(3, 3, "b", 3), "b", [OLD, OLD, OLD]) == (2, 3)
    assert next_step(allowed, Leaders(3, 2, "b", 3), "b", [OLD, OLD, DOWN]) == (2, 3), "one down is enough"
    assert next_step(allowed, Leaders(3, 2, "b", 3), "b", [OLD, OLD, NEW]) == (1, 3)
    assert next_step(allowed, Leaders(3, 0, "b", 3), "b", [NEW] * 3) == (0, 3)


def test_a_broken_group_counts_against_the_allowance() -> None:
    broken = ReplicaState()
    assert next_step(Allowed(3, 1, 0, 0), Leaders(3, 3, "b", 3), "b", [broken, OLD, OLD]) == (3, 3)
    assert next_step(Allowed(3, 1, 0, 0), Leaders(3, 3, "b", 3), "b", [OLD, OLD, broken]) == (2, 3), "it goes first"


def test_the_users_partition_is_a_floor() -> None:
    allowed = Allowed(4, 2, 0, 3)
    assert next_step(allowed, Leaders(4, 4, "b", 4), "b", [OLD] * 4)[0] == 3
    assert next_step(allowed, Leaders(4, 3, "b", 4), "b", [OLD, OLD, OLD, NEW]) == (3, 4)


def test_a_surge_group_stays_while_a_partition_holds_groups_back() -> None:
    """Upstream counts groups below the partition as not updated."""
    allowed = Allowed(replicas=4, unavailable=0, surge=1, partition=2)
    leaders = Leaders(replicas=5, partition=2, revision="b", announced=4)
    assert next_step(allowed, leaders, "b", [OLD, OLD, NEW, NEW, NEW]) == (2, 5)


def test_scaling_in_the_middle_of_a_roll() -> None:
    assert next_step(Allowed(5, 1, 0, 0), Leaders(3, 2, "b", 3), "b", [OLD, OLD, NEW]) == (2, 5)
    assert next_step(Allowed(2, 1, 0, 0), Leaders(3, 1, "b", 3), "b", [OLD, NEW, NEW]) == (1, 2)


@pytest.mark.parametrize(
    ("unavailable", "surge", "replicas", "expected"),
    [("30%", "30%", 4, (1, 2)), ("10%", 0, 4, (1, 0)), (0, "100%", 3, (0, 3)), (2, 5, 3, (2, 3))],
)
def test_percentages(unavailable: Any, surge: Any, replicas: int, expected: tuple[int, int]) -> None:
    rolling = {"maxUnavailable": unavailable, "maxSurge": surge}
    allowed = allowed_of({"spec": {"replicas": replicas, "rolloutStrategy": {"rollingUpdateConfiguration": rolling}}})
    assert (allowed.unavailable, allowed.surge) == expected


@pytest.mark.parametrize("seed", range(200))
def test_every_roll_ends_and_never_takes_more_than_allowed(seed: int) -> None:
    rng = random.Random(seed)
    replicas, surge = rng.randint(1, 8), rng.randint(0, 4)
    allowed = Allowed(replicas, rng.randint(0 if surge else 1, 4), min(surge, replicas), rng.choice([0, 0, 1]))
    states = [OLD] * replicas
    partition, size = next_step(allowed, Leaders(replicas, 0, "a", replicas), "b", states)
    for _ in range(400):
        states = (states + [DOWN] * size)[:size]
        # The StatefulSet takes the highest old groups above the partition, as many as it may.
        for index in range(size - 1, partition - 1, -1):
            down = sum(not state.ready for state in states)
            if not states[index].updated and down < max(1, allowed.unavailable + allowed.surge):
                states[index] = DOWN
        serving = sum(state.ready for state in states)
        assert serving >= replicas - allowed.unavailable, (partition, size, states)
        assert size <= replicas + allowed.surge
        states = [NEW if state == DOWN and rng.random() < 0.6 else state for state in states]
        step = next_step(allowed, Leaders(size, partition, "b", replicas), "b", states)
        if step == (partition, size) and partition == allowed.partition and all(s.ready for s in states):
            break
        partition, size = step
    assert [state.updated for state in states] == [index >= allowed.partition for index in range(size)]
    assert size == replicas or (allowed.partition and size <= replicas + allowed.surge), "surge groups go in the end"


# -- restarts ---------------------------------------------------------------------------------------------------------


def pod(phase: str = "Running", restarts: int = 0, **meta: Any) -> Json:
    status = {"phase": phase, "containerStatuses": [{"restartCount": restarts}]}
    return {"metadata": {"name": "p", **meta}, "status": status}


def policy(name: str, size: int = 3) -> Json:
    return {"metadata": {}, "spec": {"leaderWorkerTemplate": {"restartPolicy": name, "size": size}}}


def test_what_makes_a_group_again() -> None:
    well, restarted, leaving = pod(), pod(restarts=1), pod(deletionTimestamp="now")
    on_restart = policy("RecreateGroupOnPodRestart")
    assert must_recreate(on_restart, well, [well, well]) is None
    assert must_recreate(on_restart, well, [well, restarted]) is restarted
    assert must_recreate(on_restart, well, [leaving]) is leaving
    assert must_recreate(on_restart, restarted, []) is restarted
    assert must_recreate(on_restart, leaving, [restarted]) is None, "it goes already"
    assert must_recreate(policy("None"), restarted, [restarted]) is None


def test_after_start_only_complete_groups_are_made_again() -> None:
    well, restarted, pending = pod(), pod(restarts=1), pod("Pending")
    after = policy("RecreateGroupAfterStart")
    assert must_recreate(after, well, [restarted]) is None, "a pod is missing"
    assert must_recreate(after, well, [restarted, pending]) is None, "a pod has not started"
    assert must_recreate(after, well, [restarted, well]) is restarted


@pytest.mark.parametrize("value", ["true", "", "false"])
def test_the_annotation_counts_whatever_its_value(value: str) -> None:
    well, restarted, pending = pod(), pod(restarts=1), pod("Pending")
    notes = {"leaderworkerset.sigs.k8s.io/experimental-recreate-group-after-start": value}
    annotated, none = policy("RecreateGroupOnPodRestart"), policy("None")
    annotated["metadata"]["annotations"] = none["metadata"]["annotations"] = notes
    assert must_recreate(annotated, well, [restarted, pending]) is None
    assert must_recreate(annotated, well, [restarted, well]) is restarted
    assert must_recreate(none, well, [restarted, well]) is None


def test_subgroups_of_workers() -> None:
    assert [subgroup_index(8, 4, worker) for worker in range(1, 8)] == [0, 0, 0, 1, 1, 1, 1]
    assert [subgroup_index(5, 2, worker) for worker in range(1, 5)] == [0, 0, 1, 1], "the leader is one more in 0"
