"""From JobSets to pods: 1,000 JobSets of 8 pods posted over TLS, until every Workload, PodGroup and pod exists.

Run: python bench/workloads.py [--sets N] [--mode scheduling|gangConfig|tree] [--scheduler] [--profile FILE]
  --scheduler     with the scheduler in the same process, as in `phalanx up` (and no nodes, so that nothing is bound)
  --profile FILE  everything in this process under cProfile; figures are then slower than life

The server with its controllers is a process of its own; the load and the counting watchers are others.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from api import PODS, RawClient, RawWatcher, Target, _run, connect
from progress import announced

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
WORKLOADS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads"
CLIENTS = 16
WAYS: dict[str, dict[str, Any]] = {
    "scheduling": {"spec": {"scheduling": {"schedulingPolicy": {"gang": {}}}}},
    "gangConfig": {"spec": {"gangConfig": {"gangMode": "Gang"}}},
    "tree": {"metadata": {"annotations": {"scheduling.phalanx.dev/group-tree": "Job"}}},
}
GROUPS_OF = {"scheduling": 1, "gangConfig": 0, "tree": 2}


def jobset(name: str, way: str) -> bytes:
    """Two Jobs of four pods each."""
    pod = {"containers": [{"name": "main", "image": "trainer", "resources": {"requests": {"cpu": "1"}}}]}
    template = {"spec": {"parallelism": 4, "completions": 4, "template": {"spec": pod}}}
    chosen = WAYS[way]
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, **chosen.get("metadata", {})},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 2, "template": template}], **chosen.get("spec", {})},
    }
    return json.dumps(body).encode()


async def load(target: Target, bodies: list[bytes]) -> float:
    left = iter(bodies)
    rest = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    started = time.perf_counter()
    made = await connect(target, lambda head: RawClient(head + rest, left), f"POST {JOBSETS}", CLIENTS)
    await asyncio.gather(*(client.done for client in made))
    return time.perf_counter() - started


async def count(target: Target, wanted: dict[str, int], seconds: float) -> dict[str, tuple[float, int]]:
    """When the last object of each kind appeared in a watch, and how many did."""
    found: dict[str, tuple[float, int]] = {}

    async def one(path: str, number: int) -> None:
        request = f"GET {path}?watch=true&resourceVersion=0"
        (watcher,) = await connect(target, lambda head: RawWatcher(head, number), request, 1)
        await asyncio.wait([watcher.done], timeout=seconds)
        found[path] = (watcher.last, watcher.count)

    await asyncio.gather(*(one(path, number) for path, number in wanted.items() if number))
    return found


@contextmanager
def server(scheduler: bool) -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--serve", directory, *(["--scheduler"] if scheduler else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield Target.read(Path(directory) / "kubeconfig", process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def measure(target: Target, sets: int, way: str) -> None:
    wanted = {PODS: 8 * sets, WORKLOADS: sets, GROUPS: GROUPS_OF[way] * sets}
    bodies = [jobset(f"set-{n:05d}", way) for n in range(sets)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        counting = pool.apply_async(_run, (count, (target, wanted, 30 + sets / 10)))
        announced(0, 3)
        time.sleep(1.5)  # the watchers connect
        announced(1, 3)
        before, started = target.cpu(), time.perf_counter()
        loading = pool.apply(_run, (load, (target, bodies)))
        announced(2, 3)
        found = counting.get()
    last = max(when for when, _ in found.values()) - started
    pods = found[PODS][1]
    numbers = ", ".join(f"{number:,} {path.rpartition('/')[2]}" for path, (_, number) in found.items())
    cpu = (target.cpu() - before) / max(pods, 1) * 1e6
    print(
        f"{sets:,} JobSets by {way}: {numbers} exist after {last:.1f} s = {pods / last:,.0f} pods/s "
        f"(JobSets posted in {loading:.1f} s; server CPU {cpu:.0f} µs per pod, "
        f"{target.memory():,.0f} MiB)"
    )


def part(directory: str, scheduler: bool) -> Any:
    from phalanx.serve.cluster import ClusterSettings, ServedCluster
    from phalanx.serve.parts import parts_of
    from phalanx.serve.settings import Listen, ServerSettings

    settings = ServerSettings(Path(directory) / "data", Listen("127.0.0.1", 0), Path(directory) / "kubeconfig")
    chosen = ClusterSettings(server=settings, run_nodes=False, run_scheduler=scheduler)
    return ServedCluster(chosen, parts_of(chosen))


def serve(directory: str, scheduler: bool) -> None:
    from phalanx.serve.process import run

    raise SystemExit(run(part(directory, scheduler), lambda: "ready", lambda text: print(text, flush=True)))


async def profiled(directory: str, scheduler: bool, profile: str, sets: int, way: str) -> None:
    running = part(directory, scheduler)
    await running.start()
    target = Target.read(Path(directory) / "kubeconfig", 0)
    watch = asyncio.create_task(count(target, {PODS: 8 * sets}, 30 + sets / 10))
    await asyncio.sleep(0.5)
    profiler = cProfile.Profile()
    profiler.enable()
    await load(target, [jobset(f"set-{n:05d}", way) for n in range(sets)])
    await watch
    profiler.disable()
    profiler.dump_stats(profile)
    await running.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--mode", choices=list(WAYS), default="scheduling")
    parser.add_argument("--scheduler", action="store_true")
    parser.add_argument("--profile", default="")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.scheduler)
    elif options.profile:
        with tempfile.TemporaryDirectory() as directory:
            uvloop.run(profiled(directory, options.scheduler, options.profile, options.sets, options.mode))
    else:
        with server(options.scheduler) as target:
            measure(target, options.sets, options.mode)


if __name__ == "__main__":
    main()
