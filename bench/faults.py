"""Trials with real processes and faults that no unit test can make. Ends with code 1 when a promise was broken.

    python bench/faults.py outage [--seconds 180]   # a TLS server that is killed, slammed, silenced; 40 callers
    python bench/faults.py lease [--seconds 120]    # two schedulers, an outside writer of their lease, 2,000m nodes
    python bench/faults.py question [--nodes 2000] [--pods 20000]   # a huge whatif while pods are bound

Every part is a `phalanx` process of its own over TLS (`stage.py`). `tests/system/test_trials.py` runs the first two for
some seconds each; docs/reliability.md has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.base.client import Resource
from phalanx.base.clock import rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.resources import LEASES
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from phalanx.model import quantity
from progress import announced, passing
from stage import Broken, Part, Stage, stage

Json = dict[str, Any]
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
JOBS = Resource("batch", "v1", "jobs", "Job")
CALLERS = 40
DURATION = 15.0  # seconds of a lease, where nothing else is configured


def node(name: str, cpu: str) -> Json:
    room = {"cpu": cpu, "memory": "256Gi", "pods": "250"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def pod(name: str, cpu: str) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def job(name: str, pods: int = 2, spread: bool = False) -> Json:
    labels = {"job": name}
    spec: Json = {**pod("", "100m")["spec"], "restartPolicy": "Never"}
    if spread:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    annotations = {"simulation.phalanx.dev/run-seconds": "1"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    count = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**count, "template": template},
    }


def election(directory: Path, duration: float) -> tuple[str, ...]:
    """A lease that runs out soon, so that a trial of seconds sees it happen."""
    file = directory / "scheduler.yaml"
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    times = {
        "leaseDuration": f"{duration}s",
        "renewDeadline": f"{duration * 2 / 3}s",
        "retryPeriod": f"{duration / 8}s",
    }
    file.write_text(json.dumps({**head, "leaderElection": times}))
    return "--config", str(file)


async def until(what: str, seconds: float, check: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until it was so."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if await check():
                return time.monotonic() - began
        except ApiProblem:
            pass
        await asyncio.sleep(0.02)
    raise Broken(f"{what}: not within {seconds:.0f} s")


async def bound(client: HttpClient, name: str, cpu: str = "100m") -> float:
    """Seconds from its creation until a pod has a node."""

    async def created() -> bool:
        with contextlib.suppress(AlreadyExists):
            await client.create(PODS, pod(name, cpu), "default")
        return True

    async def placed() -> bool:
        return bool(json.loads(await client.get(PODS, name, "default"))["spec"].get("nodeName"))

    await until(f"pod {name} is taken", 60, created)
    return await until(f"pod {name} is bound", 60, placed)


# -- a server that goes away


async def outage(seconds: float, seed: int = 1, longest: float = 25.0, duration: float = DURATION) -> None:
    """Faults for so long. `longest`: seconds the server may be away at once; more than the lease lasts."""
    async with stage(seed) as (world, client):
        nodes = await world.start_part("nodes", "nodes", "--nodes", "8")
        controllers = await world.start_part("controllers", "controllers")
        short = election(world.directory, duration)
        scheduler = await world.start_part("scheduler", "scheduler", "--health", "127.0.0.1:0", *short)
        parts = (scheduler, controllers, nodes)
        counts: Counter[str] = Counter()
        back = [await bound(client, "first")]  # seconds from the server's return to a bind
        callers = [asyncio.create_task(_call(world, number, counts)) for number in range(CALLERS)]
        began = time.monotonic()
        away = longest  # the first time the lease is surely lost
        while (over := time.monotonic() - began) < seconds:
            announced(int(over), int(seconds))
            await _go_away(world, counts, away)
            for part in parts:
                part.check_alive()
            if away == longest or world.rng.random() < 0.5:
                back.append(await bound(client, f"probe-{len(back)}"))
            await asyncio.sleep(world.rng.uniform(0.1, 2.0))
            away = world.rng.uniform(0.1, longest if world.rng.random() < 0.2 else 1.5)
        back.append(await bound(client, "last"))
        work = await _job_done(client)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        lost = scheduler.log_text().count("standing by to lead again")
        ended = {part.name: round(await part.terminate(), 1) for part in parts}
        for part in parts:
            if "Traceback" in part.log_text():
                raise Broken(f"{part.name} logged a traceback:\n{part.log_text()[-3000:]}")
        if not lost:
            raise Broken("the lease was never lost: the server was not away for long enough")
        back.sort()
        print(f"{time.monotonic() - began:.0f} s of faults: {dict(sorted(counts.items()))}; lease lost {lost} times")
        print(f"a pod is bound after the server's return: median {back[len(back) // 2]:.1f} s, worst {back[-1]:.1f} s")
        print(f"a Job is done after the last return: {work:.1f} s; from SIGTERM to the end, s: {ended}")


async def _call(world: Stage, number: int, counts: Counter[str]) -> None:
    """One of many clients on the same unreliable way: Jobs come and go, and pods are listed meanwhile."""
    async with HttpClient(load(world.through), user_agent=f"caller-{number}", timeout=5) as client:
        for turn in range(1 << 30):
            name = f"c{number}-{turn}"
            for call in (
                partial(client.create, JOBS, job(name), "default"),
                partial(client.list, PODS, "default", limit=50),
                partial(client.get, JOBS, name, "default"),
                partial(client.delete, JOBS, name, "default", propagation="Background"),
            ):
                try:
                    await call()
                    counts["answers"] += 1
                except ApiProblem as problem:
                    counts[problem.reason or type(problem).__name__] += 1
                await asyncio.sleep(0.5)


async def _go_away(world: Stage, counts: Counter[str], seconds: float) -> None:
    how = world.rng.choice(("slam", "turn away", "silence", "kill"))
    counts[f"times {how}"] += 1
    match how:
        case "slam":
            world.door.slam()
            await asyncio.sleep(seconds)
            await world.door.open()
        case "turn away":
            world.door.turn_away()
            await asyncio.sleep(seconds)
            world.door.turns_away = False
        case "silence":
            world.door.fall_silent()
            await asyncio.sleep(seconds)
            world.door.slam()
            await world.door.open()
        case "kill":
            world.server.kill()
            await asyncio.sleep(seconds)
            await world.server.start()


async def _job_done(client: HttpClient) -> float:
    await client.create(JOBS, job("last-job"), "default")

    async def done() -> bool:
        found = json.loads(await client.get(JOBS, "last-job", "default"))
        return bool((found.get("status") or {}).get("completionTime"))

    return await until("a Job is done", 60, done)


# -- a lease that is fought over


class Room:
    """Follows pods in the order of the store's commits: no node may ever hold more than it has."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pods: dict[str, tuple[str, int]] = {}
        self.used: Counter[str] = Counter()
        self.worst = 0
        self.binds = 0
        self.broken = ""

    def take(self, change: ObjectChange[Json]) -> None:
        node, cpu = self._pods.pop(change.name, ("", 0))
        self.used[node] -= cpu
        found = change.object
        if found is None or not found["spec"].get("nodeName"):
            return
        self.binds += not node
        node = found["spec"]["nodeName"]
        cpu = quantity.milli(found["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        self._pods[change.name] = (node, cpu)
        self.used[node] += cpu
        self.worst = max(self.worst, self.used[node])
        if self.used[node] > self._most:
            self.broken = f"{change.name} makes {self.used[node]}m on {node}, which has {self._most}m"


async def lease(seconds: float, seed: int = 1, thefts: bool = True) -> None:
    """First only conflicts, which must not change the leader; then take the lease and kill schedulers."""
    async with stage(seed) as (world, client):
        for number in range(4):
            await client.create(NODES, node(f"n{number}", "2"))
        room = Room(2000)
        following = asyncio.create_task(Informer(client, PODS, dict[str, Any], room.take).run())
        schedulers = [await world.start_part(f"scheduler-{n}", "scheduler", "--health", "127.0.0.1:0") for n in "ab"]
        counts: Counter[str] = Counter()
        touching = asyncio.create_task(_touch(client, counts))
        telling = asyncio.create_task(passing(seconds))
        try:
            await bound(client, "first", "500m")
            before = await _transitions(client)
            await _churn(world, client, room, seconds / 2 if thefts else seconds)
            if (after := await _transitions(client)) != before:
                raise Broken(f"conflicting writes deposed the leader {after - before} times")
            conflicts = counts["writes"]
            if thefts:
                churning = _churn(world, client, room, seconds / 2)
                await asyncio.gather(churning, _steal(world, client, schedulers, counts, seconds / 2))
            again = await bound(client, "last", "500m")
        finally:
            beside = (touching, following, telling)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        for part in schedulers:
            part.check_alive()
        await asyncio.gather(*(part.terminate() for part in schedulers))
        if room.broken:
            raise Broken(room.broken)
        print(f"{conflicts} outside writes of the lease changed no leader")
        print(f"then {dict(counts)}; {await _transitions(client)} changes of leader in all")
        print(f"{room.binds} pods bound, at most {room.worst}m of 2000m on a node; bound again after {again:.1f} s")


async def _touch(client: HttpClient, counts: Counter[str]) -> None:
    """Write the lease unchanged all the time, so that its holder meets conflicts."""
    number = 0
    while True:
        number += 1
        try:
            patch = {"metadata": {"annotations": {"touched": str(number)}}}
            await client.patch(LEASES, "phalanx-scheduler", patch, "kube-system")
            counts["writes"] += 1
        except ApiProblem:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.05)


async def _transitions(client: HttpClient) -> int:
    found = json.loads(await client.get(LEASES, "phalanx-scheduler", "kube-system"))
    return int(found["spec"].get("leaseTransitions") or 0)


async def _steal(
    world: Stage, client: HttpClient, schedulers: list[Part], counts: Counter[str], seconds: float
) -> None:
    """Take the lease for as long as it lasts and give it back, or kill a scheduler."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(world.rng.uniform(0.5, 3.0))
        if world.rng.random() < 0.4:
            victim = world.rng.choice(schedulers)
            victim.kill()
            counts["kill -9"] += 1
            await victim.start()
            continue
        counts["thefts"] += 1
        # Given back at once, the next could begin before the last has noticed: leases know no better.
        for holder, lasts in (("outsider", DURATION), ("", 0.0)):
            spec = {"holderIdentity": holder, "renewTime": rfc3339_micro(time.time())}
            await client.patch(LEASES, "phalanx-scheduler", {"spec": spec}, "kube-system")
            await asyncio.sleep(lasts)


async def _churn(world: Stage, client: HttpClient, room: Room, seconds: float) -> None:
    """Keep more pods than fit; delete those that have a node."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end and not room.broken:
        for _ in range(4):
            number += 1
            size = world.rng.choice(("400m", "500m", "900m", "1100m"))
            await client.create(PODS, pod(f"p{end:.0f}-{number}", size), "default")
        for name in world.rng.sample(sorted(room._pods), k=len(room._pods) // 3):
            with contextlib.suppress(NotFound):
                await client.delete(PODS, name, "default", grace_seconds=0)
        await asyncio.sleep(0.02)
    for item in json.loads(await client.list(PODS, "default"))["items"]:
        if item["metadata"]["name"] not in ("first", "last"):
            await client.delete(PODS, item["metadata"]["name"], "default", grace_seconds=0)


# -- a huge question


async def question(nodes: int, pods: int, seed: int = 1) -> None:
    async with stage(seed) as (world, client):
        for start in range(0, nodes, 100):
            announced(start, nodes)
            made = (client.create(NODES, node(f"n{number}", "64")) for number in range(start, min(nodes, start + 100)))
            await asyncio.gather(*made)
        scheduler = await world.start_part("scheduler", "scheduler", "--health", "127.0.0.1:0")
        alone = [await bound(client, f"alone-{number}") for number in range(20)]
        file = world.directory / "huge.json"
        file.write_text(json.dumps(job("huge", pods, spread=True)))
        where = scheduler.line.split("health=")[1].strip()
        command = [sys.executable, "-m", "phalanx", "whatif", "-f", str(file)]
        command += ["--kubeconfig", str(world.through), "--scheduler", where]
        began = time.monotonic()
        asking = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        answer = asyncio.create_task(asking.communicate())
        meanwhile, renewals, longest, since = [], {""}, 0.0, time.monotonic()
        while not answer.done():
            meanwhile.append(await bound(client, f"meanwhile-{len(meanwhile)}"))
            found = json.loads(await client.get(LEASES, "phalanx-scheduler", "kube-system"))["spec"]
            if found["renewTime"] not in renewals:
                longest, since = max(longest, time.monotonic() - since), time.monotonic()
                renewals.add(found["renewTime"])
            await asyncio.sleep(0.05)
        took = time.monotonic() - began
        scheduler.check_alive()
        if await _transitions(client):
            raise Broken("the lease was lost while a question was thought about")
        printed = (await answer)[0].decode().strip()
        print(f"whatif of {pods} spread pods on {nodes} nodes: code {asking.returncode} after {took:.1f} s")
        print(f"  it printed: {printed.splitlines()[0][:160]} … {len(printed)} characters")
        print(
            f"  {len(meanwhile)} pods bound meanwhile, median {_median(meanwhile):.3f} s, worst {max(meanwhile):.3f} s"
        )
        print(f"  alone: median {_median(alone):.3f} s, worst {max(alone):.3f} s")
        print(f"  lease: {len(renewals) - 1} renewals, at most {longest:.1f} s apart")
        if asking.returncode not in (0, 1) and "too large" not in printed:
            raise Broken(f"the question was neither answered nor bounded: {printed[-2000:]}")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=["outage", "lease", "question"])
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=20_000)
    asked = parser.parse_args()
    trials = {
        "outage": lambda: outage(asked.seconds or 180.0, asked.seed),
        "lease": lambda: lease(asked.seconds or 120.0, asked.seed),
        "question": lambda: question(asked.nodes, asked.pods, asked.seed),
    }
    try:
        asyncio.run(trials[asked.trial]())
    except Broken as broken:
        print(f"BROKEN: {broken}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
