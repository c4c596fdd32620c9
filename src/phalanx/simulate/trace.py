"""Read traces (CSV, also gzipped) and cluster files (JSON); estimate run times. Errors name file, line and remedy."""

from __future__ import annotations

import csv
import gzip
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from phalanx.base.errors import ConfigProblem

NEEDED = ("job", "submit_s", "duration_s", "pods", "gpus_per_pod")
LEVELS = ("rack", "block", "zone")  # from small to large
MODES = ("given", "upper", "noisy", "exact")
# Typical time limits of users in seconds; generated estimates are rounded up to one of these.
TYPED_LIMITS = (600, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 259200, 604800, 1209600)
DAY = 86400
LONGEST_SECONDS = 1000 * 366 * DAY  # later times are mistakes, and too large for exact sums
MOST_PODS = 150_000  # of one job: Kubernetes supports no larger cluster
MOST_AMOUNT = 1_000_000  # GPUs or CPUs of a pod or a node
PRIORITIES = 2**31
EVENTS = ("fail", "drain", "cordon", "join")  # types of `node_events` in a cluster file; join ends the others


@dataclass(frozen=True, slots=True)
class Job:
    """One row of a trace: a gang of equal pods."""

    name: str
    index: int  # row of the file; breaks ties of `submit`
    submit: float  # seconds since the trace begins
    duration: float  # seconds of work; known only to the simulator, not to the planner
    estimate: float | None  # seconds, given by the user
    pods: int
    gpus_per_pod: int
    cpus_per_pod: float
    priority: int = 0
    checkpoint: float = 0.0  # seconds; 0: an eviction loses all work
    user: str = ""
    carried: bool = False  # running when the trace begins: uses the cluster, is not measured

    @property
    def gpus(self) -> int:
        return self.pods * self.gpus_per_pod


@dataclass(frozen=True, slots=True)
class ClusterNode:
    name: str
    gpus: int
    cpus: float
    domains: tuple[str, ...]  # as LEVELS


@dataclass(frozen=True, slots=True)
class DomainRule:
    """Gangs of more than `above` and up to `up_to` GPUs with `least_pods` pods must be in one domain of a level."""

    above: float
    up_to: float
    level: int
    least_pods: int = 1


@dataclass(frozen=True, slots=True)
class NodeEvent:
    at: float
    node: int
    what: str


