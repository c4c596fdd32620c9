"""Versions beside each other: what a pod costs each, in bursts in turns, so that a busy machine is busy for all.

Run: python bench/versions.py SUITE SOURCE SOURCE… [--rounds 12] [--burst 400], where SUITE is up, kubelets or apiserver
and SOURCE the src directory of a version; the first one is what the others are compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
from pathlib import Path

import uvloop

from api import PODS, RawClient, RawWatcher, Target, cluster, connect, create
from e2e import plain_pod

CLIENTS = 16
QUIET = 0.02  # seconds of CPU in 0.4: the rest of a burst is done
SUITES = {
    "up": (("up", "--nodes", "0", "--no-nodes"), "spec.nodeName!%3D"),
    "kubelets": (("up", "--nodes", "1000"), "status.phase%3DRunning"),
    "apiserver": (("apiserver",), ""),
}


def cpu(target: Target) -> float:
    """Seconds of all threads, more exact than `Target.cpu`."""
    tasks = Path(f"/proc/{target.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def burst(target: Target, watcher: RawWatcher | None, bodies: list[bytes]) -> float:
    """Microseconds of CPU per pod until the last is created, and seen in the watch if there is one."""
    left = iter(bodies)
    if watcher is not None:
        watcher.expect(len(bodies))
    rest = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    before = cpu(target)
    made = await connect(target, lambda head: RawClient(head + rest, left), f"POST {PODS}", CLIENTS)
    await asyncio.gather(*(client.done for client in made))
    if watcher is not None:
        await watcher.done
    spent = cpu(target) - before
    while True:  # until it has nothing left to do: the others' turn is next
        before = cpu(target)
        await asyncio.sleep(0.4)
        if cpu(target) - before < QUIET:
            return spent / len(bodies) * 1e6


async def compare(suite: str, sources: list[str], rounds: int, pods: int) -> None:
    arguments, selector = SUITES[suite]
    with contextlib.ExitStack() as running:
        servers: list[tuple[Target, RawWatcher | None]] = []
        for source in sources:
            os.environ["PYTHONPATH"] = source
            target, _ = running.enter_context(cluster(*arguments))
            watcher = None
            if suite == "up":
                await create(target, "nodes", "node", 1000, CLIENTS)
            if selector:
                request = f"GET {PODS}?watch=true&resourceVersion=0&fieldSelector={selector}"
                (watcher,) = await connect(target, lambda head: RawWatcher(head, 0), request, 1)
            servers.append((target, watcher))
        costs: list[list[float]] = [[] for _ in sources]
        for turn in range(rounds + 1):
            order = range(len(sources)) if turn % 2 else reversed(range(len(sources)))
            for number in order:
                spent = await burst(*servers[number], [plain_pod(f"pod-{turn:03d}-{n:05d}") for n in range(pods)])
                if turn:  # the first warms up
                    costs[number].append(spent)
    for source, found in zip(sources, costs, strict=True):
        ratio = statistics.median(mine / first for mine, first in zip(found, costs[0], strict=True))
        print(f"{source}: least {min(found):.0f}, median {statistics.median(found):.0f} µs; {ratio:.3f} of the first")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--burst", type=int, default=400)
    given = parser.parse_args()
    uvloop.run(compare(given.suite, given.sources, given.rounds, given.burst))
