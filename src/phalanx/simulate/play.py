"""Play a trace in virtual time: the planner sees each job at its submission and at its end."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phalanx.engine.reservations import (
    FOREVER,
    Demand,
    PlanSettings,
    StartPlanner,
    TopologyLevels,
    Unit,
    expected_seconds,
)
from phalanx.engine.reservations.units import LONGEST_SECONDS
from phalanx.model.kinds import Json
from phalanx.simulate.trace import LEVELS, Job, TraceCluster, estimate_of

END, NODE, SUBMIT, WAKE = 0, 1, 2, 3  # order of events at one time
MILLI = 1000  # CPUs are counted in thousandths
JOBS_PER_REPORT = 200
MOST_EXACT = 5_000_000  # jobs times nodes up to which expected ends are not rounded


@dataclass(slots=True)
class JobRun:
    """The run of one job."""

    job: Job
    start: float | None = None  # start of the last run
    end: float | None = None
    nodes: list[int] = field(default_factory=list)  # node row of each pod
    first_promise: float | None = None
    promise: float | None = None
    promised_at: float | None = None
    moves: int = 0
    why_moved: str = ""
    overtaken: int = 0
    evictions: int = 0
    done_work: float = 0.0
    estimate: float = 0.0
    generation: int = 0  # version of its end: an eviction invalidates the planned one


@dataclass(slots=True)
class Played:
    """A finished simulation."""

    cluster: TraceCluster
    runs: list[JobRun]
    lines: list[Json]  # the schedule, as JSON objects
    samples: list[tuple[float, float, int]]  # (time, GPUs or CPUs used, jobs waiting) after every change
    stranded: list[float]  # per sample: free capacity of partly used nodes
    settings: PlanSettings
    estimates: str
    seed: int
    searches: int = 0


class TracePlayer:
    """What a simulation records, and the events that are due."""

    def __init__(self, jobs: list[Job], cluster: TraceCluster, estimates: str, seed: int) -> None:
        self.jobs, self.cluster = jobs, cluster
        self.estimates, self.seed = estimates, seed
        self.runs = [JobRun(job, estimate=estimate_of(job, estimates, seed)) for job in jobs]
        self.lines: list[Json] = []
        self.samples: list[tuple[float, float, int]] = []
        self.stranded: list[float] = []
        self.used = 0.0
        # (time, kind, index of the job or node event, version of the job's end)
        self.heap: list[tuple[float, int, int, int]] = [(job.submit, SUBMIT, job.index, 0) for job in jobs]
        self.heap += [(event.at, NODE, i, 0) for i, event in enumerate(cluster.events)]
        heapq.heapify(self.heap)

    def begin(self, now: float, run: JobRun, nodes: list[int]) -> None:
        """Start a job on these node rows, one for each pod."""
        job = run.job
        run.start, run.nodes = now, nodes
        self.used += self.cluster.used_by(job)
        names = {str(pod): self.cluster.nodes[row].name for pod, row in enumerate(nodes)}
        self.lines.append({"t": now, "job": job.name, "event": "start", "nodes": names})
        heapq.heappush(self.heap, (now + job.duration - run.done_work, END, job.index, run.generation))

    def end(self, now: float, run: JobRun) -> None:
        run.end = now
        self.used -= self.cluster.used_by(run.job)
        self.lines.append({"t": now, "job": run.job.name, "event": "end"})

    def evict(self, now: float, run: JobRun) -> None:
        """Stop a job, which keeps its work up to the last checkpoint."""
        assert run.start is not None
        ran, step = now - run.start, run.job.checkpoint
        run.done_work += ran // step * step if step else 0.0
        run.start, run.promise, run.nodes = None, None, []
        run.evictions += 1
        run.generation += 1
        self.used -= self.cluster.used_by(run.job)
        self.lines.append({"t": now, "job": run.job.name, "event": "evict"})

    def played(self, settings: PlanSettings, searches: int) -> Played:
        parts = self.cluster, self.runs, self.lines, self.samples, self.stranded
        return Played(*parts, settings, self.estimates, self.seed, searches)


class Player(TracePlayer):
    def __init__(
        self, jobs: list[Job], cluster: TraceCluster, settings: PlanSettings, estimates: str, seed: int
    ) -> None:
        super().__init__(jobs, cluster, estimates, seed)
        self.settings = settings
        self.by_name = {job.name: run for job, run in zip(jobs, self.runs, strict=True)}
        self.free = _amounts(jobs, cluster)
        topology = TopologyLevels(
            [[n.domains[i] for n in cluster.nodes] for i in range(len(LEVELS))], len(cluster.nodes)
        )
        begin = min(job.submit for job in jobs)
        coarse = len(jobs) * len(cluster.nodes) > MOST_EXACT
        self.planner = StartPlanner(begin, self.free, topology, settings, coarse=coarse)
        self.levels: dict[tuple[int, int], int] = {}
        self.down: set[int] = set()

    def play(self, notify: Callable[[int, int], None] | None = None) -> Played:
        """Run until every feasible job has ended. `notify`: called with ended jobs and all jobs."""
        ended, wake = 0, FOREVER
        while self.heap:
            now = self.heap[0][0]
            before = ended
            while self.heap and self.heap[0][0] == now:
                ended += self._handle_event(now, heapq.heappop(self.heap))
            self._decide(now)
            soon = self.planner.next_wake()
            if soon != wake and soon < FOREVER and self.planner.waiting:
                heapq.heappush(self.heap, (soon, WAKE, 0, 0))
                wake = soon
            if notify is not None and ended // JOBS_PER_REPORT != before // JOBS_PER_REPORT:
                notify(ended, len(self.jobs))
        return self.played(self.settings, self.planner.searches)

    def _handle_event(self, now: float, event: tuple[float, int, int, int]) -> int:
        _, kind, index, generation = event
        if kind == SUBMIT:
            self.planner.submit(self._unit(self.runs[index]))
        elif kind == NODE:
            self._node(now, index)
        elif kind == END and generation == self.runs[index].generation:
            run = self.runs[index]
            self.planner.end(run.job.name, now)
            self.end(now, run)
            return 1
        return 0

    def _unit(self, run: JobRun) -> Unit:
        job = run.job
        key = (job.pods, job.gpus_per_pod)
        if key not in self.levels:
            self.levels[key] = self.cluster.level_of(job.gpus, job.pods, job.gpus_per_pod)
        request = (job.gpus_per_pod, round(job.cpus_per_pod * MILLI))[: self.free.shape[0]]
        demand = Demand(job.pods, request, self.levels[key])
        expected = expected_seconds(run.estimate)
        return Unit(job.name, demand, job.priority, job.submit, job.index, expected, float(max(1, job.gpus)))

    def _node(self, now: float, index: int) -> None:
        """Handle a node event: fail or drain (jobs lose work since the last checkpoint), cordon, or join."""
        event = self.cluster.events[index]
        if event.what == "join":
            if event.node in self.down:
                self.down.discard(event.node)
                self.planner.change_capacity(event.node, self.free[:, event.node], now)
            return
        self.down.add(event.node)
        if event.what != "cordon":
            running = [self.by_name[name] for name in self.planner.running]
            for run in sorted(running, key=lambda run: run.job.index):
                if event.node in run.nodes:
                    self._evict(now, run)
        self.planner.change_capacity(event.node, np.zeros_like(self.free[:, event.node]), now)

    def _evict(self, now: float, run: JobRun) -> None:
        self.planner.end(run.job.name, now, completed=False)
        self.evict(now, run)
        self.planner.submit(self._unit(run))

    def _decide(self, now: float) -> None:
        out = self.planner.decide(now)
        for promise in out.promises:
            run = self.by_name[promise.name]
            if run.first_promise is None:
                run.first_promise, run.promised_at = promise.start_by, now
            if promise.moved_from is not None:
                run.moves, run.why_moved = run.moves + 1, str(promise.reason)
            run.promise = promise.start_by
            by = min(promise.start_by, now + LONGEST_SECONDS)  # JSON has no infinity for a withdrawn promise
            line = {"t": now, "job": promise.name, "event": "promise", "start_by": by}
            self.lines.append(line | ({"why": run.why_moved} if promise.moved_from is not None else {}))
        for start in out.starts:
            run = self.by_name[start.name]
            run.overtaken = start.overtaken
            rows, counts = start.where.rows.tolist(), start.where.counts.tolist()
            self.begin(now, run, [row for row, n in zip(rows, counts, strict=True) for _ in range(n)])
        self.samples.append((now, self.used, len(self.planner.waiting)))
        self.stranded.append(self._free_on_partly_used_nodes())

    def _free_on_partly_used_nodes(self) -> float:
        """Return the free capacity of partly used nodes, which gangs of whole nodes cannot use."""
        row = 0 if self.cluster.gpus else 1
        free, whole = self.planner.free[row], self.planner.capacity[row]
        return float(np.maximum(free, 0).sum(where=free < whole)) / (1 if row == 0 else MILLI)


def _amounts(jobs: list[Job], cluster: TraceCluster) -> np.ndarray[Any, np.dtype[np.integer[Any]]]:
    """Return (resource, node) capacity: GPUs, and CPUs unless GPUs always run out first."""
    gpus = np.array([node.gpus for node in cluster.nodes])
    cpus = np.array([node.cpus for node in cluster.nodes])
    per_gpu = max((job.cpus_per_pod / job.gpus_per_pod for job in jobs if job.gpus_per_pod), default=0.0)
    no_gpus = any(job.cpus_per_pod and not job.gpus_per_pod for job in jobs)
    if not no_gpus and bool((cpus >= gpus * per_gpu).all()) and 0 < int(gpus.max()) < 2**14:
        return gpus[None].astype(np.int16)
    return np.stack([gpus, np.floor(cpus * MILLI)]).astype(np.int32)
