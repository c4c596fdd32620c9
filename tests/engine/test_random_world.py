"""Long stretches of random cluster life with faults, by seed; every invariant after every step, and at rest.

`.ci/run` adds lives of a new seed; `python -m support.random_world groups 100000 7` runs as much as one likes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from phalanx.engine.framework.settings import EngineSettings
from support.random_world.events import GROUP_EVENTS, POD_EVENTS
from support.random_world.run import simulate
from support.random_world.world import Events, World

FAULTS = {
    "doubled news", "failed write", "lost answer", "failed bind", "lost answer of a bind", "failed eviction",
    "eviction without effect", "lost answer of an eviction",
}  # fmt: skip
ANSWERS = {"bind", "bind not found", "bind transient", "bind permanent", "evict"}

life = cache(simulate)


@pytest.mark.parametrize(
    ("events", "seed"), [*((1500, seed) for seed in range(4)), *((6000, seed) for seed in range(4, 8))]
)
def test_random_life_with_faults_loses_and_overcommits_nothing(events: int, seed: int) -> None:
    assert life(POD_EVENTS, events, seed).happened["bind"] > 50


@pytest.mark.parametrize("seed", range(6))
def test_groups_survive_a_random_life_with_faults_and_restarts(seed: int) -> None:
    assert life(GROUP_EVENTS, 600, seed).happened["bind"] > 20


@pytest.mark.parametrize("seed", [2, 7])
def test_groups_survive_it_too_when_every_search_is_cut_into_pieces(seed: int) -> None:
    """Whatever happens happens between two slices."""
    world = simulate(GROUP_EVENTS, 400, seed, settings=EngineSettings(search_slice=5))
    assert world.happened["bind"] > 10


def test_every_event_and_every_fault_happens_in_the_lives_of_pods() -> None:
    happened = _happened(life(POD_EVENTS, 1500, seed) for seed in range(4))
    assert {event.__name__ for event, _ in POD_EVENTS} | FAULTS | ANSWERS <= happened.keys()


def test_every_event_and_every_fault_happens_in_the_lives_of_groups() -> None:
    happened = _happened(life(GROUP_EVENTS, 600, seed) for seed in range(6))
    only_here = {"bind conflict", "write after a restart", "condition of a group"}
    assert {event.__name__ for event, _ in GROUP_EVENTS} | FAULTS | ANSWERS | only_here <= happened.keys()


def _happened(worlds) -> Counter[str]:
    return sum((world.happened for world in worlds), Counter())


@pytest.mark.parametrize(("table", "seed"), [("pods", 42), ("groups", 42), ("groups", 43)])
def test_same_events_give_the_same_decisions_in_every_process(table: str, seed: int) -> None:
    """No order of sets or hashes reaches a decision."""
    digests = set()
    for hashes in ("1", "2"):
        command = [sys.executable, "-m", "support.random_world", table, "300", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)}
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert len(digests) == 1 and "decisions" in digests.pop()


def test_an_event_is_a_function_and_its_weight() -> None:
    def one_gigantic_day(world: World) -> bool:
        world.now += 86400.0
        return True

    table: Events = (*POD_EVENTS, (one_gigantic_day, 50))
    assert simulate(table, 100, 1).happened["one_gigantic_day"] > 10
