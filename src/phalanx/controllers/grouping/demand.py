"""Sum the resource requests of pods from their templates: exact quantities, in the notation of the first."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.model.kinds import Json
from phalanx.model.quantity import Quantity, parse

Demand = dict[str, Quantity]


def of_pod(pod_spec: Json) -> Demand:
    """Return effective requests of one pod: containers and sidecars together, or the peak of init containers."""
    total: Demand = {}
    sidecars: Demand = {}
    peak: Demand = {}
    for container in pod_spec.get("containers") or ():
        _add(total, _requests(container))
    for container in pod_spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(total, _requests(container))
            _add(sidecars, _requests(container))
            _raise_to(peak, sidecars)
        else:
            step = dict(sidecars)
            _add(step, _requests(container))
            _raise_to(peak, step)
    _raise_to(total, peak)
    total |= _parsed((pod_spec.get("resources") or {}).get("requests"))  # requests at pod level replace the sum
    _add(total, _parsed(pod_spec.get("overhead")))
    return total


def total(parts: Iterable[tuple[int, Json]]) -> dict[str, str]:
    """Sum the requests of so many pods of each spec, as a resource list."""
    found: Demand = {}
    for count, pod_spec in parts:
        one = of_pod(pod_spec)
        _add(found, {name: Quantity(amount.nanos * count, amount.format) for name, amount in one.items()})
    return {name: str(found[name]) for name in sorted(found)}


def _requests(container: Json) -> Demand:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}  # a limit without a request is the request
    return _parsed({**limits, **(resources.get("requests") or {})})


def _parsed(amounts: Json | None) -> Demand:
    return {name: parse(text) for name, text in (amounts or {}).items()}


def _add(to: Demand, more: Demand) -> None:
    for name, amount in more.items():
        known = to.get(name)
        to[name] = amount if known is None else Quantity(known.nanos + amount.nanos, known.format)


def _raise_to(to: Demand, floor: Demand) -> None:
    for name, amount in floor.items():
        if name not in to or to[name].nanos < amount.nanos:
            to[name] = amount
