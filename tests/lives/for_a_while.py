"""Stories of all kinds, some of each in turn from a seed on: so many of every kind, or as many as some seconds allow.

`make lives SEQUENCES=… SEED=…`, `make lives SECONDS=…`. What breaks a promise is printed as soon as it is found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple

from stories import tell_all
from variants import kinds

AT_ONCE = 50  # of a kind before the clock is looked at; fewer would pay more for clusters than for stories


class Told(NamedTuple):
    kind: str
    count: int
    broken: list[str]
    seconds: float  # of CPU


def _tell(kind: str, first: int, count: int) -> Told:
    began = time.process_time()
    return Told(kind, count, tell_all(kind, range(first, first + count)), time.process_time() - began)


def _turns(seed: int, sequences: int) -> Iterator[tuple[str, int, int]]:
    """(kind, first seed, how many); sequences: of every kind, 0 for no end."""
    done = 0
    while not sequences or done < sequences:
        count = min(AT_ONCE, sequences - done) if sequences else AT_ONCE
        yield from ((kind, seed + done, count) for kind in kinds())
        done += count


def _all(asked: argparse.Namespace) -> Iterator[Told]:
    """In the order in which they end; after the time nothing new is begun."""
    end = time.monotonic() + asked.seconds if asked.seconds else float("inf")
    turns = _turns(asked.seed, asked.sequences)
    with ProcessPoolExecutor(asked.processes) as pool:
        under_way: set[Future[Told]] = set()
        while True:
            while len(under_way) < asked.processes and time.monotonic() < end:
                turn = next(turns, None)
                if turn is None:
                    break
                under_way.add(pool.submit(_tell, *turn))
            if not under_way:
                return
            over, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in over)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=0, help="of every kind; 0: no end")
    parser.add_argument("--seconds", type=float, default=0.0, help="0: no end")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    began, told, broken, cpu = time.monotonic(), Counter[str](), 0, 0.0
    for turn in _all(asked):
        told[turn.kind] += turn.count
        broken += len(turn.broken)
        cpu += turn.seconds
        for how in turn.broken:
            print(f"broken: {how}", flush=True)
    of_each = ", ".join(f"{kind} {told[kind]}" for kind in kinds())
    print(
        f"{told.total()} stories from seed {asked.seed} on ({of_each}): {broken} broke a promise; "
        f"{cpu / max(1, told.total()) * 1000:.0f} ms of CPU each, {time.monotonic() - began:.0f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
