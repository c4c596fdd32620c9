"""`make simulate SEED=… STEPS=… [SECONDS=…]`: seeds from SEED on, until the steps or the seconds are used up."""

from __future__ import annotations

import argparse
import os
import sys
import time

from phalanx.testing.simulation.invariants import PROMISES
from phalanx.testing.simulation.run import Result, minimise, simulate

TAIL = 60  # lines of the story that are printed


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # A story must replay exactly, and the order of sets of strings is part of it.
        os.execve(sys.executable, [sys.executable, "-m", "phalanx.testing.simulation", *sys.argv[1:]],
                  {**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
    parser = argparse.ArgumentParser(prog="python -m phalanx.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000, help="of each seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="go on with further seeds until so much time is gone"
    )
    parser.add_argument("--story", action="store_true", help="print what happened also where nothing failed")
    asked = parser.parse_args()
    began, steps, seed = time.monotonic(), 0, asked.seed
    while True:
        result = simulate(seed, asked.steps)
        steps += result.steps
        spent = time.monotonic() - began
        print(_line(result, spent, steps), flush=True)
        if asked.story:
            print("\n".join(result.story))
        if result.violation is not None:
            return _tell(result)
        seed += 1
        if (asked.seconds and spent > asked.seconds) or (not asked.seconds and seed >= asked.seed + asked.seeds):
            print(f"{steps} steps, {seed - asked.seed} seeds, no promise broken ({spent:.0f} s)")
            return 0


def _line(result: Result, spent: float, steps: int) -> str:
    return (
        f"seed {result.seed}: {result.steps} steps, {result.rounds} rounds, {len(result.faults)} faults, "
        f"{result.troubles} troubles, {result.checks} commits checked, {result.seconds:.0f} s simulated, "
        f"story {result.digest} ({steps / spent:.0f} steps/s)"
    )


def _tell(failed: Result) -> int:
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
