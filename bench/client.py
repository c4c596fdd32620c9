"""What a request costs the process that asks: our HTTP client on asyncio's loop and on uvloop's.

    python bench/client.py [--requests N] [--rounds N]

The product refuses the client on uvloop, where it was seen to abort when a server goes away (docs/reliability.md); here
the server stays. 64 callers over TLS; the figures are the client's process time per request, the best of some rounds
taken in turns, and requests per second of wall time, which say as much about the server.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from api import PODS, cluster, pod
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from progress import counted

CALLERS = 64


class UvLoop(uvloop.Loop):  # type: ignore[misc]
    """By another name: `HttpClient` refuses those of uvloop."""


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop, "uvloop": UvLoop}
Figures = tuple[float, float]  # µs of process time per request, requests per second


async def ask(kubeconfig: str, round_: str, requests: int) -> dict[str, Figures]:
    found = {}
    async with HttpClient(load(kubeconfig), connections=CALLERS) as client:
        for what in ("create", "get"):
            numbers = iter(range(requests))

            async def caller(what: str = what, numbers: object = numbers) -> None:
                for number in numbers:  # type: ignore[attr-defined]
                    if what == "create":
                        await client.request("POST", PODS, body=pod(f"{round_}-{number:06d}"))
                    else:
                        await client.request("GET", f"{PODS}/{round_}-{number:06d}")

            cpu, wall = time.process_time(), time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            found[what] = (cpu / requests * 1e6, requests / wall)
    return found


def run(loop: str, kubeconfig: str, round_: str, requests: int) -> dict[str, Figures]:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(ask(kubeconfig, round_, requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    best: dict[tuple[str, str], Figures] = {}
    with tempfile.TemporaryDirectory() as data, cluster("apiserver", data=data):
        kubeconfig = str(Path(data) / "kubeconfig")
        for number, loop in counted((number, loop) for number in range(options.rounds) for loop in LOOPS):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(run, (loop, kubeconfig, f"{loop}-{number}", options.requests))
            for what, (cpu, rate) in found.items():
                known = best.get((what, loop), (cpu, rate))
                best[what, loop] = (min(cpu, known[0]), max(rate, known[1]))
    for (what, loop), (cpu, rate) in sorted(best.items()):
        print(f"{what:6} on {loop:7}: {cpu:5.0f} µs of the client's process time, {rate:,.0f}/s")


if __name__ == "__main__":
    main()
