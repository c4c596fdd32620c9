"""Run random lives by hand: `python -m support.random_world pods|groups EVENTS SEED [SEEDS]`."""

from __future__ import annotations

import hashlib
import sys

from phalanx.engine.decisions import encode
from support.random_world.events import GROUP_EVENTS, POD_EVENTS
from support.random_world.run import simulate

TABLES = {"pods": POD_EVENTS, "groups": GROUP_EVENTS}


def main(table: str, events: int, seed: int, seeds: int = 1) -> None:
    for each in range(seed, seed + seeds):
        done = simulate(TABLES[table], events, each)
        digest = hashlib.sha256(b"\n".join(map(encode, done.decisions))).hexdigest()[:12]
        figures = ", ".join(f"{count} {name}" for name, count in sorted(done.happened.items()))
        print(f"{table}: {events} events of seed {each}, nothing lost; {figures}; decisions {digest}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
