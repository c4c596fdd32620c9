"""The columns of groups: Workload, PodGroup, CompositePodGroup, PriorityClass."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import AGE, NAME, column, condition, spec, text

HEALTHY = "scheduling.phalanx.dev/Healthy"
_WORDS = {"WaitingForMembers": "Waiting", "WaitingForParent": "Waiting", "Unschedulable": "Scheduling"}


def _policy(obj: Json, now: float) -> str:
    policy: Json = spec(obj).get("schedulingPolicy") or {}
    if policy.get("gang") is not None:
        return "Gang"
    return "Basic" if policy.get("basic") is not None else ""


def status_word(obj: Json, now: float = 0.0) -> str:
    """Return the state of a PodGroup or CompositePodGroup in one word, as the scheduler has written it."""
    healthy = condition(obj, HEALTHY)
    if healthy is not None:
        return healthy.get("reason") or ""
    conditions = (condition(obj, f"{kind}InitiallyScheduled") for kind in ("PodGroup", "CompositePodGroup"))
    scheduled = next((found for found in conditions if found is not None), None)
    if scheduled is None:
        return "Waiting"
    # Another scheduler places it, or this one is about to write its state.
    word = "Running" if scheduled.get("status") == "True" else scheduled.get("reason") or "Scheduling"
    return _WORDS.get(word, word)


_POLICY = column("Policy", _policy, description="Basic or Gang.")
_WORKLOAD = column("Workload", text("spec.workloadRef.workloadName"), description="The Workload it was made from.")


def _workload(obj: Json, now: float) -> str:
    healthy = condition(obj, HEALTHY)
    if healthy is not None:
        return healthy.get("reason") or ""
    scheduled = condition(obj, "Scheduled")
    if scheduled is None:
        return ""
    return "Scheduled" if scheduled.get("status") == "True" else scheduled.get("reason") or "NotScheduled"


def _of(part: str, whole: str) -> Callable[[Json, float], str]:
    def cell(obj: Json, now: float) -> str:
        status: Json = obj.get("status") or {}
        return f"{status.get(part, 0)}/{status[whole]}" if whole in status else ""

    return cell


def _pods_of_group(obj: Json, now: float) -> str:
    least = ((spec(obj).get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
    if least is not None and "pods" not in (obj.get("status") or {}) and status_word(obj) == "Waiting":
        return f"0/{least}"  # the scheduler writes no counts before there is a pod
    return str(_PODS.value(obj, now))


_PODS = column("Pods", _of("scheduledPods", "pods"), description="Pods with a node, of all.")
WORKLOAD: tuple[Column, ...] = (
    NAME,
    column("Status", _workload, description="The worst state of its groups."),
    column("Groups", _of("scheduledGroups", "groups"), description="Groups with their minimum, of all."),
    _PODS,
    AGE,
)
POD_GROUP: tuple[Column, ...] = (
    NAME,
    _POLICY,
    _WORKLOAD,
    column("Pods", _pods_of_group, description="Pods with a node, of all."),
    column("Status", status_word, description="The state of the group now."),
    AGE,
)
COMPOSITE_POD_GROUP = POD_GROUP


def _target(obj: Json, now: float) -> str:
    target: Json = spec(obj).get("targetRef") or {}
    return f"{target.get('kind', '')}/{target.get('name', '')}"


def _accepted(obj: Json, now: float) -> str:
    found = condition(obj, "Accepted")
    return str(found.get("status")) if found is not None else ""


WORKLOAD_POLICY: tuple[Column, ...] = (
    NAME,
    column("Target", _target, description="The object it is about."),
    column("Rescheduling", text("spec.rescheduling.policy"), description="What happens when a gang loses members."),
    column("Accepted", _accepted, description="Whether every field is in effect."),
    column("Groups", text("status.matchedGroups", 0), type="integer", description="Groups it is in effect for."),
    AGE,
)

PRIORITY_CLASS: tuple[Column, ...] = (
    NAME,
    column("Value", text("value", 0), type="integer"),
    column("Global-Default", text("globalDefault", False), type="boolean"),
    AGE,
    column("PreemptionPolicy", text("preemptionPolicy", "")),
)
