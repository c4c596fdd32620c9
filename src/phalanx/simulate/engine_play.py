"""Play a trace on the real scheduler in virtual time: filters, scores, preemption, reservations, promises.

Every job is a PodGroup of equal pods (or a pod if it has one), in a namespace per user. Pods run as soon as they are
bound and stop at once when evicted; the job then starts again, from its last checkpoint if it has one.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable

import msgspec
import numpy as np

from phalanx.base.clock import rfc3339
from phalanx.base.well_known import GPU
from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.plugins.config import SchedulerConfig
from phalanx.engine.reservations import FOREVER, PlanSettings, expected_seconds
from phalanx.engine.reservations.units import LONGEST_SECONDS
from phalanx.model.groups.keys import HOSTNAME, TOPOLOGY_KEYS
from phalanx.model.kinds import Json
from phalanx.model.objects import Node, Pod, PodGroup
from phalanx.simulate.play import END, JOBS_PER_REPORT, MILLI, NODE, SUBMIT, WAKE, JobRun, Played, TracePlayer
from phalanx.simulate.trace import LEVELS, Job, TraceCluster

EPOCH = 1_700_000_000.0  # start time of a trace, seconds since the epoch
MOST_ATTEMPTS = 100_000  # units per step
LAST_WAKE_SECONDS = 3600.0  # seconds after the last event of a trace in which the engine may still act
LEAST_WAIT_SECONDS = 0.001  # minimum time between two steps
# no event is lost here, so no retry by time is needed, and pods start at once
PLAYED = EngineSettings(flush_after=1e12, start_drift=0.0)
KEYS = tuple(next(key for key in TOPOLOGY_KEYS if key.endswith("/" + level)) for level in LEVELS)


class EnginePlayer(TracePlayer):
    """The environment of one engine: arriving and ending jobs, failing nodes, and promised starts."""

    def __init__(
        self, jobs: list[Job], cluster: TraceCluster, config: SchedulerConfig, estimates: str, seed: int
    ) -> None:
        super().__init__(jobs, cluster, estimates, seed)
        self.config = config
        self.steps = 0
        self.engine = Engine(config.engine(PLAYED))
        self._waiting: dict[str, JobRun] = {}  # by unit key
        self._pods: dict[str, tuple[JobRun, int, Pod]] = {}  # by uid: job, pod number and latest version
        self._nodes_of: dict[int, dict[int, str]] = {}  # index of a job -> pod number -> node
        self._nodes = [_node(node.name, node.gpus, node.cpus, node.domains) for node in cluster.nodes]
        self._rows = {node.name: row for row, node in enumerate(cluster.nodes)}
        self._free = np.array([node.gpus if cluster.gpus else node.cpus for node in cluster.nodes], dtype=np.float64)
        self._whole = self._free.copy()
        self._started: list[tuple[int, float, int]] = []  # order of started jobs, sorted
        for node in self._nodes:
            self.engine.apply(e.NodeChanged(node))

    def play(self, notify: Callable[[int, int], None] | None = None) -> Played:
        """Run until every feasible job has ended. `notify`: called with ended jobs and all jobs."""
        ended, last, wake = 0, 0.0, FOREVER
        while self.heap and ended < len(self.jobs):
            now, before = self.heap[0][0], ended
            if now > last + LAST_WAKE_SECONDS and all(kind == WAKE for _, kind, _, _ in self.heap):
                break
            while self.heap and self.heap[0][0] == now:
                event = heapq.heappop(self.heap)
                last = now if event[1] != WAKE else last
                ended += self._handle_event(now, event)
            self._decide(now)
            soon = self.engine.next_wake()
            due = FOREVER if soon is None else max(soon - EPOCH, now + LEAST_WAIT_SECONDS)
            if due < FOREVER and (wake <= now or due < wake):
                heapq.heappush(self.heap, (due, WAKE, 0, 0))
                wake = due
            if notify is not None and ended // JOBS_PER_REPORT != before // JOBS_PER_REPORT:
                notify(ended, len(self.jobs))
        return self.played(PlanSettings.of(self.config.profiles[0].settings().reservations), self.steps)

    # ---- events of the environment

    def _handle_event(self, now: float, event: tuple[float, int, int, int]) -> int:
        _, kind, index, generation = event
        if kind == SUBMIT:
            self._submit(now, self.runs[index])
        elif kind == NODE:
            self._node_event(now, index)
        elif kind == END and generation == self.runs[index].generation:
            run = self.runs[index]
            self._leave(run, "Succeeded")
            self.end(now, run)
            return 1
        return 0

    def _submit(self, now: float, run: JobRun) -> None:
        job, name = run.job, f"j{run.job.index}"
        meta = {"namespace": job.user or "jobs", "creationTimestamp": rfc3339(EPOCH + now)}
        spec = self._pod_spec(run)
        if job.pods > 1:
            rules: Json = {"schedulingPolicy": {"gang": {"minCount": job.pods}}}
            level = self.cluster.level_of(job.gpus, job.pods, job.gpus_per_pod)
            if level >= 0:
                rules["schedulingConstraints"] = {"topology": [{"key": KEYS[level]}]}
            if job.priority:
                rules["priority"] = job.priority
            group = {"metadata": {**meta, "name": name, "uid": f"{name}.{run.generation}"}, "spec": rules}
            self.engine.apply(e.PodGroupChanged(msgspec.convert(group, PodGroup)))
            spec["schedulingGroup"] = {"podGroupName": name}
        self._waiting[_unit_key(run)] = run
        for number in range(job.pods):
            uid = f"{name}-{number}.{run.generation}"
            body = {"metadata": {**meta, "name": f"{name}-{number}", "uid": uid}, "spec": spec}
            pod = msgspec.convert(body, Pod)
            self._pods[uid] = (run, number, pod)
            self.engine.apply(e.PodChanged(pod))

    def _pod_spec(self, run: JobRun) -> Json:
        job = run.job
        requests = {"cpu": f"{round(job.cpus_per_pod * MILLI)}m"}
        if job.gpus_per_pod:
            requests[GPU] = str(job.gpus_per_pod)
        spec: Json = {
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            "priority": job.priority,
            "schedulerName": self.config.profiles[0].settings().scheduler_name,
        }
        if expected_seconds(run.estimate) != FOREVER:
            spec["activeDeadlineSeconds"] = math.ceil(run.estimate)
        return spec

    def _leave(self, run: JobRun, phase: str) -> None:
        """Remove the pods and the group of a job. `phase`: final phase of its pods."""
        job, name = run.job, f"j{run.job.index}"
        for number in range(job.pods):
            _, _, pod = self._pods.pop(f"{name}-{number}.{run.generation}")
            status = msgspec.structs.replace(pod.status, phase=phase)
            self.engine.apply(e.PodChanged(msgspec.structs.replace(pod, status=status)))
            self.engine.apply(e.Gone("Pod", pod.metadata.name, pod.metadata.namespace, pod.metadata.uid))
        if job.pods > 1:
            self.engine.apply(e.Gone("PodGroup", name, job.user or "jobs"))
        self._nodes_of.pop(job.index, None)
        if run.start is not None:
            self._change_free(run, +1.0)

    def _change_free(self, run: JobRun, sign: float) -> None:
        amount = run.job.gpus_per_pod if self.cluster.gpus else run.job.cpus_per_pod
        for row in run.nodes:
            self._free[row] += sign * amount

    def _node_event(self, now: float, index: int) -> None:
        """Handle a node event: fail or drain (jobs lose work since the last checkpoint), cordon, or join."""
        event = self.cluster.events[index]
        node, name = self._nodes[event.node], self.cluster.nodes[event.node].name
        if event.what in ("fail", "drain"):
            for run in self.runs:
                if run.end is None and run.start is not None and event.node in run.nodes:
                    self._evict(now, run)
        if event.what == "fail":
            self.engine.apply(e.Gone("Node", name))
            return
        closed = event.what in ("drain", "cordon")
        self.engine.apply(
            e.NodeChanged(msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, unschedulable=closed)))
        )

    def _evict(self, now: float, run: JobRun) -> None:
        """Stop a job and submit it again: a gang cannot continue without a member."""
        self._leave(run, "Failed")
        self.evict(now, run)
        self._submit(now, run)

    # ---- decisions of the engine

    def _decide(self, now: float) -> None:
        while True:
            self.steps += 1
            made = self.engine.step(EPOCH + now, MOST_ATTEMPTS)
            for decision in made:
                self._perform(now, decision)
            soon = None if made else self.engine.next_wake()
            if not made and (soon is None or soon > EPOCH + now):
                break
        self._note_promises(now)
        self.samples.append((now, self.used, len(self._waiting)))
        self.stranded.append(float(self._free[(self._free < self._whole) & (self._free > 0)].sum()))

    def _perform(self, now: float, decision: d.Decision) -> None:
        known = self._pods.get(decision.uid)
        if isinstance(decision, d.Bind) and known is not None:
            self.engine.apply(e.Outcome(decision.id))
            self._bound(now, decision.uid, decision.node)
        elif isinstance(decision, d.Evict) and known is not None:
            self.engine.apply(e.Outcome(decision.id))
            if known[0].start is not None:
                self._evict(now, known[0])
        elif not isinstance(decision, d.RecordEvent):
            self.engine.apply(e.Outcome(decision.id))

    def _bound(self, now: float, uid: str, node: str) -> None:
        run, number, pod = self._pods[uid]
        replace, job = msgspec.structs.replace, run.job
        status = replace(pod.status, phase="Running", start_time=rfc3339(EPOCH + now))
        pod = replace(pod, spec=replace(pod.spec, node_name=node), status=status)
        self._pods[uid] = (run, number, pod)
        self.engine.apply(e.PodChanged(pod))
        placed = self._nodes_of.setdefault(job.index, {})
        placed[number] = node
        if len(placed) < job.pods:
            return
        del self._nodes_of[job.index], self._waiting[_unit_key(run)]
        self.begin(now, run, [self._rows[placed[each]] for each in range(job.pods)])
        self._change_free(run, -1.0)
        order = (-job.priority, job.submit, job.index)
        run.overtaken = len(self._started) - bisect.bisect(self._started, order)
        bisect.insort(self._started, order)

    def _note_promises(self, now: float) -> None:
        """Record starts that were promised, moved later or withdrawn."""
        held = self.engine.starts.held
        for key, run in self._waiting.items():
            start = held[key].start if key in held else None
            by = None if start is None else start - EPOCH
            if by == run.promise or (by is not None and run.promise is not None and by < run.promise):
                continue
            line: Json = {"t": now, "job": run.job.name, "event": "promise"}
            if run.promise is not None:
                run.moves, run.why_moved = run.moves + 1, self.engine.starts.moved_because(key)
                line["why"] = run.why_moved
            elif by is not None and run.first_promise is None:
                run.first_promise, run.promised_at = by, now
            run.promise = by
            self.lines.append(line | {"start_by": now + LONGEST_SECONDS if by is None else by})


def _unit_key(run: JobRun) -> str:
    namespace, name = run.job.user or "jobs", f"j{run.job.index}"
    return f"podgroup/{namespace}/{name}" if run.job.pods > 1 else f"pod/{namespace}/{name}-0"


def _node(name: str, gpus: int, cpus: float, domains: tuple[str, ...]) -> Node:
    labels = {key: domain for key, domain in zip(KEYS, domains, strict=True) if domain} | {HOSTNAME: name}
    amounts = {"cpu": f"{round(cpus * MILLI)}m", "pods": "1000", GPU: str(gpus)}
    body = {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"allocatable": amounts}}
    return msgspec.convert(body, Node)
