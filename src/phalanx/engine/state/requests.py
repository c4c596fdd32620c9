"""Compute what a pod requests and a node offers, as exact numbers: cpu in milli, everything else in whole units.

float64 holds integers exactly below 2^53; larger amounts are clamped there. Invalid quantities never raise here: on a
node they count as 0, in a pod as more than any node has.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx.model.objects import Pod
from phalanx.model.objects.pod import Container, Resources
from phalanx.model.pod_amounts import effective, of_whole_pod, raise_to
from phalanx.model.quantity import milli, units

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

EXACT = float(2**53)
# What kube-scheduler assumes, when it scores, for a container without requests.
DEFAULT_CPU = 100.0  # milli
DEFAULT_MEMORY = float(200 * 1024 * 1024)


def is_device(resource: str) -> bool:
    """Return True for an extended resource, which a device plugin offers on some nodes, such as nvidia.com/gpu."""
    return "/" in resource


def amount(resource: str, quantity: str | int | float) -> float:
    """Return the exact number of a quantity; raise ValueError if it is invalid."""
    return float(milli(quantity) if resource == CPU else units(quantity))


def offered(resource: str, quantity: str | int | float | None) -> float:
    """Return the allocatable amount of a node; missing, negative or invalid is 0."""
    if quantity is None:
        return 0.0
    try:
        value = amount(resource, quantity)
    except (ValueError, ArithmeticError, TypeError):
        return 0.0
    return min(max(value, 0.0), EXACT)


def requested_amount(resource: str, quantity: str | int | float) -> float:
    """Return the requested amount of a pod; negative is 0, invalid can never be met."""
    try:
        value = amount(resource, quantity)
    except (ValueError, ArithmeticError, TypeError):
        return EXACT
    return min(max(value, 0.0), EXACT)


class PodRequest(NamedTuple):
    amounts: dict[str, float]  # by resource name; has "pods": 1
    nonzero: tuple[float, float]  # milli cpu, bytes of memory, with the defaults above


def _requests(container: Container) -> dict[str, float]:
    return _amounts(container.resources.requests or {})


def _amounts(resources: Resources) -> dict[str, float]:
    return {name: requested_amount(name, text) for name, text in resources.items()}


def _with_defaults(requests: dict[str, float]) -> dict[str, float]:
    return {CPU: requests.get(CPU, DEFAULT_CPU), MEMORY: requests.get(MEMORY, DEFAULT_MEMORY)}


Given = tuple[bool, dict[str, tuple[Resources | None, Resources | None]], tuple[Resources, ...]]


def given(pod: Pod) -> Given | None:
    """Return what its node has allocated to a pod, if that differs from the spec (in-place resize). The result is:
    whether the resize is infeasible; by container, the allocated and the actual requests; the same for the whole pod.
    None, which is the usual case: only the spec counts."""
    status, spec = pod.status, pod.spec
    if not status.container_statuses:
        return None
    infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in status.conditions or ())
    asked_by = {c.name: c.resources.requests for c in (*spec.containers, *(spec.init_containers or ()))}
    found: dict[str, tuple[Resources | None, Resources | None]] = {}
    differs = infeasible
    for one in (*status.container_statuses, *(status.init_container_statuses or ())):
        allocated, actual = one.allocated_resources, one.resources.requests if one.resources else None
        if allocated is not None or actual is not None:
            found[one.name] = (allocated, actual)
            wanted = asked_by.get(one.name)
            differs = differs or (allocated or wanted) != wanted or (actual or wanted) != wanted
    level = tuple(part for part in (status.allocated_resources, status.resources and status.resources.requests) if part)
    wanted = spec.resources.requests if spec.resources else None
    differs = differs or (wanted is not None and any(part != wanted for part in level))
    return (infeasible, found, level) if differs else None


def _readings(pod: Pod, held: Given | None) -> list[list[dict[str, float]]]:
    """Return the requests of all containers and init containers in each version: desired, allocated and actual. The
    maximum counts (KEP-1287), so that resources still in use or reserved are not given to another pod. The desired
    requests of an infeasible resize do not count."""
    containers = (*pod.spec.containers, *(pod.spec.init_containers or ()))
    asks = [_requests(container) for container in containers]
    if held is None:
        return [asks]
    infeasible, found, _ = held
    ways = [] if infeasible and found else [asks]
    for part in range(2):
        way = []
        for container, wanted in zip(containers, asks, strict=True):
            allocated, *rest = found.get(container.name, (None, None))
            resources = rest[0] if part and rest[0] is not None else allocated
            way.append(wanted if resources is None else _amounts(resources))
        ways.append(way)
    return ways


def pod_request(pod: Pod, held: Given | None = None) -> PodRequest:
    """Return the effective request of a pod. `held`: the result of `given` for the pod."""
    spec = pod.spec
    amounts: dict[str, float] = {}
    nonzero: dict[str, float] = {}
    for way in _readings(pod, held):
        main, rest = way[: len(spec.containers)], way[len(spec.containers) :]
        init = [(c.restart_policy == "Always", r) for c, r in zip(spec.init_containers or (), rest, strict=True)]
        raise_to(amounts, effective(main, init))
        raise_to(nonzero, effective(map(_with_defaults, main), ((sidecar, _with_defaults(r)) for sidecar, r in init)))
    # Requests at pod level replace the sum over containers (PodLevelResources).
    for name, value in _pod_level(pod, held).items():
        amounts[name] = nonzero[name] = value
    for name, text in (spec.overhead or {}).items():
        value = requested_amount(name, text)
        amounts[name] = amounts.get(name, 0.0) + value
        nonzero[name] = nonzero.get(name, 0.0) + value
    result = {name: min(value, EXACT) for name, value in amounts.items()}
    result[PODS] = 1.0
    return PodRequest(result, (min(nonzero.get(CPU, 0.0), EXACT), min(nonzero.get(MEMORY, 0.0), EXACT)))


def _pod_level(pod: Pod, held: Given | None) -> dict[str, float]:
    level: Resources = (pod.spec.resources.requests if pod.spec.resources else None) or {}
    ways: list[Resources] = [level]
    if held is not None and held[2] and level:
        ways = [*held[2]] if held[0] else [level, *held[2]]
    found: dict[str, float] = {}
    for way in ways:
        raise_to(found, {n: v for n, v in _amounts(way).items() if of_whole_pod(n)})
    return found
