"""Decide when a Job ends: deadlines, backoff limits, pod failure policies, failed indexes, success policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from phalanx.base.clock import parse_rfc3339
from phalanx.model.kinds import Json

if TYPE_CHECKING:
    from phalanx.controllers.workloads.job.tally import Tally

_REACHED = "Reached expected number of succeeded pods"


class JobVerdict(msgspec.Struct, frozen=True):
    type: str  # Complete or Failed
    reason: str
    message: str


def verdict_of(job: Json, tally: Tally, now: float) -> JobVerdict | None:
    """Return how the Job ends now; None if it continues."""
    return _decided(job) or _failed(job, tally, now) or _succeeded(job, tally)


def _decided(job: Json) -> JobVerdict | None:
    """Return the recorded decision, which is final."""
    for entry in (job.get("status") or {}).get("conditions") or ():
        if entry["status"] == "True" and entry["type"] in ("FailureTarget", "SuccessCriteriaMet"):
            type_ = "Failed" if entry["type"] == "FailureTarget" else "Complete"
            return JobVerdict(type_, entry.get("reason", ""), entry.get("message", ""))
    return None


def _failed(job: Json, tally: Tally, now: float) -> JobVerdict | None:
    spec = job["spec"]
    if tally.fail_job:
        return JobVerdict("Failed", "PodFailurePolicy", tally.fail_job)
    limit = int(spec.get("backoffLimit", 6))
    if tally.failed > limit:
        return JobVerdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if spec["template"].get("spec", {}).get("restartPolicy") == "OnFailure":
        restarts = sum(
            int(container.get("restartCount") or 0)
            for pod in tally.active
            for container in (pod.get("status") or {}).get("containerStatuses") or ()
        )
        if restarts >= limit if limit else restarts > 0:
            return JobVerdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    start = (job.get("status") or {}).get("startTime")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and start and not spec.get("suspend") and now - parse_rfc3339(start) >= int(deadline):
        return JobVerdict("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    if tally.failed_indexes:
        most = spec.get("maxFailedIndexes")
        if most is not None and len(tally.failed_indexes) > int(most):
            text = "Job has exceeded the specified maximal number of failed indexes"
            return JobVerdict("Failed", "MaxFailedIndexesExceeded", text)
        if len(tally.failed_indexes | tally.completed_indexes) >= int(spec.get("completions") or 0):
            return JobVerdict("Failed", "FailedIndexes", "Job has failed indexes")
    return None


def _succeeded(job: Json, tally: Tally) -> JobVerdict | None:
    spec = job["spec"]
    for number, rule in enumerate((spec.get("successPolicy") or {}).get("rules") or ()):
        if _rule_met(rule, tally.completed_indexes):
            return JobVerdict("Complete", "SuccessPolicy", f"Matched rules at index {number}")
    completions = spec.get("completions")
    if completions is None:
        idle = not tally.active and not tally.terminating
        return JobVerdict("Complete", "CompletionsReached", _REACHED) if tally.succeeded and idle else None
    return JobVerdict("Complete", "CompletionsReached", _REACHED) if tally.succeeded >= int(completions) else None


def _rule_met(rule: Json, completed: set[int]) -> bool:
    wanted = parse_indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else None
    among = completed if wanted is None else completed & wanted
    count = rule.get("succeededCount")
    if count is not None:
        return len(among) >= int(count)
    return wanted is not None and wanted <= completed


def match_policy(policy: Json | None, pod: Json) -> tuple[str, str]:
    """Return (action, message) of the first rule that matches a failed pod; ("Count", "") when none does."""
    meta = pod["metadata"]
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        codes = rule.get("onExitCodes")
        if codes is not None:
            hit = _exit_code_hit(codes, pod)
            if hit is not None:
                container, code = hit
                text = (
                    f"Container {container} for pod {meta['namespace']}/{meta['name']} failed with exit code {code} "
                    f"matching {rule['action']} rule at index {number}"
                )
                return str(rule["action"]), text
        for pattern in rule.get("onPodConditions") or ():
            for entry in (pod.get("status") or {}).get("conditions") or ():
                if entry["type"] == pattern["type"] and entry["status"] == pattern.get("status", "True"):
                    text = (
                        f"Pod {meta['namespace']}/{meta['name']} has condition {entry['type']} matching "
                        f"{rule['action']} rule at index {number}"
                    )
                    return str(rule["action"]), text
    return "Count", ""


def _exit_code_hit(codes: Json, pod: Json) -> tuple[str, int] | None:
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if codes.get("containerName") and codes["containerName"] != container["name"]:
            continue
        terminated = (container.get("state") or {}).get("terminated")
        if not terminated or not terminated.get("exitCode"):
            continue
        inside = terminated["exitCode"] in codes["values"]
        if inside == (codes.get("operator") == "In"):
            return str(container["name"]), int(terminated["exitCode"])
    return None


MAX_DIGITS = 12
MOST_IN_RANGE = 1_000_000  # indexes per range: users with permission may write the status


def parse_indexes(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            start, end = int(first[:MAX_DIGITS]), int((last or first)[:MAX_DIGITS])
            found.update(range(start, min(end, start + MOST_IN_RANGE) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    # like upstream: a list for two neighbours, a range for three or more
    return ",".join(str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in ranges)
