"""Show the conditions and events of a waiting object as the API server has them, when no scheduler answers."""

from __future__ import annotations

import json
from typing import Any

from phalanx.base.client import Client, Resource
from phalanx.base.errors import ApiProblem, Forbidden, NotFound
from phalanx.base.resources import EVENTS, PODS
from phalanx.base.well_known import PHALANX_API, POD_SCHEDULED, SCHEDULING_API
from phalanx.cli.output import CommandResult
from phalanx.model.printing.groups import HEALTHY

_GROUPS = (SCHEDULING_API, PHALANX_API)  # those of a cluster that serves them itself, and custom resources


def _served(kind: str, *versions: str) -> tuple[Resource, ...]:
    plural = f"{kind.lower()}s"
    return tuple(Resource(group, version, plural, kind) for group in _GROUPS for version in versions)


RESOURCES = {
    "Pod": (PODS,),
    "PodGroup": _served("PodGroup", "v1beta1", "v1alpha3"),
    "CompositePodGroup": _served("CompositePodGroup", "v1alpha3"),
    "Workload": _served("Workload", "v1beta1", "v1alpha1"),
}
_SHOWN = (POD_SCHEDULED, "PodGroupInitiallyScheduled", "CompositePodGroupInitiallyScheduled", HEALTHY)
MOST_EVENTS = 3


async def from_conditions(client: Client, kind: str, namespace: str, name: str, problem: str) -> CommandResult:
    """Return the answer of `why` from conditions and events. Raises ApiProblem if the object is missing."""
    name = name.partition("/")[0]
    found: dict[str, Any] = {}
    last: ApiProblem | None = None
    for resource in RESOURCES[kind]:
        try:
            found = json.loads(await client.get(resource, name, namespace))
            break
        except ApiProblem as failed:
            # The object is not there, not its kind; a right that is missing counts more.
            if last is None or (name in failed.message and not isinstance(last, Forbidden)):
                last = failed
    if not found:
        assert last is not None
        if isinstance(last, NotFound):
            listed = f"kubectl get {RESOURCES[kind][0].plural} -n {namespace}"
            raise NotFound(f"{last} in {namespace}; see what is there with: {listed}", name=name, kind=kind)
        if isinstance(last, Forbidden):
            raise Forbidden(f"{problem}; its conditions: {last}", name=name, kind=kind)
        raise last
    conditions = [c for c in (found.get("status") or {}).get("conditions") or () if c["type"] in _SHOWN]
    fields = f"involvedObject.kind={kind},involvedObject.name={name}"
    events = json.loads(await client.list(EVENTS, namespace, fields=fields)).get("items") or []
    events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    states = {condition["type"]: condition for condition in conditions}
    health = states.pop(HEALTHY, {"status": "True", "reason": ""})  # a gang that was scheduled may have lost members
    scheduled = health["status"] == "True" and any(condition["status"] == "True" for condition in states.values())
    note = f"{problem}. This is what the API server knows"
    answer = {
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "scheduled": scheduled,
        "note": note,
        "conditions": conditions,
        "events": [{key: event.get(key) for key in ("type", "reason", "message")} for event in events],
    }
    state = f" ({health['reason']})" if health["reason"] else ""
    lines = [f"{kind.lower()}/{name} in {namespace}: {'scheduled' if scheduled else 'pending'}{state}"]
    for condition in conditions:
        text = condition.get("message") or condition.get("reason") or ""
        lines.append(f"  {condition['type']}={condition['status']}: {text}")
    lines += [f"  event {event.get('reason')}: {event.get('message')}" for event in events[-MOST_EVENTS:]]
    announced = f"note: {note}; give --scheduler URL to ask a scheduler"
    return CommandResult(0 if scheduled else 1, answer, "\n".join(lines), (announced,))
