"""Memory of `phalanx up` under a steady load of short gangs: does it stay flat?

Run: python bench/soak.py [--minutes 60] [--rate 1.0] [--nodes 64] [--event-ttl 5m]

Each Job is a gang of four pods with eight seconds of simulated work, deleted five seconds after it ended. Prints the
resident memory of the server process once a minute, and its growth per hour over the second half of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from phalanx.base.resources import JOBS
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from stage import Part

SAMPLE_SECONDS = 10.0
WARM_UP = 0.5  # share of the run in which caches and the watch history fill


def job(number: int) -> dict[str, object]:
    container = {"name": "main", "image": "example/soak:1", "resources": {"limits": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "8"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {
        "parallelism": 4,
        "completions": 4,
        "completionMode": "Indexed",
        "ttlSecondsAfterFinished": 5,
        "scheduling": {"schedulingPolicy": {"gang": {}}},
        "template": template,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"soak-{number}"}, "spec": spec}


def resident_mebibytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no VmRSS")


def growth_per_hour(samples: list[tuple[float, float]]) -> float:
    """Return the slope of (seconds, MiB) over the part of the run after the warm-up, in MiB per hour."""
    late = samples[int(len(samples) * WARM_UP) :]
    return statistics.linear_regression([at for at, _ in late], [size for _, size in late]).slope * 3600


async def soak(minutes: float, rate: float, nodes: int, event_ttl: str) -> None:
    with tempfile.TemporaryDirectory(prefix="phalanx-soak-") as name:
        directory = Path(name)
        arguments = (
            "--data",
            name,
            "--listen",
            "127.0.0.1:0",
            "--nodes",
            str(nodes),
            "--no-demo",
            "--event-ttl",
            event_ttl,
        )
        server = Part(directory, "up", "up", *arguments)
        await server.start()
        assert server.process is not None
        samples: list[tuple[float, float]] = []
        made = 0
        began = time.monotonic()
        try:
            async with HttpClient(load(directory / "kubeconfig"), user_agent="soak", timeout=30) as client:
                while (now := time.monotonic() - began) < minutes * 60:
                    server.check_alive()
                    if now >= len(samples) * SAMPLE_SECONDS:
                        samples.append((now, resident_mebibytes(server.process.pid)))
                        if len(samples) % 6 == 1:
                            print(f"minute {now / 60:5.1f}: {samples[-1][1]:6.1f} MiB, {made} jobs created", flush=True)
                    if now * rate >= made:
                        await client.create(JOBS, job(made), "default")
                        made += 1
                    else:
                        await asyncio.sleep(0.05)
        finally:
            server.kill()
    print(f"{made} jobs, {made * 4} pods; second half of the run: {growth_per_hour(samples):+.1f} MiB per hour")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1.0, help="jobs per second")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--event-ttl", default="5m", help="how long events are kept; with 1h memory grows for an hour")
    options = parser.parse_args()
    asyncio.run(soak(options.minutes, options.rate, options.nodes, options.event_ttl))


if __name__ == "__main__":
    main()