@dataclass(frozen=True)
class TraceCluster:
    name: str
    nodes: tuple[ClusterNode, ...]
    rules: tuple[DomainRule, ...] = ()
    events: tuple[NodeEvent, ...] = ()

    @cached_property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def counted(self) -> str:
        """Return the measured resource: GPUs, or CPUs if no node has a GPU."""
        return "GPUs" if self.gpus else "CPUs"

    @property
    def capacity(self) -> float:
        return float(self.gpus or sum(node.cpus for node in self.nodes))

    def used_by(self, job: Job) -> float:
        """Return the part of the capacity that a running job uses."""
        return float(job.gpus if self.gpus else job.pods * job.cpus_per_pod)

    def with_gangs_in(self, level: str) -> TraceCluster:
        """Return the cluster with one more rule: every gang of two or more pods is in one domain."""
        rule = DomainRule(-1.0, math.inf, LEVELS.index(level), least_pods=2)
        return replace(self, rules=(rule, *self.rules))

    def level_of(self, gpus: int, pods: int, gpus_per_pod: int) -> int:
        """Return the level whose domain must hold the gang: that of the rule, or the next larger one with enough
        capacity."""
        for rule in self.rules:
            if rule.above < gpus <= rule.up_to and pods >= rule.least_pods:
                for level in range(rule.level, len(LEVELS)):
                    if self._most_pods(level, gpus_per_pod) >= pods:
                        return level
                return -1
        return -1

    def _most_pods(self, level: int, gpus_per_pod: int) -> int:
        room: dict[str, int] = {}
        for node in self.nodes:
            domain = node.domains[level]
            room[domain] = room.get(domain, 0) + (node.gpus // gpus_per_pod if gpus_per_pod else 10**9)
        return max(room.values())


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


class _Row:
    """One line of a trace; errors name the line."""

    def __init__(self, path: Path, line: int, values: dict[str, Any]) -> None:
        self.where, self.values = f"{path}, line {line}", values

    def wrong(self, column: str, text: str) -> ConfigProblem:
        return ConfigProblem(f"{self.where}, column {column}", text)

    def text(self, column: str) -> str:
        return (self.values.get(column) or "").strip()

    def number(self, column: str, default: float | None = None, *, least: float = 0.0, most: float) -> float:
        text = self.text(column)
        if not text:
            if default is None:
                raise self.wrong(column, "is empty; write a number or delete the row")
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{text!r} is not a number; correct it or delete the row") from None
        if not least <= value <= most:
            raise self.wrong(
                column, f"{text!r} must be a number from {least:g} to {most:g}; correct it or delete the row"
            )
        return value

    def seconds(self, column: str, default: float | None = None) -> float:
        return self.number(column, default, most=LONGEST_SECONDS)

    def duration(self, column: str, most: float = LONGEST_SECONDS) -> float:
        value = self.number(column, most=most)
        if not value:
            raise self.wrong(column, f"{self.text(column)!r} must be above 0; correct it or delete the row")
        return value

    def whole(self, column: str, default: int | None = None, *, least: int = 0, most: int) -> int:
        value = self.number(column, default, least=-math.inf, most=math.inf)
        if not least <= value <= most or value != int(value):
            text = f"{value:.15g} must be a whole number from {least} to {most}; correct it or delete the row"
            raise self.wrong(column, text)
        return int(value)


def read_trace(path: str | Path) -> list[Job]:
    """Return the jobs in file order. Rows need not be sorted by time."""
    path = Path(path)
    jobs: list[Job] = []
    seen: dict[str, int] = {}
    try:
        for line, values in _rows(path):
            row = _Row(path, line, values)
            job = _job(row, len(jobs))
            if job.name in seen:
                raise row.wrong("job", f"{job.name!r} is also on line {seen[job.name]}; give every job its own name")
            seen[job.name] = line
            jobs.append(job)
    except OSError as problem:
        raise ConfigProblem(str(path), f"cannot be read: {problem.strerror or problem}") from None
    except (UnicodeDecodeError, EOFError, csv.Error) as problem:
        raise ConfigProblem(str(path), f"is not a CSV file in UTF-8: {problem}") from None
    if not jobs:
        raise ConfigProblem(str(path), "has no jobs; one row per job below the header is needed")
    return jobs


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path) as f:
        reader = csv.DictReader(f)
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            text = f"the header has no column {', '.join(missing)}; a trace needs {', '.join(NEEDED)}"
            raise ConfigProblem(f"{path}, line 1", text)
        for values in reader:
            if None in values:
                text = "has more values than the header has columns; correct it or delete the row"
                raise ConfigProblem(f"{path}, line {reader.line_num}", text)
            yield reader.line_num, values


def _job(row: _Row, index: int) -> Job:
    name = row.text("job")
    if not name:
        raise row.wrong("job", "is empty; every job needs a name")
    return Job(
        name=name,
        index=index,
        submit=row.seconds("submit_s"),
        duration=row.duration("duration_s"),
        estimate=row.duration("estimate_s", math.inf) if row.text("estimate_s") else None,
        pods=row.whole("pods", least=1, most=MOST_PODS),
        gpus_per_pod=row.whole("gpus_per_pod", most=MOST_AMOUNT),
        cpus_per_pod=row.number("cpus_per_pod", 0.0, most=MOST_AMOUNT),
        priority=row.whole("priority", 0, least=-PRIORITIES, most=PRIORITIES - 1),
        checkpoint=row.seconds("checkpoint_s", 0.0),
        user=row.text("user") or row.text("vc"),
        carried="carried" in row.text("status"),
    )


