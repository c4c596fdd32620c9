"""What a pod asks for and what a node offers, as exact numbers: cpu in milli, everything else in whole units.

float64 holds integers exactly below 2^53; larger amounts are clamped there. Nonsense never raises here: on a node it
counts as nothing to give, in a pod as more than any node has.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx.model.objects import Pod
from phalanx.model.objects.pod import Container, Resources
from phalanx.model.pod_amounts import effective
from phalanx.model.quantity import milli, units

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

EXACT = float(2**53)
# What kube-scheduler assumes of a container that asks for nothing, when it scores.
DEFAULT_CPU = 100.0  # milli
DEFAULT_MEMORY = float(200 * 1024 * 1024)


def is_device(resource: str) -> bool:
    """Extended resources: what a device plugin offers on some nodes, such as nvidia.com/gpu."""
    return "/" in resource


def amount(resource: str, quantity: str | int | float) -> float:
    """Exact number of a quantity; raises ValueError on nonsense."""
    return float(milli(quantity) if resource == CPU else units(quantity))


def offered(resource: str, quantity: str | int | float | None) -> float:
    """Allocatable of a node: missing, negative or nonsense is 0."""
    if quantity is None:
        return 0.0
    try:
        value = amount(resource, quantity)
    except (ValueError, ArithmeticError, TypeError):
        return 0.0
    return min(max(value, 0.0), EXACT)


def asked(resource: str, quantity: str | int | float) -> float:
    """Request of a pod: negative is 0, nonsense can never be met."""
    try:
        value = amount(resource, quantity)
    except (ValueError, ArithmeticError, TypeError):
        return EXACT
    return min(max(value, 0.0), EXACT)


class PodRequest(NamedTuple):
    amounts: dict[str, float]  # by resource name; has "pods": 1
    nonzero: tuple[float, float]  # milli cpu, bytes of memory, with the defaults above


def _requests(container: Container) -> dict[str, float]:
    return {name: asked(name, text) for name, text in (container.resources.requests or {}).items()}


def _with_defaults(requests: dict[str, float]) -> dict[str, float]:
    return {CPU: requests.get(CPU, DEFAULT_CPU), MEMORY: requests.get(MEMORY, DEFAULT_MEMORY)}


def _pod_level(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def pod_request(pod: Pod) -> PodRequest:
    spec = pod.spec
    main = [_requests(container) for container in spec.containers]
    init = [(c.restart_policy == "Always", _requests(c)) for c in spec.init_containers or ()]
    amounts = effective(main, init)
    nonzero = effective(map(_with_defaults, main), ((sidecar, _with_defaults(r)) for sidecar, r in init))
    # Requests at pod level replace what the containers add up to (PodLevelResources).
    level: Resources = (spec.resources.requests if spec.resources else None) or {}
    for name, text in level.items():
        if _pod_level(name):
            amounts[name] = nonzero[name] = asked(name, text)
    for name, text in (spec.overhead or {}).items():
        value = asked(name, text)
        amounts[name] = amounts.get(name, 0.0) + value
        nonzero[name] = nonzero.get(name, 0.0) + value
    result = {name: min(value, EXACT) for name, value in amounts.items()}
    result[PODS] = 1.0
    return PodRequest(result, (min(nonzero.get(CPU, 0.0), EXACT), min(nonzero.get(MEMORY, 0.0), EXACT)))
