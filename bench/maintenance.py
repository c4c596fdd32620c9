"""A simulated month of a 512-GPU cluster with failures and drains, once per rescheduling policy.

Run: python bench/maintenance.py [--days 30] [--seeds 1,2] [--svg FILE]. Time is virtual, the engine is the product's
own. A gang works while it has its minimum on usable nodes, and saves a checkpoint every hour. Below its minimum it does
nothing; when it has its minimum again it goes on from its last checkpoint. A controller makes a new pod a few seconds
after one is gone. Each policy gets the same gangs with the same minimum and disruption mode, and the same failures and
drains. Figures are means over the seeds.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.engine import decisions as d
from phalanx.testing.builders import node, pod, pod_group, workload_policy
from phalanx.testing.cluster import Cluster
from progress import counted

NODES, GPUS, RACK = 64, 8, 8  # nodes; GPUs per node; nodes per rack
HOUR, DAY = 3600.0, 86_400.0
LOAD = 0.6  # of all GPU hours that gangs ask for
SIZES = ((1, 20), (2, 10), (4, 15), (8, 20), (16, 12), (32, 10), (64, 7), (128, 4), (256, 2))  # GPUs, weight
FAILURE_DAYS = 60.0  # mean time between failures of one node
REPAIR, DRAIN_TIME = 6 * HOUR, 1 * HOUR
EVICTED_AFTER = 300.0  # seconds until the pods of a failed node are deleted
DRAINS_PER_DAY = 2
CONTROLLER = 5.0  # seconds until a controller makes a pod again
CHECKPOINT = HOUR
WAKE = 1.0  # seconds between two steps in which nothing but time has passed
RACK_KEY = "topology.phalanx.dev/rack"

POLICIES: dict[str, dict[str, Any]] = {
    "Keep": {},
    "Replace": {"rescheduling": {"policy": "Replace"}},
    "TerminateAll": {"rescheduling": {"policy": "TerminateAll", "graceSeconds": 300, "maxRestarts": 1000}},
    "Shrink": {"rescheduling": {"policy": "Shrink"}},
}
MINIMUMS = (1.0, 0.75)  # of the pods of a gang


@dataclass
class Gang:
    name: str
    gpus: int
    work: float  # seconds at full size
    created: float
    pods: int
    minimum: int
    done: float = 0.0
    saved: float = 0.0  # `done` at the last checkpoint
    started: bool = False
    works: bool = False
    number: int = 0  # pods made so far
    members: set[str] = field(default_factory=set)

    @property
    def per_pod(self) -> int:
        return self.gpus // self.pods


@dataclass
class Totals:
    finished: float = 0
    useful: float = 0.0  # GPU hours of finished work and checkpoints
    below: float = 0.0  # GPU hours held by gangs below their minimum
    lost: float = 0.0  # GPU hours of work after a checkpoint that had to be done again
    restarts: float = 0  # interruptions: a gang that worked fell below its minimum
    waited: float = 0.0  # hours between creation and first start, of all gangs that started
    begun: float = 0
    curve: list[tuple[float, float]] = field(default_factory=list)  # (day, GPU hours below the minimum)


class FastCluster(Cluster):
    """A cluster that does not check the engine's tables after every event."""

    def _validate(self) -> None:
        return

    def step(self, seconds: float = 0.0, limit: int = 10_000) -> list[d.Decision]:
        self.now += seconds
        while True:
            out = self.engine.step(self.now, limit)
            for decision in out:
                self.perform(decision)
            if not out and not self._more():
                return []


