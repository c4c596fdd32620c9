"""Validate amounts of resources: names, signs, requests against limits, and quality of service."""

from __future__ import annotations

from phalanx.model import names, quantity
from phalanx.model.fieldpath import all_invalid, forbidden, invalid, required
from phalanx.model.kinds import FieldError, Json

_CONTAINER = frozenset({"cpu", "memory", "ephemeral-storage"})
# Names without a domain that mean something somewhere: on nodes, in quotas and limit ranges.
STANDARD = frozenset(
    {
        "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage",
        "limits.cpu", "limits.memory", "limits.ephemeral-storage", "pods", "resourcequotas", "services",
        "replicationcontrollers", "secrets", "configmaps", "persistentvolumeclaims", "storage", "requests.storage",
        "services.nodeports", "services.loadbalancers",
    }
)  # fmt: skip
_OVERCOMMIT = _CONTAINER  # everything else is counted in whole devices or pages


def amount(value: object, path: str, *, whole: bool = False) -> list[FieldError]:
    """Check one quantity: valid, not negative, and an integer if `whole`."""
    try:
        nanos = quantity.parse(value).nanos  # type: ignore[arg-type]
    except quantity.BadQuantity as problem:
        return [invalid(path, value, str(problem))]
    if nanos < 0:
        return [invalid(path, value, "must be greater than or equal to 0")]
    if whole and nanos % quantity.NANO:
        return [invalid(path, value, "must be an integer")]
    return []


def _is_overcommit(name: str) -> bool:
    if name in _OVERCOMMIT:
        return True
    return "kubernetes.io/" in name and not name.startswith("requests.")


def _named_list(found: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for name, value in found.items():
        if name not in _CONTAINER:
            if problems := names.label_key(name):
                errors += all_invalid(f"{path}[{name}]", name, problems)
            elif "/" not in name and not name.startswith("hugepages-"):
                if name not in STANDARD:
                    text = "must be a standard resource type or fully qualified"
                    errors.append(invalid(f"{path}[{name}]", name, text))
                errors.append(invalid(f"{path}[{name}]", name, "must be a standard resource for containers"))
        errors += amount(value, f"{path}[{name}]", whole="/" in name and not _is_overcommit(name))
    return errors


def requirements(found: Json, path: str) -> list[FieldError]:
    """Check the `resources` of a container or a pod."""
    limits: Json = found.get("limits") or {}
    requests: Json = found.get("requests") or {}
    if not limits and not requests:
        return []
    errors = _named_list(limits, f"{path}.limits")
    errors += _named_list(requests, f"{path}.requests")
    if errors:
        return errors
    asked = {*limits, *requests}
    if not asked & {"cpu", "memory"} and any(name.startswith("hugepages-") for name in asked):
        errors.append(forbidden(path, "HugePages require cpu or memory"))
    for name, value in requests.items():
        limit = limits.get(name)
        overcommit = _is_overcommit(name)
        if limit is None:
            if not overcommit:
                errors.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            continue
        order = quantity.compare(value, limit)
        shown = quantity.canonical(value)
        if overcommit and order > 0:
            text = f"must be less than or equal to {name} limit of {quantity.canonical(limit)}"
            errors.append(invalid(f"{path}.requests", shown, text))
        elif not overcommit and order != 0:
            text = f"must be equal to {name} limit of {quantity.canonical(limit)}"
            errors.append(invalid(f"{path}.requests", shown, text))
    return errors


def resource_list(found: Json | None, path: str) -> list[FieldError]:
    """Check capacity, allocatable, overhead or quota: any qualified names with quantities."""
    errors: list[FieldError] = []
    for name, value in (found or {}).items():
        if problems := names.label_key(name):
            errors += all_invalid(f"{path}[{name}]", name, problems)
        errors += amount(value, f"{path}[{name}]")
    return errors


def quality_of_service(spec: Json) -> str:
    """Return the QoS class of a pod: Guaranteed, Burstable or BestEffort.

    It depends on cpu and memory of every container, or of the pod as a whole.
    """
    whole: Json = spec.get("resources") or {}
    if whole.get("requests") or whole.get("limits"):
        parts = [whole]
    else:
        containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
        parts = [container.get("resources") or {} for container in containers]
    guaranteed, anything = True, False
    for part in parts:
        limits, requests = part.get("limits") or {}, part.get("requests") or {}
        for name in ("cpu", "memory"):
            limit, request = _positive(limits.get(name)), _positive(requests.get(name))
            anything = anything or limit is not None or request is not None
            if limit is None or (request is not None and request != limit):
                guaranteed = False
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _positive(value: str | int | float | None) -> int | None:
    if value is None:
        return None
    try:
        nanos = quantity.nanos(value)
    except quantity.BadQuantity:
        return None
    return nanos if nanos > 0 else None
