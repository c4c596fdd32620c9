"""The state of a JobSet in one reconcile: its Jobs, those that may start next, and the new status."""

from __future__ import annotations

import copy

from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.base.well_known import WORKLOAD_SCHEDULING_READY
from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.controllers.runtime.controller import Key
from phalanx.controllers.runtime.status import set_condition
from phalanx.controllers.workloads.jobset.jobs import JOB_INDEX, items_of, replicas_of
from phalanx.controllers.workloads.jobset.shape import EXCLUSIVE
from phalanx.controllers.workloads.jobset.status import Children, attempt_of, number_of, part_of, started, waits
from phalanx.model.annotation_values import MAX_INT32
from phalanx.model.kinds import Json


class ObservedJobSet:
    def __init__(self, jobset: Json, children: Children, status: Json, clock: Clock) -> None:
        self.jobset, self.children, self.status = jobset, children, status
        self._clock = clock
        self.updates: list[tuple[str, str, str]] = []
        self.key = Key(jobset["metadata"]["namespace"], jobset["metadata"]["name"])
        self.attempt = attempt_of(status)

    # ---- reading

    def known(self, type_: str) -> str:
        return next((str(c["status"]) for c in self.status["conditions"] if c["type"] == type_), "")

    @property
    def finished(self) -> bool:
        return "True" in (self.known("Completed"), self.known("Failed"))

    @property
    def ended_at(self) -> float | None:
        """Return when the set ended; None if its condition does not show it."""
        ends = [c for c in self.status["conditions"] if c["type"] in ("Completed", "Failed") and c["status"] == "True"]
        since = ends[0].get("lastTransitionTime")
        return parse_rfc3339(since) if since else None

    @property
    def in_order(self) -> bool:
        order = (self.jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder")
        return order == "InOrder" and not self.jobset["spec"].get("suspend")

    def entries(self) -> dict[str, Json]:
        return {entry["name"]: entry for entry in self.status["replicatedJobsStatus"]}

    def turns(self) -> list[Json]:
        """Return the ReplicatedJobs that may run now."""
        items = {item["name"]: item for item in items_of(self.jobset)}
        entries, found = self.entries(), []
        for item in items.values():
            if waits(item, items, entries):
                continue
            found.append(item)
            if self.in_order and not started(item, entries[item["name"]]):
                break
        return found

    def exclusive(self, item: Json) -> str:
        own = (item["template"].get("metadata") or {}).get("annotations") or {}
        return str(own.get(EXCLUSIVE) or (self.jobset["metadata"].get("annotations") or {}).get(EXCLUSIVE) or "")

    def job_attempt(self, part: str, index: int) -> int | None:
        restarts = self.entries()[part].get("jobRestarts")
        if restarts is None:
            return None
        return max(int(restarts[index]), 0) if index < len(restarts) else 0

    def restarts_counted(self) -> int:
        single = sum(sum(entry.get("jobRestartsCountTowardsMax") or ()) for entry in self.entries().values())
        return int(self.status.get("restartsCountTowardsMax") or 0) + single

    # ---- writing

    def condition(self, type_: str, status: str, reason: str, message: str, *, updates: bool = False) -> None:
        if updates and self.known(type_) != status:
            self.updates.append(("Normal", reason, message))
        set_condition(self.status["conditions"], type_, status, reason, message, self._clock)

    def finish(self, type_: str, reason: str, message: str) -> None:
        self.condition(type_, "True", reason, message)
        self.not_restarting(f"JobSet{type_}", message)
        self.status["terminalState"] = type_
        self.updates.append(("Normal" if type_ == "Completed" else "Warning", reason, message))

    def restart(self, *, counts: bool) -> None:
        self.status["restarts"] = self.attempt + 1
        if counts:
            counted = int(self.status.get("restartsCountTowardsMax") or 0) + 1
            self.status["restartsCountTowardsMax"] = min(counted, MAX_INT32)

    def restart_job(self, job: Json, *, counts: bool) -> None:
        part, index, entries = part_of(job), number_of(job, JOB_INDEX), self.entries()
        if part not in entries:
            return  # a user changed the label: nothing counts this Job
        replicas = next(replicas_of(i) for i in items_of(self.jobset) if i["name"] == part)
        entry = copy.deepcopy(entries[part])
        for field in ("jobRestarts", "jobRestartsCountTowardsMax") if counts else ("jobRestarts",):
            numbers = list(entry.get(field) or [0] * replicas)
            if index < len(numbers):
                numbers[index] = min(numbers[index] + 1, MAX_INT32)
            entry[field] = numbers
        every = self.status["replicatedJobsStatus"]
        self.status["replicatedJobsStatus"] = [entry if old["name"] == part else old for old in every]

    def not_restarting(self, reason: str, message: str) -> None:
        """Set RestartingJobSet to False with a reason, if it is True."""
        if self.known("RestartingJobSet") == "True":
            self.condition("RestartingJobSet", "False", reason, message)

    def note_ready(self) -> None:
        if self.known("RestartingJobSet") != "True" or self.jobset["spec"].get("suspend") or self.children.previous:
            return
        items, entries = items_of(self.jobset), self.entries().values()
        if sum(e["ready"] + e["succeeded"] for e in entries) == sum(map(replicas_of, items)):
            self.condition("RestartingJobSet", "False", "JobsReady", "all jobs are ready or have succeeded")

    def note_order(self) -> None:
        """Set StartupPolicyInProgress or StartupPolicyCompleted, which exclude each other."""
        if not self.in_order:
            return
        entries = self.entries()
        done = all(started(item, entries[item["name"]]) for item in items_of(self.jobset))
        if done:
            if self.known("StartupPolicyInProgress"):
                text = "in order startup policy has completed"
                self.condition("StartupPolicyInProgress", "False", "InOrderStartupPolicyCompleted", text)
                self.condition("StartupPolicyCompleted", "True", "InOrderStartupPolicyCompleted", text, updates=True)
        else:  # also after a restart, which begins the order again
            text = "in order startup policy is in progress"
            if self.known("StartupPolicyCompleted") == "True":
                self.condition("StartupPolicyCompleted", "False", "InOrderStartupPolicyInProgress", text)
            self.condition("StartupPolicyInProgress", "True", "InOrderStartupPolicyInProgress", text, updates=True)

    def refuse(self, refused: GroupingRefused) -> None:
        self.condition(WORKLOAD_SCHEDULING_READY, "False", refused.reason, refused.message)
        self.updates.append(("Warning", refused.reason, refused.message))

    def grouped(self) -> None:
        if self.known(WORKLOAD_SCHEDULING_READY) == "False":
            self.condition(WORKLOAD_SCHEDULING_READY, "True", "GroupsCreated", "all scheduling groups exist")
