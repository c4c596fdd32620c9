"""A long stretch of random cluster life with groups and faults, by seed; every invariant after every step.

`python tests/engine/test_group_simulation.py EVENTS SEED [SEEDS]` runs more of it and prints the seed that fails.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from phalanx.engine.decisions import encode
from phalanx.engine.framework.settings import EngineSettings
from support.group_world import GroupWorld


def simulate(events: int, seed: int, faults: float = 0.1, settings: EngineSettings | None = None) -> GroupWorld:
    world = GroupWorld(seed, faults=faults, settings=settings)
    try:
        for _ in range(events):
            world.tick()
        world.settle()
        world.check_rest()
    except Exception as problem:
        raise AssertionError(f"seed {seed}, after {len(world.decisions)} decisions: {problem}") from problem
    return world


@pytest.mark.parametrize("seed", range(6))
def test_groups_survive_a_random_life_with_faults_and_restarts(seed: int) -> None:
    world = simulate(600, seed)
    assert world.binds > 20


@pytest.mark.parametrize("seed", [2, 7])
def test_groups_survive_it_too_when_every_search_is_cut_into_pieces(seed: int) -> None:
    """Whatever happens happens between two slices."""
    world = simulate(400, seed, settings=EngineSettings(search_slice=5))
    assert world.binds > 10


@pytest.mark.parametrize("seed", [42, 43])
def test_same_events_give_the_same_decisions_in_every_process(seed: int) -> None:
    """No order of sets or hashes reaches a decision."""
    digests = set()
    for hashes in ("1", "2"):
        command = [sys.executable, __file__, "300", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)}
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert len(digests) == 1 and "decisions" in digests.pop()


if __name__ == "__main__":
    for seed in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3] if len(sys.argv) > 3 else 1)):
        done = simulate(int(sys.argv[1]), seed)
        digest = hashlib.sha256(b"\n".join(map(encode, done.decisions))).hexdigest()[:12]
        figures = f"{done.binds} binds, {done.released} evicted, {done.restarts} restarts, decisions {digest}"
        print(f"seed {seed}: {figures}, all well")
