"""`make simulate SEED=… STEPS=… [SECONDS=… | TOTAL=…] [PROCESSES=…]`: seeds from SEED on.

Until the seconds, or the steps in all, are used up. The last line says how many steps and seeds it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count
from multiprocessing import Pool

from support.simulation.invariants import PROMISES
from support.simulation.run import Result, minimise, simulate

TAIL = 60  # lines of the story that are printed


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # A history must replay exactly, and the order of sets of strings is part of it.
        os.execve(sys.executable, [sys.executable, "-m", "support.simulation", *sys.argv[1:]],
                  {**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
    parser = argparse.ArgumentParser(prog="python -m support.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000, help="of each seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="go on with further seeds until so much time is gone"
    )
    parser.add_argument("--total", type=int, default=0, help="go on with further seeds until so many steps were taken")
    parser.add_argument("--processes", type=int, default=1, help="that run seeds side by side")
    parser.add_argument("--story", action="store_true", help="print what happened also where nothing failed")
    asked = parser.parse_args()
    began, steps, seeds = time.monotonic(), 0, 0
    last = asked.seed + asked.seeds if not asked.seconds and not asked.total else None
    for result in _results(asked.seed, last, asked.steps, asked.processes):
        steps, seeds = steps + result.steps, seeds + 1
        spent = time.monotonic() - began
        print(_line(result, spent, steps), flush=True)
        if asked.story:
            print("\n".join(result.story))
        if result.violation is not None:
            print(f"{steps} steps, {seeds} seeds until a promise was broken ({spent:.0f} s)")
            return _notify(result)
        if (asked.seconds and spent > asked.seconds) or (asked.total and steps >= asked.total):
            break
    print(f"{steps} steps, {seeds} seeds, no promise broken ({time.monotonic() - began:.0f} s)")
    return 0


def _results(first: int, last: int | None, steps: int, processes: int) -> Iterator[Result]:
    seeds: Iterable[int] = range(first, last) if last is not None else count(first)
    if processes == 1:
        for seed in seeds:
            yield simulate(seed, steps)
        return
    with Pool(processes) as pool:
        waiting = []
        for seed in seeds:
            waiting.append(pool.apply_async(simulate, (seed, steps)))
            if len(waiting) > processes:
                yield waiting.pop(0).get()
        for result in waiting:
            yield result.get()


def _line(result: Result, spent: float, steps: int) -> str:
    return (
        f"seed {result.seed}: {result.steps} steps, {result.rounds} rounds, {len(result.faults)} faults, "
        f"{result.troubles} troubles, {result.checks} commits checked, {result.seconds:.0f} s simulated, "
        f"story {result.digest} ({steps / spent:.0f} steps/s)"
    )


def _notify(failed: Result) -> int:
    assert failed.violation is not None
    print(f"\nBROKEN at step {failed.steps}: {failed.violation}")
    print(f"  the promise: {PROMISES[failed.violation.promise]}")
    print("looking for the fewest faults that still break it …", flush=True)
    least = minimise(failed)
    assert least.violation is not None
    print(f"{len(least.faults)} of {len(failed.faults)} faults are needed; step {least.steps}: {least.violation}")
    print("\n".join(least.story[-TAIL:]))
    print(f"\nreplay: make simulate SEED={failed.seed} STEPS={failed.steps + 1}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