class Month:
    def __init__(self, policy: str, seed: int, days: float, share: float = 1.0) -> None:
        self.policy, self.seed, self.end, self.share = policy, seed, days * DAY, share
        self.cluster = FastCluster(now=0.0)
        self.totals = Totals()
        self.gangs: dict[str, Gang] = {}
        self.gang_of: dict[str, Gang] = {}
        self.down: set[str] = set()  # nodes that failed
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        for number in range(NODES):
            self._node(f"n{number}")
        self._plan()

    # ---- what will happen

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, act))

    def _plan(self) -> None:
        rng = random.Random(self.seed)
        sizes, weights = zip(*SIZES, strict=True)
        asked, number, capacity = 0.0, 0, NODES * GPUS * self.end
        while asked < LOAD * capacity:
            gpus = rng.choices(sizes, weights)[0]
            work = min(rng.lognormvariate(1.4, 1.0), 72.0) * HOUR
            created = rng.uniform(0, self.end)
            asked += gpus * min(work, self.end - created)
            self._at(created, lambda name=f"g{number}", gpus=gpus, work=work: self._create(name, gpus, work))
            number += 1
        for index in range(NODES):
            when = rng.expovariate(1 / (FAILURE_DAYS * DAY))
            while when < self.end:
                self._at(when, lambda name=f"n{index}": self._fail(name))
                when += REPAIR + rng.expovariate(1 / (FAILURE_DAYS * DAY))
        for drain in range(int(DRAINS_PER_DAY * self.end / DAY)):
            name = f"n{rng.randrange(NODES)}"
            self._at((drain + 0.5) * DAY / DRAINS_PER_DAY, lambda name=name: self._drain(name))

    # ---- nodes

    def _node(self, name: str, *, usable: bool = True) -> None:
        made = node(name).cpu("256").gpu(GPUS).label(RACK_KEY, f"r{int(name[1:]) // RACK}")
        self.cluster.see(made if usable else made.unschedulable())

    def _fail(self, name: str) -> None:
        if name in self.down:
            return
        self.down.add(name)
        self._node(name, usable=False)
        self._at(self.cluster.now + EVICTED_AFTER, lambda: self._evict(self._on(name)))
        self._at(self.cluster.now + REPAIR, lambda: self._return(name))

    def _drain(self, name: str) -> None:
        """Evict as the eviction API does: gangs that go as a whole go together."""
        if name in self.down:
            return
        self._node(name, usable=False)
        gangs = dict.fromkeys(self.gang_of[pod].name for pod in self._on(name))
        self._evict([pod for gang in gangs for pod in self._placed(gang)])
        self._at(self.cluster.now + DRAIN_TIME, lambda: self._return(name))

    def _return(self, name: str) -> None:
        self.down.discard(name)
        self._node(name)

    def _on(self, name: str) -> list[str]:
        return [pod for pod, where in self.cluster.bound.items() if where == name]

    def _placed(self, gang: str) -> list[str]:
        return sorted(pod for pod in self.gangs[gang].members if pod in self.cluster.bound)

    def _evict(self, pods: list[str]) -> None:
        for name in pods:
            if name in self.cluster.pods:
                self.cluster.gone("Pod", name)

    # ---- gangs

    def _create(self, name: str, gpus: int, work: float) -> None:
        pods = max(1, gpus // GPUS)
        least = max(1, round(pods * self.share))
        gang = self.gangs[name] = Gang(name, gpus, work, self.cluster.now, pods, least)
        if self.policy != "Keep":
            self.cluster.see(workload_policy(name).target("PodGroup", name).set(**POLICIES[self.policy]))
        group = pod_group(name).gang(least).disrupt_all()
        self.cluster.see(group.topology(RACK_KEY) if pods <= RACK else group)
        for _ in range(pods):
            self._pod(gang)

    def _pod(self, gang: Gang) -> None:
        name = f"{gang.name}-{gang.number}"
        gang.number += 1
        gang.members.add(name)
        self.gang_of[name] = gang
        self.cluster.see(pod(name).gpu(gang.per_pod).group(gang.name).created(self.cluster.now))

    def _replace_lost(self) -> None:
        """Let the controllers notice pods that are gone, and make them again a little later."""
        for gang in self.gangs.values():
            lost = [name for name in gang.members if name not in self.cluster.pods]
            for name in lost:
                gang.members.discard(name)
                del self.gang_of[name]
                self._at(self.cluster.now + CONTROLLER, lambda gang=gang: self._again(gang))

    def _again(self, gang: Gang) -> None:
        if gang.name in self.gangs:
            self._pod(gang)

    # ---- time

    def _usable(self, gang: Gang) -> int:
        bound = self.cluster.bound
        return sum(bound.get(name, "") not in ("", *self.down) for name in gang.members)

    def _pass(self, seconds: float) -> None:
        totals = self.totals
        for gang in self.gangs.values():
            held = sum(name in self.cluster.bound for name in gang.members)
            if gang.works:
                gang.done += seconds * self._usable(gang) / gang.pods
                gang.saved = gang.done - gang.done % CHECKPOINT
            elif held:
                totals.below += held * gang.per_pod * seconds / HOUR

    def _judge(self) -> None:
        for gang in list(self.gangs.values()):
            works = self._usable(gang) >= gang.minimum
            if works and not gang.started:
                gang.started = True
                self.totals.begun += 1
                self.totals.waited += (self.cluster.now - gang.created) / HOUR
            if gang.works and not works:
                self.totals.restarts += 1
                self.totals.lost += (gang.done - gang.saved) * gang.gpus / HOUR
                gang.done = gang.saved
            gang.works = works
            if gang.done >= gang.work - 1.0:
                self._finish(gang)

    def _finish(self, gang: Gang) -> None:
        self.totals.finished += 1
        self.totals.useful += gang.work * gang.gpus / HOUR
        del self.gangs[gang.name]
        for name in gang.members:
            self.gang_of.pop(name, None)
        self._evict(sorted(gang.members))
        self.cluster.gone("PodGroup", gang.name)
        if self.policy != "Keep":
            self.cluster.gone("WorkloadPolicy", gang.name)

    def _next(self) -> float:
        now = self.cluster.now
        times = [self._events[0][0] if self._events else self.end, self.end]
        due = self.cluster.engine.maintenance.next_time()
        if due is not None:
            times.append(max(due, now + WAKE))
        for gang in self.gangs.values():
            if gang.works:
                times.append(now + (gang.work - gang.done) * gang.pods / max(1, self._usable(gang)))
        return min(times)

    def run(self) -> Totals:
        shown = 0.0
        while self.cluster.now < self.end:
            before = self.cluster.now
            due = self._next()
            self._pass(due - before)
            self.cluster.now = due
            while self._events and self._events[0][0] <= due:
                heapq.heappop(self._events)[2]()
            self._judge()
            self.cluster.step()
            self._replace_lost()
            self._judge()
            if due >= shown:
                self.totals.curve.append((due / DAY, self.totals.below))
                shown = due + DAY / 4
        for gang in self.gangs.values():
            self.totals.useful += gang.saved * gang.gpus / HOUR
        return self.totals


# ---- table and plot

COLUMNS = ("gangs finished", "useful GPU h", "GPU h below minimum", "restarts", "GPU h lost", "mean wait h")
COLOURS = {"Keep": "#b3261e", "Replace": "#1f6feb", "TerminateAll": "#1a7f37", "Shrink": "#9a6700"}


def row(found: Totals) -> list[str]:
    wait = found.waited / max(1, found.begun)
    values = (found.finished, found.useful, found.below, found.restarts, found.lost)
    return [*(f"{value:,.0f}" for value in values), f"{wait:.1f}"]


def mean(found: list[Totals]) -> Totals:
    """Return the mean of the figures; the curve is that of the first seed."""
    numbers = {
        name: sum(getattr(each, name) for each in found) / len(found)
        for name in ("finished", "useful", "below", "lost", "restarts", "waited", "begun")
    }
    return Totals(**numbers, curve=found[0].curve)


def table(results: dict[str, Totals]) -> str:
    lines = [f"| policy | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    return "\n".join([*lines, *(f"| `{name}` | {' | '.join(row(found))} |" for name, found in results.items())])


def plot(results: dict[str, Totals]) -> str:
    """Return an SVG: GPU hours that gangs below their minimum have held, over the month."""
    width, height, left, bottom = 720, 320, 70, 40
    days = max(day for found in results.values() for day, _ in found.curve)
    most = max(max(value for _, value in found.curve) for found in results.values()) or 1.0
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    parts = [
        f'{opening} font-family="sans-serif" font-size="12">',
        "<title>GPU hours held by gangs below their minimum</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for tick in range(5):
        y = height - bottom - tick / 4 * (height - bottom - 20)
        parts.append(f'<line x1="{left}" x2="{width - 110}" y1="{y:.0f}" y2="{y:.0f}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{most * tick / 4:,.0f}</text>')
    for name, found in results.items():
        points = [
            (left + day / days * (width - left - 110), height - bottom - value / most * (height - bottom - 20))
            for day, value in found.curve
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
    last = sorted(results, key=lambda name: -results[name].curve[-1][1])
    for number, name in enumerate(last):
        parts.append(f'<text x="{width - 100}" y="{30 + 18 * number}" fill="{COLOURS[name]}">{name}</text>')
    parts.append(f'<text x="{(left + width - 110) / 2:.0f}" y="{height - 10}" text-anchor="middle">day</text>')
    parts.append(f'<text x="{left}" y="14">GPU hours held by gangs below their minimum, summed</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--seeds", default="1,2", help="numbers, separated by commas")
    parser.add_argument("--policy", choices=list(POLICIES), action="append", help="only this policy")
    parser.add_argument("--svg", help="write the plot to this file")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    runs = [(share, name, seed) for share in MINIMUMS for name in given.policy or POLICIES for seed in seeds]
    found: dict[tuple[float, str], list[Totals]] = {}
    for share, name, seed in counted(runs):
        found.setdefault((share, name), []).append(Month(name, seed, given.days, share).run())
    for share in MINIMUMS:
        results = {name: mean(totals) for (its, name), totals in found.items() if its == share}
        print(f"minimum: {share:.0%} of the pods\n\n{table(results)}\n")
        if given.svg and share == 1.0:
            with open(given.svg, "w", encoding="utf-8") as out:
                out.write(plot(results))


if __name__ == "__main__":
    main()
