"""What a whole pod asks for and may use at most: the sums that LimitRanges and ResourceQuotas are about.

Amounts are whole nano-units, exact for every quantity that Kubernetes can write.
"""

from __future__ import annotations

from phalanx.model.kinds import Json
from phalanx.model.quantity import nanos

Amounts = dict[str, int]  # resource -> nano-units


def pod_amounts(spec: Json, field: str) -> Amounts:
    """`requests` or `limits` of a pod: containers beside sidecars, or the largest step before; and the overhead."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add(total, amounts(container, field))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = amounts(container, field)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            _add(total, own)
            own = {}
        else:
            _add(own, sidecars)
        for name, amount in {**sidecars, **own}.items():
            peak[name] = max(peak.get(name, 0), amount)
    for name, amount in peak.items():
        total[name] = max(total.get(name, 0), amount)
    for name, text in (spec.get("overhead") or {}).items():
        if field == "requests" or name in total:
            total[name] = total.get(name, 0) + nanos(text)
    return total


def amounts(container: Json, field: str) -> Amounts:
    return {name: nanos(text) for name, text in ((container.get("resources") or {}).get(field) or {}).items()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
