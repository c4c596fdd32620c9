"""Play random life cycles of workloads of every kind: a number of sequences per kind, or as many as some seconds allow.

`make fuzz-workloads SEQUENCES=… SEED=…` or `make fuzz-workloads SECONDS=…`. A violated invariant is printed as soon as
it is found, with its seed and branch; `make fuzz-workloads STORY="Job" SEED=… BRANCH=5` plays that sequence again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy comes: a process with one thread is copied

from support.lifecycle.kinds import kinds
from support.lifecycle.run import Broken
from support.lifecycle.sequences import BRANCHES, Tree, notify
from support.lifecycle.trees import tell_all, trees_of

AT_ONCE = 50  # trees of a kind before the clock is looked at; fewer would pay more for clusters than for stories


class Outcome(NamedTuple):
    kind: str
    reasons_by_state: list[str]  # what each is about
    ended: int  # of them, as they run until nothing is left
    events: int  # that happened; those which stories share once
    broken: list[str]
    seconds: float  # of CPU


def _notify(kind: str, first: int, trees: int) -> Outcome:
    began = _cpu()
    announced = tell_all(trees_of(kind, range(first, first + trees)))
    reasons_by_state = [_about(tree, note.branch) for tree, note in announced.branches]
    ended = sum(note.ended for _, note in announced.branches)
    events = len(reasons_by_state) + sum(len(tree.shared()) for tree in {tree for tree, _ in announced.branches})
    return Outcome(kind, reasons_by_state, ended, events, announced.broken, _cpu() - began)


def _about(tree: Tree, branch: int | None) -> str:
    story = tree.story(branch)
    return json.dumps([tree.name, story.like, [step.event for step in story.steps]])


def _cpu() -> float:
    """Of this process and the copies it made."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _turns(seed: int, sequences: int) -> Iterator[tuple[str, int, int]]:
    """(kind, first seed, how many trees); sequences: of every kind, at least, 0 for no end."""
    done, trees = 0, -(-sequences // BRANCHES)
    while not sequences or done < trees:
        count = min(AT_ONCE, trees - done) if sequences else AT_ONCE
        yield from ((kind, seed + done, count) for kind in kinds())
        done += count


def _all(asked: argparse.Namespace) -> Iterator[Outcome]:
    """In the order in which they end; after the time nothing new is begun."""
    end = time.monotonic() + asked.seconds if asked.seconds else float("inf")
    turns = _turns(asked.seed, asked.sequences)
    with ProcessPoolExecutor(asked.processes) as pool:
        under_way: set[Future[Outcome]] = set()
        while True:
            while len(under_way) < asked.processes and time.monotonic() < end:
                turn = next(turns, None)
                if turn is None:
                    break
                under_way.add(pool.submit(_notify, *turn))
            if not under_way:
                return
            over, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in over)


def _one(name: str, seed: int, branch: int | None) -> int:
    try:
        notify([Tree(name, seed).story(branch)])
    except Broken as how:
        print(f"broken: {how}")
        return 1
    print("nothing broke")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=0, help="sequences of every kind; 0: without end")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to play; 0: without end")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--story", default="", help="play this variant alone")
    parser.add_argument("--branch", type=int, help="the sequence of the seed; without it, the part that all share")
    asked = parser.parse_args()
    if asked.story:
        return _one(asked.story, asked.seed, asked.branch)
    began, broken = time.monotonic(), 0
    reasons_by_state: dict[str, list[str]] = {kind: [] for kind in kinds()}
    ended, events, cpu = Counter[str](), Counter[str](), Counter[str]()
    for turn in _all(asked):
        reasons_by_state[turn.kind] += turn.reasons_by_state
        ended[turn.kind] += turn.ended
        events[turn.kind] += turn.events
        cpu[turn.kind] += turn.seconds
        broken += len(turn.broken)
        for how in turn.broken:
            print(f"broken: {how}", flush=True)
    for kind, announced in reasons_by_state.items():
        print(
            f"{kind}: {len(announced)} stories, {len(set(announced))} of them distinct, {ended[kind]} to the end, "
            f"{events[kind]} events, {cpu[kind]:.0f} s of CPU"
        )
    total = sum(map(len, reasons_by_state.values()))
    print(
        f"{total} stories from seed {asked.seed} on: {broken} broke a promise; "
        f"{cpu.total() / max(1, total) * 1000:.0f} ms of CPU each, {cpu.total() / 60:.1f} minutes in all, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
