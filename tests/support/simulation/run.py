"""Run seeds, report what happened, and find the shortest list of faults that still breaks the same invariant."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.simulation.faults import Fault
from support.simulation.invariants import Violation
from support.simulation.world import SteppedLoop, World
from support.virtual_time import EndlessTurns, drive

MOST_RERUNS = 40


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    steps: int
    seconds: float  # of simulated time
    rounds: int
    violation: Violation | None
    faults: tuple[Fault, ...]
    story: tuple[str, ...]
    digest: str  # of the history and of the final store: the same seed gives the same
    checks: int  # commits that were looked at
    troubles: int  # pieces of data the network mistreated, answers that were wrong


def simulate(seed: int, steps: int, skip: frozenset[int] = frozenset()) -> Result:
    """Run one seed. The order of sets of strings matters: start Python with PYTHONHASHSEED=0 to replay elsewhere."""
    loop = SteppedLoop()
    worlds: list[World] = []

    async def main() -> Violation | None:
        world = World(seed, steps, skip)
        worlds.append(world)
        try:
            await world.run()
        except Violation as violation:
            return violation
        return None

    with _quiet():
        try:
            violation = drive(loop, main())
        except EndlessTurns as restless:
            violation = Violation("converges", str(restless))
    world = worlds[0]
    return Result(
        seed,
        loop.steps,
        loop.time(),
        world.rounds,
        violation,
        tuple(world.faults),
        tuple(world.story),
        _digest(world),
        world.ledger.checks,
        world.network.troubles + world.front.wrong,
    )


def _digest(world: World) -> str:
    stored = [f"{key} {revision}" for key, revision in sorted(world.ledger.newest.items())]
    return hashlib.sha256("\n".join((*world.story, *stored)).encode()).hexdigest()[:16]


def minimise(failed: Result) -> Result:
    """Find as few faults of the same seed as still break the same invariant: halves first, then one by one."""
    assert failed.violation is not None
    best, left = failed, MOST_RERUNS
    size = max(1, len(failed.faults) // 2)
    while left > 0:
        kept = [fault.number for fault in best.faults]
        everything = {fault.number for fault in failed.faults}
        for start in range(0, len(kept), size):
            skip = frozenset(everything - set(kept) | set(kept[start : start + size]))
            left -= 1
            again = simulate(failed.seed, failed.steps + 1, skip)
            if again.violation is not None and again.violation.promise == failed.violation.promise:
                best = again
                break
            if left <= 0:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return best


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs: each injected fault is logged where it occurs, which makes thousands of expected lines."""
    logging.disable(logging.CRITICAL)
    asyncio_log = logging.getLogger("asyncio").level
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger("asyncio").setLevel(asyncio_log)
