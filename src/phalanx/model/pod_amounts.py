"""What a whole pod asks for and may use at most: Kubernetes' rule, and the sums that LimitRanges and ResourceQuotas
are about.

Amounts of the latter are whole nano-units, exact for every quantity that Kubernetes can write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from phalanx.model.kinds import Json
from phalanx.model.quantity import nanos

Amounts = dict[str, int]  # resource -> nano-units
N = TypeVar("N", int, float)


def effective(main: Iterable[Mapping[str, N]], init: Iterable[tuple[bool, Mapping[str, N]]]) -> dict[str, N]:
    """Return the amounts of a whole pod by resource.

    This is the sum of all containers and sidecars, or the largest amount during initialisation if that is more. `init`:
    in order, whether it is a sidecar and what it asks for; an init container runs next to the sidecars before it.
    """
    total: dict[str, N] = {}
    for amounts in main:
        add(total, amounts)
    sidecars: dict[str, N] = {}
    peak: dict[str, N] = {}
    for is_sidecar, amounts in init:
        if is_sidecar:
            add(sidecars, amounts)
            add(total, amounts)
            raise_to(peak, sidecars)
        else:
            step = dict(sidecars)
            add(step, amounts)
            raise_to(peak, step)
    raise_to(total, peak)
    return total


def add(total: dict[str, N], more: Mapping[str, N]) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def raise_to(total: dict[str, N], least: Mapping[str, N]) -> None:
    for name, amount in least.items():
        if name not in total or amount > total[name]:
            total[name] = amount


def pod_amounts(spec: Json, field: str) -> Amounts:
    """Return the `requests` or `limits` of a pod, with the overhead.

    Amounts at pod level replace those of the containers.
    """
    total = effective(
        (amounts(container, field) for container in spec.get("containers") or ()),
        ((each.get("restartPolicy") == "Always", amounts(each, field)) for each in spec.get("initContainers") or ()),
    )
    total |= {name: amount for name, amount in amounts(spec, field).items() if of_whole_pod(name)}
    for name, text in (spec.get("overhead") or {}).items():
        if field == "requests" or name in total:
            total[name] = total.get(name, 0) + nanos(text)
    return total


def of_whole_pod(resource: str) -> bool:
    """Return True if the resource can be requested at pod level."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def amounts(container: Json, field: str) -> Amounts:
    return {name: nanos(text) for name, text in ((container.get("resources") or {}).get(field) or {}).items()}
