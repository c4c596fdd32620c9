"""Derive a trace and a cluster from a scheduler's recording (`phalanx up --record FILE`).

A group with its pods, or a pod without a group, is a job: it arrives when the scheduler first sees it, starts when its
first pod is bound and ends when its last pod ends. A job that never started gets its expected duration, else the median
of the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.engine import decisions, events
from phalanx.engine.state.requests import offered, pod_request
from phalanx.model.groups.keys import TOPOLOGY_KEYS
from phalanx.model.groups.policy import parse_annotations
from phalanx.model.objects import Node, Pod
from phalanx.simulate.trace import LEVELS, ClusterNode, Job, NodeEvent, TraceCluster

MILLI = 1000.0  # the engine counts CPUs in thousandths
ENDED = ("Succeeded", "Failed")
SHORTEST_SECONDS = 1.0  # duration of a job that ended within one scheduler step
_KEYS = {level: next(key for key in TOPOLOGY_KEYS if key.endswith("/" + level)) for level in LEVELS}


class _Line(msgspec.Struct, rename={"event": "in"}):
    head: dict[str, Any] | None = None
    event: msgspec.Raw = msgspec.Raw(b"")
    step: tuple[float, int] | None = None
    out: msgspec.Raw = msgspec.Raw(b"")


@dataclass(slots=True)
class _Seen:
    """Data of one job in a recording."""

    name: str
    submit: float
    pods: dict[str, tuple[int, float]] = field(default_factory=dict)  # key -> GPUs, CPUs
    running: set[str] = field(default_factory=set)
    start: float | None = None
    end: float | None = None
    priority: int = 0
    estimate: float | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    jobs: list[Job]
    cluster: TraceCluster
    never_started: int  # jobs with assumed duration


def is_recording(path: str | Path) -> bool:
    """Return whether a file starts like a recording."""
    try:
        with open(path, "rb") as file:
            return file.read(8) == b'{"head":'
    except OSError:
        return False  # the trace reader reports the problem


def read_recording(path: str | Path) -> Recorded:
    """Return jobs and nodes of a recording. Times are seconds since its first step."""
    reader = _Reader()
    begin: float | None = None
    now = 0.0
    pending_events: list[events.Event] = []  # events since the last step, at which the engine handles them
    for number, line in _lines(Path(path)):
        try:
            if line.step is not None:
                begin = line.step[0] if begin is None else begin
                now = max(now, line.step[0] - begin)
                for event in pending_events:
                    reader.take(event, now)
                pending_events = []
            elif line.event:
                pending_events.append(events.decode(bytes(line.event)))
            elif line.out:
                decision = decisions.decode(bytes(line.out))
                if isinstance(decision, decisions.Bind):
                    reader.bound(f"{decision.namespace}/{decision.name}", now)
        except msgspec.DecodeError as problem:
            text = f"is not of this version: {problem}; simulate it with the version that wrote it"
            raise ConfigProblem(f"{path}, line {number}", text) from None
    jobs, never = reader.jobs(now)
    if not jobs or not reader.nodes:
        raise ConfigProblem(str(path), "has no job that started on a node; record a longer time")
    return Recorded(jobs, reader.cluster(Path(path).name), never)


def _lines(path: Path) -> Iterator[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, decoder.decode(line)
            except msgspec.DecodeError as problem:
                if not line.endswith(b"\n"):
                    return  # the recorder was killed while it wrote this line
                text = f"is not a line of a recording: {problem}; delete what follows the line before"
                raise ConfigProblem(f"{path}, line {number}", text) from None


class _Reader:
    def __init__(self) -> None:
        self.nodes: dict[str, ClusterNode] = {}
        self._events: list[tuple[float, str, str]] = []  # time, node, what
        self._up: set[str] = set()
        self._cordoned: set[str] = set()
        self._jobs: dict[str, _Seen] = {}
        self._job_of: dict[str, _Seen] = {}  # pod -> its job

    def take(self, event: events.Event, now: float) -> None:
        """Follow one recorded event."""
        if isinstance(event, events.NodeChanged):
            self._node(event.object, now)
        elif isinstance(event, events.PodChanged):
            self._pod(event.object, now)
        elif isinstance(event, events.Gone) and event.kind == "Pod":
            self._ended(f"{event.namespace}/{event.name}", now)
        elif isinstance(event, events.Gone) and event.kind == "Node" and event.name in self._up:
            self._up.discard(event.name)
            self._cordoned.discard(event.name)
            self._events.append((now, event.name, "fail"))

    def _node(self, node: Node, now: float) -> None:
        name, labels, offers = node.metadata.name, node.metadata.labels, node.status.allocatable
        if name not in self.nodes:
            gpus = sum(offered(resource, value) for resource, value in offers.items() if _is_gpu(resource))
            domains = tuple(labels.get(_KEYS[level], "") for level in LEVELS)
            self.nodes[name] = ClusterNode(name, int(gpus), offered("cpu", offers.get("cpu")) / MILLI, domains)
            if now > 0:
                self._events.append((0.0, name, "drain"))
        if name not in self._up:
            self._up.add(name)
            if now > 0:
                self._events.append((now, name, "join"))
        if node.spec.unschedulable != (name in self._cordoned):
            self._cordoned ^= {name}
            self._events.append((now, name, "cordon" if node.spec.unschedulable else "join"))

    def _pod(self, pod: Pod, now: float) -> None:
        meta, spec = pod.metadata, pod.spec
        key = f"{meta.namespace}/{meta.name}"
        job = self._job_of.get(key)
        if job is None:
            if pod.status.phase in ENDED:
                return  # its end was counted before
            group = spec.scheduling_group.pod_group_name if spec.scheduling_group else None
            name = f"{meta.namespace}/{group or meta.name}"
            job = self._jobs.get(name)
            if job is None or job.end is not None:  # another run with the same name
                name = name if job is None else f"{name}#{len(self._jobs)}"
                job = self._jobs[name] = _Seen(name, now)
            self._job_of[key] = job
            wants = pod_request(pod).amounts
            gpus = sum(amount for resource, amount in wants.items() if _is_gpu(resource))
            job.pods[key] = (math.ceil(gpus), wants.get("cpu", 0.0) / MILLI)
            job.priority = max(job.priority, spec.priority or 0)
            expected = parse_annotations(meta.annotations).fields.get("expected_duration_seconds")
            job.estimate = job.estimate or spec.active_deadline_seconds or expected
        if pod.status.phase in ENDED:
            self._ended(key, now)
        elif spec.node_name:
            self.bound(key, now)

    def bound(self, key: str, now: float) -> None:
        job = self._job_of.get(key)
        if job is not None:
            job.running.add(key)
            job.start = now if job.start is None else job.start

    def _ended(self, key: str, now: float) -> None:
        job = self._job_of.pop(key, None)
        if job is None:
            return
        if key in job.running:
            job.running.discard(key)
            if not job.running:
                job.end = now

    def jobs(self, last: float) -> tuple[list[Job], int]:
        """Return the jobs and the number of jobs that never started. Jobs still running at the end end there."""
        ends = {name: last if seen.running or seen.end is None else seen.end for name, seen in self._jobs.items()}
        ran = {n: max(SHORTEST_SECONDS, ends[n] - s.start) for n, s in self._jobs.items() if s.start is not None}
        if not ran:
            return [], len(self._jobs)
        typical = statistics.median(ran.values())
        found: list[Job] = []
        for name, seen in self._jobs.items():
            gpus, cpus = max(g for g, _ in seen.pods.values()), max(c for _, c in seen.pods.values())
            estimate = None if seen.estimate is None else float(seen.estimate)
            duration = ran.get(name, estimate or typical)
            found.append(
                Job(
                    name,
                    len(found),
                    seen.submit,
                    duration,
                    estimate,
                    len(seen.pods),
                    gpus,
                    cpus,
                    seen.priority,
                    user=name.partition("/")[0],
                )
            )
        return found, len(self._jobs) - len(ran)

    def cluster(self, name: str) -> TraceCluster:
        rows = {node: row for row, node in enumerate(self.nodes)}
        made = sorted(((at, rows[node], what) for at, node, what in self._events), key=lambda event: event[:2])
        return TraceCluster(name, tuple(self.nodes.values()), (), tuple(NodeEvent(*event) for event in made))


def _is_gpu(resource: str) -> bool:
    return resource.rpartition("/")[2].startswith("gpu")
