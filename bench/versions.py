"""Versions beside each other: what a pod costs each, in bursts in turns, so that a busy machine is busy for all.

Run: python bench/versions.py SUITE SOURCE SOURCE… [--rounds 12] [--burst 400], where SUITE is up, kubelets, apiserver,
watch (the same with 50 watchers) or list (of 5,000 pods, once a round), and SOURCE the src directory of a version; the
first one is what the others are compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
from pathlib import Path

import uvloop

from api import PODS, RawClient, RawWatcher, Target, cluster, connect, create, list_once, pod
from e2e import plain_pod

CLIENTS = 16
WATCHERS = 50
LISTED, LISTS = 5000, 4  # pods, times a round
QUIET = 0.02  # seconds of CPU in 0.4: the rest of a burst is done
SUITES = {
    "up": (("up", "--nodes", "0", "--no-nodes"), "spec.nodeName!%3D"),
    "kubelets": (("up", "--nodes", "1000"), "status.phase%3DRunning"),
    "apiserver": (("apiserver",), ""),
    "watch": (("apiserver",), "metadata.name!%3Dx"),
    "list": (("apiserver",), ""),
}


def cpu(target: Target) -> float:
    """Seconds of all threads, more exact than `Target.cpu`."""
    tasks = Path(f"/proc/{target.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def as_large(name: str) -> bytes:
    """A pod that is as large in every version: 0.1.0 gave pods no volume of their service account."""
    return pod(name).replace(b'"spec": {', b'"spec": {"automountServiceAccountToken": false, ', 1)


async def listed(target: Target) -> float:
    """Microseconds of CPU per 1,000 bytes of lists of all: pods of one version are larger than those of another."""
    before, sizes = cpu(target), 0
    for _ in range(LISTS):
        sizes += (await list_once(target))[1]
    return (cpu(target) - before) / sizes * 1e9


async def burst(target: Target, watchers: list[RawWatcher], bodies: list[bytes]) -> float:
    """Microseconds of CPU per pod until the last is created, and seen by those who watch."""
    left = iter(bodies)
    for watcher in watchers:
        watcher.expect(len(bodies))
    rest = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    before = cpu(target)
    made = await connect(target, lambda head: RawClient(head + rest, left), f"POST {PODS}", CLIENTS)
    await asyncio.gather(*(client.done for client in made))
    for watcher in watchers:
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
        servers: list[tuple[Target, list[RawWatcher]]] = []
        for source in sources:
            os.environ["PYTHONPATH"] = source
            target, _ = running.enter_context(cluster(*arguments))
            watchers: list[RawWatcher] = []
            if suite == "up":
                await create(target, "nodes", "node", 1000, CLIENTS)
            if suite == "list":
                await create(target, "pods", "pod", LISTED, CLIENTS)
            if selector:
                request = f"GET {PODS}?watch=true&resourceVersion=0&fieldSelector={selector}"
                count = WATCHERS if suite == "watch" else 1
                watchers = await connect(target, lambda head: RawWatcher(head, 0), request, count)
            servers.append((target, watchers))
        costs: list[list[float]] = [[] for _ in sources]
        for turn in range(rounds + 1):
            order = range(len(sources)) if turn % 2 else reversed(range(len(sources)))
            for number in order:
                made = {"apiserver": pod, "watch": as_large}.get(suite, plain_pod)
                bodies = [made(f"pod-{turn:03d}-{n:05d}") for n in range(pods)]
                target, watchers = servers[number]
                spent = await (listed(target) if suite == "list" else burst(target, watchers, bodies))
                if turn:  # the first warms up
                    costs[number].append(spent)
    for source, found in zip(sources, costs, strict=True):
        ratio = statistics.median(mine / first for mine, first in zip(found, costs[0], strict=True))
        print(f"{source}: least {min(found):.4g}, median {statistics.median(found):.4g} µs; {ratio:.3f} of the first")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--burst", type=int, default=400)
    given = parser.parse_args()
    uvloop.run(compare(given.suite, given.sources, given.rounds, given.burst))
