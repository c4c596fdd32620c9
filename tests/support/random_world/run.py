"""Run one random life to its end."""

from __future__ import annotations

from phalanx.engine.framework.settings import EngineSettings
from support.random_world.checks import check_rest
from support.random_world.world import Events, World


def simulate(
    events: Events, count: int, seed: int, *, faults: float = 0.1, settings: EngineSettings | None = None
) -> World:
    """So many events, then rest; raises with the seed where anything is not as it must be."""
    world = World(seed, events, faults=faults, settings=settings)
    try:
        for _ in range(count):
            world.tick()
        world.settle()
        check_rest(world.engine, world.pods)
    except Exception as problem:
        raise AssertionError(f"seed {seed}, after {len(world.decisions)} decisions: {problem}") from problem
    return world
