"""When a Job has failed: deadlines, back-off limits and pod failure policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.base.clock import parse_rfc3339

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    type: str  # Complete or Failed
    reason: str
    message: str


def judge_failures(job: Json, failed: list[Json], failures: int, active: list[Json], now: float) -> Verdict | None:
    spec = job["spec"]
    for pod in failed:
        action, message = match_policy(spec.get("podFailurePolicy"), pod)
        if action == "FailJob":
            return Verdict("Failed", "PodFailurePolicy", message)
    limit = int(spec.get("backoffLimit", 6))
    if failures > limit:
        return Verdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if spec["template"].get("spec", {}).get("restartPolicy") == "OnFailure":
        restarts = sum(
            int(container.get("restartCount") or 0)
            for pod in active
            for container in (pod.get("status") or {}).get("containerStatuses") or ()
        )
        if restarts >= limit if limit else restarts > 0:
            return Verdict("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    start = (job.get("status") or {}).get("startTime")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and start and not spec.get("suspend") and now - parse_rfc3339(start) >= int(deadline):
        return Verdict("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def match_policy(policy: Json | None, pod: Json) -> tuple[str, str]:
    """(action, message) of the first rule that matches a failed pod; ("Count", "") when none does."""
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
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if codes.get("containerName") and codes["containerName"] != container["name"]:
            continue
        terminated = (container.get("state") or {}).get("terminated")
        if not terminated or not terminated.get("exitCode"):
            continue
        inside = terminated["exitCode"] in codes["values"]
        if inside == (codes.get("operator") == "In"):
            return str(container["name"]), int(terminated["exitCode"])
    return None
