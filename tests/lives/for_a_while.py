"""Stories of all kinds, one kind after the other from a seed on, for so many seconds: `make lives SECONDS=… SEED=…`."""

from __future__ import annotations

import argparse
import sys
import time

from stories import tell_all
from variants import kinds

AT_ONCE = 20  # of a kind before the clock is looked at


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    began, told, broken, seed = time.monotonic(), 0, 0, asked.seed
    left = list(kinds())
    while time.monotonic() - began < asked.seconds:
        kind = left.pop(0)
        for how in tell_all(kind, range(seed, seed + AT_ONCE)):
            broken += 1
            print(f"broken: {how}", flush=True)
        told += AT_ONCE
        if not left:
            left, seed = list(kinds()), seed + AT_ONCE
    seconds = time.monotonic() - began
    print(
        f"{told} stories of {len(kinds())} kinds in turn, {told // len(kinds())} of each, from seed {asked.seed} on: "
        f"{broken} broke a promise; {time.process_time() / told * 1000:.0f} ms of CPU each, {seconds:.0f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
