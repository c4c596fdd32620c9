"""Pod functions shared by all controllers: phases, readiness, templates, expectations, events, and deletion order.

A controller that creates with generated names does not see its own creations until the watch delivers them. So names
and uids of created and deleted objects are remembered until the cache agrees. Events are limited to client-go's rate.
"""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from phalanx.base.client import Resource
from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.base.errors import ApiProblem
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controller_of, controller_reference
from phalanx.model.annotation_values import MAX_INT32, BadValue, whole_number
from phalanx.model.groups.keys import AFTER_GROUP
from phalanx.model.kinds import Json

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

# May change a pod before its creation, or raise to retry later: (pod, its set).
Admission = Callable[[Json, Json], Awaitable[None]]


def phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def finished(pod: Json) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def active(pod: Json) -> bool:
    return not finished(pod) and "deletionTimestamp" not in pod["metadata"]


def bound(pod: Json) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def group_of(pod: Json) -> str:
    return str(((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName") or "")


def index_by_group(pod: Json) -> list[str]:
    """Cache index: the PodGroup of a pod that has not finished."""
    name = group_of(pod)
    return [f"{pod['metadata']['namespace']}/{name}"] if name and not finished(pod) else []


def keeps_group(pod: Json) -> bool:
    """Return True if a deleted group must stay for this pod.

    False for a terminating pod, and for one created during the deletion, which waits for the next group.
    """
    return active(pod) and (bound(pod) or AFTER_GROUP not in (pod["metadata"].get("annotations") or {}))


def condition(obj: Json, type_: str) -> Json | None:
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry.get("type") == type_:
            found: Json = entry
            return found
    return None


def ready(pod: Json) -> bool:
    entry = condition(pod, "Ready")
    return phase(pod) == "Running" and entry is not None and entry.get("status") == "True"


def available_in(pod: Json, min_ready_seconds: int, now: float) -> float | None:
    """Return 0.0 when available, seconds until then, None when not ready."""
    if not ready(pod):
        return None
    if min_ready_seconds <= 0:
        return 0.0
    entry = condition(pod, "Ready") or {}
    since = parse_rfc3339(entry["lastTransitionTime"]) if entry.get("lastTransitionTime") else now
    return max(0.0, since + min_ready_seconds - now)


def from_template(template: Json, owner: Json, resource: Resource, *, name: str = "", prefix: str = "") -> Json:
    """Build a pod from a template. The template is copied, never shared."""
    meta = template.get("metadata") or {}
    metadata: Json = {
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(meta.get("labels") or {}),
        "annotations": dict(meta.get("annotations") or {}),
        "ownerReferences": [controller_reference(owner, resource)],
    }
    if meta.get("finalizers"):
        metadata["finalizers"] = list(meta["finalizers"])
    if name:
        metadata["name"] = name
    else:
        metadata["generateName"] = prefix or f"{owner['metadata']['name'][:57]}-"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template.get("spec") or {})}


def removal_rank(pod: Json, crowd: int = 0) -> tuple[Any, ...]:
    """Return a sort key for scale-down: pods to delete first come first; ready and old pods stay.

    `crowd`: how many pods of the same owner share its node; the fullest node loses pods first.
    """
    status = pod.get("status") or {}
    meta = pod["metadata"]
    cost = 0
    try:
        cost = whole_number((meta.get("annotations") or {}).get(DELETION_COST, "0"), -MAX_INT32, MAX_INT32)
    except BadValue:
        cost = 0  # upstream ignores a cost that is no number
    restarts = max((int(c.get("restartCount") or 0) for c in status.get("containerStatuses") or ()), default=0)
    ready_since = (condition(pod, "Ready") or {}).get("lastTransitionTime") or ""
    return (
        bool((pod.get("spec") or {}).get("nodeName")),  # unscheduled first
        {"Pending": 0, "Unknown": 1}.get(phase(pod), 2),
        ready(pod),
        cost,
        -crowd,
        _newest_first(ready_since if ready(pod) else ""),
        -restarts,
        _newest_first(str(meta.get("creationTimestamp") or "")),
        meta["name"],
    )


def _newest_first(timestamp: str) -> float:
    return -parse_rfc3339(timestamp) if timestamp else float("-inf")


PATIENCE = 300.0  # seconds until a missing watch event is ignored and the cache is trusted


class Expectations:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, dict[str, float]] = {}  # owner uid -> {what: since}

    def expect(self, owner_uid: str, what: str) -> None:
        self._pending.setdefault(owner_uid, {})[what] = self._clock.monotonic()

    def seen(self, owner_uid: str, what: str) -> None:
        pending = self._pending.get(owner_uid)
        if pending is not None:
            pending.pop(what, None)
            if not pending:
                del self._pending[owner_uid]

    def fulfilled(self, owner_uid: str) -> bool:
        pending = self._pending.get(owner_uid)
        if not pending:
            return True
        oldest = min(pending.values())
        if self._clock.monotonic() - oldest > PATIENCE:
            del self._pending[owner_uid]
            return True
        return False

    def forget(self, owner_uid: str) -> None:
        self._pending.pop(owner_uid, None)


