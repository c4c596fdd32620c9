"""Hold what the engine keeps of a pod. It is small on purpose: the full object is held only while the pod is pending.

The fields above the line "what changes" never change: the change log refers to records, and readers may read them
later. A pod whose labels, requests or terminating state change gets a new record.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from sys import intern
from typing import TYPE_CHECKING

from phalanx.base.well_known import JOB_SET_NAME
from phalanx.engine.state.claims import ClaimKey, claims_of
from phalanx.engine.state.journal import ChangeLog
from phalanx.model.objects import Pod

if TYPE_CHECKING:
    from phalanx.engine.state.shapes import Shape


_NO_CLAIMS: tuple[ClaimKey, ...] = ()
MAX_DIGITS = 10  # of a rank
_NO_LABELS: dict[str, str] = {}  # shared by all records: must not be changed


DEFAULT_GRACE = 30  # seconds, as the API server sets it
JOB_SET_LABELS = (JOB_SET_NAME, "jobset.sigs.k8s.io/replicatedjob-name")
_SCHEDULED_NAME = re.compile(r"(.+)-[0-9]{8,10}")  # a Job of a CronJob: name and minutes since the epoch


def workload_of(pod: Pod) -> str:
    """Name the workload whose runs are alike: the controller of the pod, else its group; "" if it has neither.

    Jobs of a CronJob are runs of that CronJob, and Jobs of a JobSet of its replicated job.
    """
    meta, owners = pod.metadata, pod.metadata.owner_references
    owner = next((each for each in owners if each.controller), None) if owners else None
    if owner is None:
        group = pod.spec.scheduling_group
        return intern(f"{meta.namespace}/PodGroup/{group.pod_group_name}") if group and group.pod_group_name else ""
    labels = meta.labels or _NO_LABELS
    if JOB_SET_LABELS[0] in labels:
        return intern("/".join((meta.namespace, "JobSet", *(labels.get(label, "") for label in JOB_SET_LABELS))))
    found = _SCHEDULED_NAME.fullmatch(owner.name) if owner.kind == "Job" else None
    return intern(f"{meta.namespace}/CronJob/{found[1]}" if found else f"{meta.namespace}/{owner.kind}/{owner.name}")


class PodState(enum.IntEnum):
    """Lifecycle state of a pod. `scheduling.lifecycle.pod_lifecycle` has the table of transitions."""

    PENDING = 0  # known, without a node; the queue decides where it waits
    ASSUMED = 1  # counted on a node; Permit or PreBind plugins are still to run
    BINDING = 2  # the Bind is decided and not yet answered
    CONFIRMED = 3  # the API server has acknowledged the bind; the informer has not delivered it yet
    BOUND = 4  # the informer shows it on a node
    GONE = 5  # finished, deleted, or replaced by a later version of itself


_PENDING = PodState.PENDING


def _numbers(annotations: dict[str, str]) -> dict[str, str]:
    """Return the annotations that can be ranks of a member; a policy may name any of them later."""
    found = {intern(key): value for key, value in annotations.items() if len(value) <= MAX_DIGITS and value.isdigit()}
    return found or _NO_LABELS


class PodRecord:
    __slots__ = (
        "bind",
        "claims",
        "created",
        "deadline",
        "generation",
        "grace",
        "group",
        "key",
        "labels",
        "last_condition",
        "name",
        "namespace",
        "node_name",
        "nominated",
        "numbers",
        "order",
        "pod",
        "preemption_policy",
        "priority",
        "row",
        "scheduler_name",
        "shape",
        "shape_epoch",
        "start_time",
        "state",
        "terminating",
        "uid",
        "workload",
    )

    def __init__(self, pod: Pod, shape: Shape, order: int, created: float) -> None:
        meta, spec = pod.metadata, pod.spec
        self.namespace = meta.namespace
        # Strings that tens of thousands of records share are interned.
        self.name = intern(meta.name)
        self.key = f"{meta.namespace}/{meta.name}"
        self.uid = intern(meta.uid)
        self.labels = meta.labels or _NO_LABELS
        self.priority = spec.priority or 0
        self.preemption_policy = intern(spec.preemption_policy or "PreemptLowerPriority")
        self.scheduler_name = intern(spec.scheduler_name)
        self.terminating = meta.deletion_timestamp is not None
        self.generation = meta.generation
        self.created = created  # seconds; the time it first requested scheduling
        self.order = order  # arrival number: the stable tie-break
        self.deadline = spec.active_deadline_seconds or 0  # seconds it may run; 0: no limit
        grace = spec.termination_grace_period_seconds
        self.grace = DEFAULT_GRACE if grace is None else grace  # seconds it may take to end
        self.workload = workload_of(pod)
        group = spec.scheduling_group
        self.group = (group.pod_group_name or "") if group is not None else ""
        grouped = group is not None or spec.workload_ref is not None
        self.numbers = _numbers(meta.annotations) if grouped and meta.annotations else _NO_LABELS
        self.claims = claims_of(pod) if spec.resource_claims else _NO_CLAIMS
        # ---- what changes
        self.shape = shape
        self.shape_epoch = -1
        self.pod: Pod | None = pod  # while pending
        self.start_time: str | None = None  # RFC 3339 text; known only after the pod is bound
        if pod.status.start_time is not None:
            self.starts(pod.status.start_time)
        self.row = -1  # row in the columns, -1 = on no known node
        self.node_name = ""  # set while bound or assumed, also when that node is unknown
        self.state = _PENDING
        self.bind = 0  # id of the Bind decision under way
        self.nominated = pod.status.nominated_node_name
        self.last_condition = ""  # "reason: message" of the last PodScheduled condition sent or seen

    def starts(self, text: str | None) -> None:
        self.start_time = intern(text) if text is not None else None  # thousands of pods start in the same second

    @property
    def last_message(self) -> str:
        """Return the message of the last PodScheduled condition."""
        return self.last_condition.partition(": ")[2]

    @property
    def assumed(self) -> bool:
        """Return True if our own decision counts it on a node and the informer has not delivered that yet."""
        return 0 < self.state < 4  # between PENDING and BOUND; enum names cost more than the comparison

    def sort_key(self) -> tuple[int, float, int]:
        """Return the queue order: priority, then the time it first requested scheduling, then arrival."""
        return (-self.priority, self.created, self.order)

    def __repr__(self) -> str:
        where = self.node_name or "pending"
        return f"<pod {self.key} {where}>"


class Nominations:
    __slots__ = ("_by_node", "_node_of", "changes", "version")

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, PodRecord]] = {}
        self._node_of: dict[str, str] = {}
        self.version = 0
        self.changes = ChangeLog[str]()  # nodes whose nominations changed

    def __bool__(self) -> bool:
        return bool(self._node_of)

    def set(self, record: PodRecord, node: str) -> None:
        """Nominate a node for a pending pod; replaces an earlier nomination."""
        self.clear(record)
        if node:
            record.nominated = node
            self._by_node.setdefault(node, {})[record.key] = record
            self._node_of[record.key] = node
            self._changed(node)

    def clear(self, record: PodRecord) -> str:
        """Clear the nomination of a pod; return its node."""
        record.nominated = ""
        node = self._node_of.pop(record.key, "")
        if node:
            pods = self._by_node[node]
            del pods[record.key]
            if not pods:
                del self._by_node[node]
            self._changed(node)
        return node

    def _changed(self, node: str) -> None:
        self.version += 1
        self.changes.append(node)

    def all(self) -> Iterator[tuple[str, PodRecord]]:
        """Iterate over all nominations as (node, pod)."""
        for node, pods in self._by_node.items():
            for record in pods.values():
                yield node, record

    def on(self, node: str) -> Sequence[PodRecord]:
        return list(self._by_node.get(node, {}).values())

    def rivals(self, node: str, record: PodRecord) -> Sequence[PodRecord]:
        """Return the other pods nominated to this node for which `record` must leave room."""
        pods = self._by_node.get(node)
        if not pods:
            return ()
        return [other for other in pods.values() if other.priority >= record.priority and other.key != record.key]
