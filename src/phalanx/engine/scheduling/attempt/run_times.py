"""Expected durations of pods: from their objects, else from earlier runs of the same workload.

A run is one execution of a Job, a JobSet or a group; its duration is that of its longest pod that succeeded. The
longest of the last runs is expected. All of it is computed from observed pods, so that the same events give the same
answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base.clock import parse_rfc3339
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.placement.outcome import plural
from phalanx.engine.reservations import FOREVER, expected_seconds
from phalanx.engine.reservations.start_planner import EXTENSION, LEAST_EXTENSION_SECONDS
from phalanx.engine.reservations.units import Stretch
from phalanx.engine.state.records import PodRecord, workload_of
from phalanx.model.groups import Group
from phalanx.model.objects import Pod

MOST_WORKLOADS = 10_000  # remembered workloads; the one that ended longest ago is dropped first
OVERRUN_QUANTILE = 0.9  # of the pods that ended, as many shall end within a stretched duration
MOST_RUNS = 5  # remembered runs of each workload, the last ones


class RunTimes:
    def __init__(self, state: ClusterState) -> None:
        self._cluster = state
        self._runs: dict[str, dict[str, float]] = {}  # workload -> uid of its run -> seconds; the latest last
        self.version = 0  # +1 with every run that ended
        self._stretch = Stretch(OVERRUN_QUANTILE)
        self._stretched: dict[str, float] = {}  # by key of a running pod: the stretch when it started
        self._first_seen: dict[str, float] = {}  # bound pods whose kubelet has not reported a start yet

    # ---- events

    def ended(self, pod: Pod) -> None:
        """Remember how long a succeeded pod ran."""
        meta, record = pod.metadata, self._cluster.records.get(f"{pod.metadata.namespace}/{pod.metadata.name}")
        end = _finished_at(pod)
        if end is None:
            if record is None or record.uid != meta.uid:
                return  # its end time is unknown
            end = self._cluster.now
        began = _time(pod.status.start_time)
        if began is None or end <= began:
            return
        group = self._group(meta.namespace, meta.name)
        owner = next((each.uid for each in meta.owner_references or () if each.controller), "")
        run = owner or (group.spec.uid if group is not None and group.spec is not None else "") or meta.uid
        name = workload_of(pod) or _by_name(meta.namespace, meta.name)
        runs = self._runs.pop(name, {})
        self._stretched.pop(f"{meta.namespace}/{meta.name}", None)
        if run not in runs and record is not None and (given := self._given(record)) != FOREVER:
            self._stretch.learn((end - began) / given)
        self.version += 1
        runs[run] = max(end - began, runs.pop(run, 0.0))
        if len(runs) > MOST_RUNS:
            del runs[next(iter(runs))]
        self._runs[name] = runs
        if len(self._runs) > MOST_WORKLOADS:
            del self._runs[next(iter(self._runs))]

    # ---- expected durations

    def expected(self, record: PodRecord) -> float:
        """Return the expected duration of a pod in seconds: its activeDeadlineSeconds, else its group's policy,
        else that of earlier runs, else FOREVER."""
        seconds = self._given(record)
        if seconds != FOREVER or not self._runs:
            return seconds
        return max(self._earlier(record).values(), default=FOREVER)

    def _given(self, record: PodRecord) -> float:
        """Return the duration that a pod or its group states."""
        if record.deadline and (seconds := expected_seconds(record.deadline)) != FOREVER:
            return seconds
        group = self._group(record.namespace, record.name) if record.group else None
        if group is not None and group.policy.expected_duration_seconds:
            return expected_seconds(group.policy.expected_duration_seconds)
        return FOREVER

    def learned(self, records: Iterable[PodRecord]) -> bool:
        """Return True if the expected duration of one of these pods depends on earlier runs."""
        return any(self._given(record) == FOREVER for record in records)

    def expected_of(self, records: Iterable[PodRecord]) -> float:
        """Return the longest expected duration of these pods in seconds; FOREVER if one of them has none."""
        return max((self.expected(record) for record in records), default=FOREVER) * self.stretch

    @property
    def stretch(self) -> float:
        """Return by how much expected durations are stretched, because pods that ended ran longer than expected."""
        return self._stretch.factor

    def in_words(self, records: Iterable[PodRecord]) -> str:
        """Return the expected duration of these pods with its source as text; "" if unknown."""
        pods = list(records)
        seconds = max((self.expected(record) for record in pods), default=FOREVER)
        if seconds == FOREVER:
            return ""
        longest = next(record for record in pods if self.expected(record) == seconds)
        group = self._group(longest.namespace, longest.name) if longest.group else None
        if expected_seconds(longest.deadline) == seconds:
            source = "activeDeadlineSeconds"
        elif group is not None and group.policy.expected_duration_seconds == seconds:
            source = "expectedDurationSeconds of its policy"
        else:
            source = f"from {plural(len(self._earlier(longest)), 'earlier run')}"
        return f"{seconds:.0f} s, {source}"

    def _earlier(self, record: PodRecord) -> dict[str, float]:
        return self._runs.get(record.workload or _by_name(record.namespace, record.name), {})

    def _group(self, namespace: str, name: str) -> Group | None:
        leaf = self._cluster.forest.leaf_of_pod(namespace, name)
        return self._cluster.forest.group(leaf) if leaf is not None else None

    # ---- running pods

    def placed(self, pods: Iterable[PodRecord]) -> None:
        """Count pods as started until their kubelets report the start times."""
        for record in pods:
            self._first_seen[record.key] = self._cluster.now
            if self.stretch != 1.0:
                self._stretched[record.key] = self.stretch

    def end_of(self, record: PodRecord) -> float:
        """Return when a running pod is expected to end.

        One that runs longer than expected is expected to run for another quarter of its time then.
        """
        seconds, now = self.expected(record), self._cluster.now
        if seconds == FOREVER:
            return FOREVER
        seconds *= self._stretched.get(record.key, 1.0)
        began = self.began(record)
        while began + seconds <= now:
            seconds += max(LEAST_EXTENSION_SECONDS, EXTENSION * seconds)
        return began + seconds

    def began(self, record: PodRecord) -> float:
        """Return when a pod started: as its kubelet reports, else when it was first seen bound."""
        began = _time(record.start_time)
        return began if began is not None else self._first_seen.setdefault(record.key, self._cluster.now)

    def forget_all_but(self, running: Iterable[PodRecord]) -> None:
        """Forget the first-seen times of pods that are gone."""
        keys = {record.key for record in running} if self._first_seen or self._stretched else set()
        self._first_seen = {key: at for key, at in self._first_seen.items() if key in keys}
        self._stretched = {key: factor for key, factor in self._stretched.items() if key in keys}


def _by_name(namespace: str, name: str) -> str:
    """Return the workload key of a pod without an owner and a group: pods of its name."""
    return f"{namespace}/Pod/{name}"


def _finished_at(pod: Pod) -> float | None:
    states = (each.state.terminated for each in pod.status.container_statuses or ())
    times = [at for state in states if state is not None and (at := _time(state.finished_at)) is not None]
    return max(times, default=None)


def _time(text: str | None) -> float | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None