BURST = 25  # events about one owner at once
REFILL_SECONDS = 300.0  # seconds until one more is allowed
OWNERS = 10_000  # remembered


def refusal_text(owner: Json, problem: Exception) -> str:
    """Return why a pod of an owner was refused, without the generated end of its name.

    Each attempt has another name. The same refusal must be the same text, or it is written again and again.
    """
    start = re.escape(owner["metadata"]["name"][:57])
    return re.sub(rf'"({start}-(?:\d+-)?)[a-z0-9]{{5}}"', r'"\1*"', str(problem))


@dataclass(slots=True)
class _Owner:
    left: float  # events that are allowed now
    since: float  # of this count
    last_pod: str = ""  # uid of the pod that was created last


class PodEvents:
    def __init__(self, events: Events, clock: Clock, controller: str) -> None:
        self._events, self._clock, self._controller = events, clock, controller
        self._owners: OrderedDict[str, _Owner] = OrderedDict()  # by uid, the one with the latest event last

    def created(self, pod: Json) -> None:
        self._notify(pod, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}", created=True)

    def deleted(self, pod: Json) -> None:
        self._notify(pod, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}", created=False)

    def failed(self, owner: Json, problem: Exception) -> None:
        """Report a refusal once; after a pod that was created, once more, so that it is the last event again."""
        known = self._owners.get(str(owner["metadata"]["uid"]))
        text = f"Error creating: {refusal_text(owner, problem)}"
        distinct = known.last_pod if known is not None else ""
        self._events.warning(owner, self._controller, "FailedCreate", text, distinct=distinct)
        if isinstance(problem, ApiProblem):
            problem.reported = True

    def _notify(self, pod: Json, reason: str, note: str, *, created: bool) -> None:
        meta, reference = pod["metadata"], controller_of(pod)
        if reference is None or not self._may(str(reference["uid"]), str(meta["uid"]) if created else ""):
            return
        about = {
            "apiVersion": reference["apiVersion"],
            "kind": reference["kind"],
            "metadata": {"name": reference["name"], "namespace": meta["namespace"], "uid": reference["uid"]},
        }
        self._events.normal(about, self._controller, reason, note, distinct=str(meta["uid"]))

    def _may(self, owner_uid: str, created_pod: str) -> bool:
        now = self._clock.now()
        owner = self._owners.pop(owner_uid, None) or _Owner(float(BURST), now)
        left = self._left(owner, now)
        self._owners[owner_uid] = _Owner(left - 1.0 if left >= 1.0 else left, now, created_pod or owner.last_pod)
        while len(self._owners) > OWNERS or self._left(next(iter(self._owners.values())), now) >= BURST:
            self._owners.popitem(last=False)
        return left >= 1.0

    @staticmethod
    def _left(owner: _Owner, now: float) -> float:
        """Return how many events are allowed. An owner that may have all is forgotten, as it is like a new one."""
        return min(float(BURST), owner.left + (now - owner.since) / REFILL_SECONDS)