def read_cluster(path: str | Path) -> TraceCluster:
    """Return the cluster of a file; `node_events` are failures, drains and joins during the trace."""
    path = Path(path)
    try:
        data = json.loads(path.read_text())
    except OSError as problem:
        raise ConfigProblem(str(path), f"cannot be read: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise ConfigProblem(str(path), f"is not JSON: {problem}") from None
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list) or not data["nodes"]:
        raise ConfigProblem(str(path), "needs a list `nodes` with at least one node")
    nodes: dict[str, ClusterNode] = {}
    for i, item in enumerate(data["nodes"]):
        node = _node(f"{path}, nodes[{i}]", item)
        if node.name in nodes:
            raise ConfigProblem(f"{path}, nodes[{i}]", f"{node.name!r} is there twice; give every node its own name")
        nodes[node.name] = node
    if not any(node.gpus or node.cpus for node in nodes.values()):
        raise ConfigProblem(str(path), "has no node with GPUs or CPUs; give at least one node some")
    rules = tuple(_rule(f"{path}, rules[{i}]", item) for i, item in enumerate(_list(path, data, "rules")))
    rows = {name: i for i, name in enumerate(nodes)}
    listed = enumerate(_list(path, data, "node_events"))
    events = [_event(f"{path}, node_events[{i}]", item, rows) for i, item in listed]
    events.sort(key=lambda e: (e.at, e.node))
    return TraceCluster(str(data.get("name") or path.stem), tuple(nodes.values()), rules, tuple(events))


def _list(path: Path, data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name) or []
    if not isinstance(value, list):
        raise ConfigProblem(str(path), f"`{name}` must be a list")
    return value


def _node(where: str, item: Any) -> ClusterNode:
    try:
        gpus, cpus = int(item["gpus"]), float(item.get("cpus", 0))
        name = str(item["name"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise ConfigProblem(where, f"needs `name`, `gpus` and numbers in `gpus` and `cpus`: {problem!r}") from None
    if not (0 <= gpus <= MOST_AMOUNT and 0 <= cpus <= MOST_AMOUNT and name):
        raise ConfigProblem(where, f"needs a name, and amounts from 0 to {MOST_AMOUNT}")
    return ClusterNode(name, gpus, cpus, tuple(str(item.get(level) or "") for level in LEVELS))


def _rule(where: str, item: Any) -> DomainRule:
    try:
        return DomainRule(float(item["above_gpus"]), float(item["up_to_gpus"]), LEVELS.index(item["same"]))
    except (KeyError, TypeError, ValueError):
        raise ConfigProblem(where, f"needs `above_gpus`, `up_to_gpus` and `same` ({', '.join(LEVELS)})") from None


def _event(where: str, item: Any, rows: dict[str, int]) -> NodeEvent:
    try:
        event = NodeEvent(float(item["at_s"]), rows[item["node"]], str(item["event"]))
    except (KeyError, TypeError, ValueError):
        raise ConfigProblem(where, "needs `at_s`, the name of a `node` of this file, and `event`") from None
    if not 0 <= event.at <= LONGEST_SECONDS:
        raise ConfigProblem(where, f"`at_s` must be a number from 0 to {LONGEST_SECONDS}")
    if event.what not in EVENTS:
        raise ConfigProblem(where, f"{event.what!r} is not an event; use {', '.join(EVENTS)}")
    return event


def estimate_of(job: Job, mode: str, seed: int) -> float:
    """Return the estimated duration of a job in seconds.

    given: the trace's estimate, at least the duration; `upper` if it has none.
    upper: duration x (1 + an exponential number of mean 1), rounded up to a typical limit.
    noisy: duration x a log-normal factor (sigma 0.5): about half of the jobs overrun.
    exact: the duration.
    """
    if mode == "exact":
        return job.duration
    if mode == "given" and job.estimate is not None:
        return max(job.estimate, job.duration)
    draw = random.Random(f"{seed}:{job.name}")
    if mode == "noisy":
        return max(60.0, float(round(job.duration * math.exp(draw.gauss(0.0, 0.5)))))
    wanted = job.duration * (1.0 + draw.expovariate(1.0))
    for limit in TYPED_LIMITS:
        if limit >= wanted:
            return float(limit)
    return float(max(TYPED_LIMITS[-1], math.ceil(job.duration / DAY) * DAY))
