"""The child Jobs of a JobSet for its status."""

from __future__ import annotations

import msgspec

from phalanx.controllers.workloads.job.controller import outcome
from phalanx.controllers.workloads.job.grouping import size_of
from phalanx.controllers.workloads.jobset.jobs import ATTEMPT, JOB_ATTEMPT, JOB_INDEX, PART, items_of, replicas_of
from phalanx.model.annotation_values import MAX_INT32
from phalanx.model.kinds import Json

_DIGITS = 10  # of the largest int32


class Children(msgspec.Struct):
    active: list[Json] = msgspec.field(default_factory=list)
    successful: list[Json] = msgspec.field(default_factory=list)
    failed: list[Json] = msgspec.field(default_factory=list)
    previous: list[Json] = msgspec.field(default_factory=list)  # Jobs of an earlier attempt, to be deleted

    @property
    def names(self) -> set[str]:
        every = [*self.active, *self.successful, *self.failed, *self.previous]
        return {job["metadata"]["name"] for job in every}

    def of(self, part: str) -> list[Json]:
        return [job for job in self.active if part_of(job) == part]


def attempt_of(status: Json) -> int:
    """Return the number of restarts, which pods have as a label: a status written by hand may have any number."""
    return min(max(int(status.get("restarts") or 0), 0), MAX_INT32 - 1)


def children_of(jobset: Json, jobs: list[Json]) -> Children:
    status = jobset.get("status") or {}
    attempt = attempt_of(status)
    single = {entry["name"]: entry.get("jobRestarts") or [] for entry in status.get("replicatedJobsStatus") or ()}
    found = Children()
    for job in jobs:
        restarts, index = single.get(part_of(job)) or [], number_of(job, JOB_INDEX)
        own = restarts[index] if index < len(restarts) else 0
        if number_of(job, ATTEMPT) < attempt or number_of(job, JOB_ATTEMPT) < own:
            found.previous.append(job)
            continue
        entry = outcome(job)
        if entry is None:
            found.active.append(job)
        else:
            (found.successful if entry["type"] == "Complete" else found.failed).append(job)
    return found


def counters(jobset: Json, children: Children) -> list[Json]:
    """Return replicatedJobsStatus."""
    before = {e["name"]: e for e in (jobset.get("status") or {}).get("replicatedJobsStatus") or ()}
    found = []
    for item in items_of(jobset):
        name = item["name"]
        active = children.of(name)
        entry: Json = {
            "name": name,
            "ready": sum(map(_is_ready, active)),
            "succeeded": sum(part_of(job) == name for job in children.successful),
            "failed": sum(part_of(job) == name for job in children.failed),
            "active": sum(int((job.get("status") or {}).get("active") or 0) > 0 for job in active),
            "suspended": sum(bool(job["spec"].get("suspend")) for job in active),
        }
        for field_ in ("jobRestarts", "jobRestartsCountTowardsMax"):
            if field_ in before.get(name, {}):
                entry[field_] = before[name][field_]
        found.append(entry)
    return found


def _is_ready(job: Json) -> bool:
    status = job.get("status") or {}
    done = int(status.get("succeeded") or 0) + int(status.get("ready") or 0)
    return not job["spec"].get("suspend") and done >= size_of(job["spec"])


def started(item: Json, entry: Json) -> bool:
    return bool(replicas_of(item) == entry["failed"] + entry["ready"] + entry["succeeded"])


def waits(item: Json, items: dict[str, Json], entries: dict[str, Json]) -> bool:
    """Return True if a dependency of this ReplicatedJob is not satisfied yet."""
    for dependency in item.get("dependsOn") or ():
        other, entry = items[dependency["name"]], entries[dependency["name"]]
        if dependency["status"] == "Complete":
            if replicas_of(other) != entry["succeeded"]:
                return True
        elif not started(other, entry):
            return True
    return False


def part_of(job: Json) -> str:
    """Return the name of the ReplicatedJob of a Job."""
    return _label(job, PART)


def number_of(job: Json, key: str) -> int:
    """Return a number that we wrote as a label, 0 if a user made something else of it."""
    text = _label(job, key)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else 0


def _label(job: Json, key: str) -> str:
    return str((job["metadata"].get("labels") or {}).get(key) or "")
