"""Decide when a JobSet has succeeded, failed, or restarts."""

from __future__ import annotations

import msgspec

from phalanx.controllers.workloads.job.controller import finish_time, outcome
from phalanx.controllers.workloads.jobset.jobs import PART, items_of, replicas_of
from phalanx.model.kinds import Json
from phalanx.model.pattern import compiled

FAIL = "FailJobSet"
RESTART, RESTART_FREE = "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"
RESTART_JOB, RESTART_JOB_FREE = "RestartJob", "RestartJobAndIgnoreMaxRestarts"


class Reaction(msgspec.Struct, frozen=True):
    action: str
    job: Json  # the failed Job
    rule: str = ""  # name of the rule; "" for the default

    @property
    def event(self) -> str:
        """Return the reason of the Event."""
        return f"{self.action}FailurePolicyAction"


def success(jobset: Json, successful: list[Json]) -> bool:
    policy = jobset["spec"].get("successPolicy") or {}
    targets = set(policy.get("targetReplicatedJobs") or ())
    items = [item for item in items_of(jobset) if not targets or item["name"] in targets]
    names = {item["name"] for item in items}
    done = sum(1 for job in successful if _part(job) in names)
    if policy.get("operator") == "Any":
        return done >= 1
    return done >= sum(map(replicas_of, items))


def first_failed(failed: list[Json]) -> Json:
    return min(failed, key=lambda job: (finish_time(job) or 0.0, job["metadata"]["name"]))


def reaction(jobset: Json, failed: list[Json]) -> Reaction:
    """Return the first rule that matches some failed Job; without a policy the set fails with its first Job."""
    policy = jobset["spec"].get("failurePolicy")
    if policy is None:
        return Reaction(FAIL, first_failed(failed))
    for rule in policy.get("rules") or ():
        matching = [job for job in failed if _matches(rule, job)]
        if matching:
            return Reaction(rule["action"], first_failed(matching), rule.get("name") or "")
    return Reaction(RESTART, first_failed(failed))


def _matches(rule: Json, job: Json) -> bool:
    targets = rule.get("targetReplicatedJobs") or ()
    if targets and _part(job) not in targets:
        return False
    entry = outcome(job) or {}
    reasons = rule.get("onJobFailureReasons") or ()
    if reasons and entry.get("reason") not in reasons:
        return False
    patterns = rule.get("onJobFailureMessagePatterns") or ()
    return not patterns or any(_search(pattern, entry.get("message") or "") for pattern in patterns)


def _search(pattern: str, text: str) -> bool:
    matcher = compiled(pattern)
    return matcher is not None and matcher.search(text) is not None


def _part(job: Json) -> str:
    return str((job["metadata"].get("labels") or {}).get(PART) or "")
