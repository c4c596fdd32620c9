"""Compute how many more pods the ResourceQuotas of a namespace allow.

Nothing is reserved for pods that cannot be created. The API server counts existing pods (`status.used`); reservations
for expected pods of the namespace are added. An unknown scope counts as matching.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base.well_known import COMPUTE_RESOURCES
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.requests import pod_request, requested_amount
from phalanx.model.objects import Pod, ResourceQuota
from phalanx.model.objects.cluster import ScopeRequirement

_COUNTS = ("pods", "count/pods")


def allowed(state: ClusterState, namespace: str, pod: Pod, count: int, reserved: Iterable[PodRecord]) -> int:
    """Return how many of `count` further pods like this one the quotas allow in addition to `reserved`."""
    quotas = [each for each in state.objects.all(ResourceQuota) if each.metadata.namespace == namespace]
    if not quotas or count <= 0:
        return count
    others = list(reserved)
    for resource, name, each, quota in _limits(quotas, pod):
        used = _used(quota, name, resource) + sum(_held(state, record, resource, name) for record in others)
        count = min(count, max(0, int((_hard(quota, name, resource) - used) // each)))
    return count


def not_allowed(state: ClusterState, namespace: str, pods: Iterable[PodRecord]) -> list[PodRecord]:
    """Return which of these pods, which do not exist, the quotas do not allow after those before them in order."""
    quotas = [each for each in state.objects.all(ResourceQuota) if each.metadata.namespace == namespace]
    left: dict[tuple[str, str], float] = {}  # (quota, name in spec.hard) -> amount
    refused = []
    for record in pods:
        wants: dict[tuple[str, str], float] = {}
        for resource, name, each, quota in _limits(quotas, record.pod) if record.pod is not None else ():
            key = (quota.metadata.name, name)
            wants[key] = each
            if key not in left:
                left[key] = _hard(quota, name, resource) - _used(quota, name, resource)
        if any(left[key] < each for key, each in wants.items()):
            refused.append(record)
            continue
        for key, each in wants.items():
            left[key] -= each
    return refused


def exceeded(state: ClusterState, namespace: str, records: Sequence[PodRecord]) -> str:
    """Return which exceeded quota of the namespace counts one of these pods, as text; "" if none.

    The API server checks quotas at creation, so waiting pods are within them unless a quota was lowered since. Nothing
    is reserved in a namespace beyond its quota.
    """
    quotas = [each for each in state.objects.all(ResourceQuota) if each.metadata.namespace == namespace]
    pods = {record.shape: record.pod for record in records if record.pod is not None} if quotas else {}
    for pod in pods.values():
        for resource, name, _, quota in _limits(quotas, pod):
            if _used(quota, name, resource) > _hard(quota, name, resource):
                used, hard = (quota.status.used or {})[name], (quota.spec.hard or {})[name]
                return f"ResourceQuota {quota.metadata.name} is exceeded: {name} {used} of {hard}"
    return ""


def _limits(quotas: Iterable[ResourceQuota], pod: Pod) -> Iterator[tuple[str, str, float, ResourceQuota]]:
    """Yield (resource, name in `spec.hard`, amount for one such pod, quota) for each limit that counts this pod."""
    wants = pod_request(pod).amounts
    for quota in quotas:
        for name in (quota.spec.hard or {}) if _applies(quota, pod) else ():
            resource, each = _counted(name, pod, wants)
            if each > 0:
                yield resource, name, each, quota


def _hard(quota: ResourceQuota, name: str, resource: str) -> float:
    return requested_amount(resource, (quota.spec.hard or {})[name])


def _used(quota: ResourceQuota, name: str, resource: str) -> float:
    return requested_amount(resource, (quota.status.used or {}).get(name, "0"))


def _counted(name: str, pod: Pod, wants: dict[str, float]) -> tuple[str, float]:
    """Return (resource, amount per pod) of a name in `spec.hard`; amount 0: the name does not limit pods."""
    if name in _COUNTS:
        return "pods", 1.0
    if name.startswith("limits."):
        resource = name.removeprefix("limits.")
        return resource, sum(
            requested_amount(resource, (c.resources.limits or {}).get(resource, "0")) for c in pod.spec.containers
        )
    resource = name.removeprefix("requests.")
    if resource != name or name in COMPUTE_RESOURCES:
        return resource, wants.get(resource, 0.0)
    return name, 0.0


def _held(state: ClusterState, record: PodRecord, resource: str, name: str) -> float:
    if name.startswith("limits."):
        return 0.0 if record.pod is None else _counted(name, record.pod, {})[1]
    rid = state.columns.resource(resource)
    return next((amount for each, amount in record.shape.requests if each == rid), 0.0)


def _applies(quota: ResourceQuota, pod: Pod) -> bool:
    selector = quota.spec.scope_selector
    rules = (selector.match_expressions if selector is not None else None) or []
    return all(_in_scope(scope, pod) for scope in quota.spec.scopes or ()) and all(
        _selects(each, pod) for each in rules
    )


def _in_scope(scope: str, pod: Pod) -> bool:
    match scope:
        case "Terminating":
            return pod.spec.active_deadline_seconds is not None
        case "NotTerminating":
            return pod.spec.active_deadline_seconds is None
        case "BestEffort" | "NotBestEffort":
            sizes = [each.resources for each in (*pod.spec.containers, *(pod.spec.init_containers or ()))]
            return (scope == "BestEffort") == (not any(size.requests or size.limits for size in sizes))
        case "PriorityClass":
            return bool(pod.spec.priority_class_name)
    return True


def _selects(rule: ScopeRequirement, pod: Pod) -> bool:
    if rule.scope_name != "PriorityClass":
        return _in_scope(rule.scope_name, pod)
    named, values = pod.spec.priority_class_name, rule.values or []
    match rule.operator:
        case "In":
            return named in values
        case "NotIn":
            return named not in values
        case "DoesNotExist":
            return not named
    return bool(named)
