"""Define the cost of an eviction and the one order in which every planner, bound and tie-break compares costs.

To change the order, change `ORDER`. It must follow three rules, which `checked` enforces:

* budgets, priority, stopped and pods come first, in any order. They never decrease when one more unit is evicted, so
  a search can use them as a lower bound;
* gangs and workloads follow, in any order. They can also be proved minimal, but depend on the other evicted units;
* kind and work come last, in any order. Local search improves them, but does not prove them minimal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from phalanx.engine.preemption.problem import Units

# Most important first. Other modules read `cost.ORDER` at each use and keep no copy.
ORDER = ("budgets", "priority", "stopped", "pods", "gangs", "workloads", "kind", "work")
GROWING = 4  # number of leading parts that never decrease when one more unit is evicted
PROVABLE = 6  # number of leading parts that can be proved minimal
COUNTS = ("budgets", "stopped", "pods")  # growing parts that are sums; the order has no meaning
NO_VICTIMS = -(2**63)
POD, GROUP, COMPOSITE = range(3)  # kinds of victims in ascending importance, as in kube-scheduler 1.37
Key = tuple[float, ...]  # parts of a cost in the order of `ORDER`
K = TypeVar("K")


@dataclass(slots=True, frozen=True)
class Cost:
    budgets: int = 0  # evicted pods beyond what disruption budgets allow
    priority: int = NO_VICTIMS  # highest priority of an evicted unit; NO_VICTIMS: nothing is evicted
    stopped: int = 0  # evicted pods plus the remaining members of gangs that fall below their minimum
    pods: int = 0  # evicted pods
    gangs: int = 0  # gangs left running below their minimum
    workloads: int = 0  # gangs, and groups evicted as a whole, that lose a pod
    kind: int = POD  # most important kind of victim
    work: float = 0.0  # seconds of lost work; a planner may use another value with the same order

    def key(self) -> Key:
        """Return the sort key: the lower key costs less."""
        return _parts(ORDER)(self)


def checked(order: Sequence[str]) -> tuple[str, ...]:
    """Return the order if it follows the rules of this module, else raise ValueError."""
    parts = [{"budgets", "priority", "stopped", "pods"}, {"gangs", "workloads"}, {"kind", "work"}]
    if len(order) != 8 or [set(order[:GROWING]), set(order[GROWING:PROVABLE]), set(order[PROVABLE:])] != parts:
        raise ValueError(f"no planner can follow the order {order}: see the rules in {__name__}")
    return tuple(order)


@cache
def _parts(order: tuple[str, ...]) -> Callable[[Cost], Key]:
    return attrgetter(*checked(order))


def counts_in_order() -> tuple[str, ...]:
    """Return the parts of `COUNTS`, most important first."""
    return tuple(part for part in ORDER if part in COUNTS)


def provable() -> tuple[str, ...]:
    return ORDER[:PROVABLE]


def cost_from(key: Sequence[float]) -> Cost:
    """Return a cost from the leading parts of its key; the other parts keep their defaults."""
    return Cost(**dict(zip(ORDER, key, strict=False)))  # type: ignore[arg-type]


def proved_parts(key: Sequence[float], least: Sequence[float]) -> tuple[str, ...]:
    """Return the leading parts in which a cost equals its lower bound, most important first."""
    found: list[str] = []
    for name, value, bound in zip(provable(), key, least, strict=False):
        if value != bound:
            break
        found.append(name)
    return tuple(found)


def unit_cost(cost: Cost, protected: int, name: Any) -> tuple[Any, ...]:
    """Return the sort key of one unit: the cost of evicting it alone. The lowest is evicted first, the highest
    reprieved first.

    protected: its pods under disruption budgets, which break ties in violations. The name breaks the remaining ties.
    """
    parts = zip(ORDER, cost.key(), strict=True)
    return (*((value, protected) if part == "budgets" else value for part, value in parts), name)


def cost_before_counts(key: tuple[Any, ...]) -> tuple[float, ...]:
    """Return the parts of a unit's cost (`unit_cost`) that come before the counts of stopped and evicted pods."""
    first_count = min(ORDER.index("stopped"), ORDER.index("pods"))
    return tuple(part[0] if isinstance(part, tuple) else part for part in key[:first_count])


def stops(gone: int, running: int, minimum: int) -> int:
    """Return the pods of a gang that stop if `gone` are evicted: all running pods if it falls below its minimum."""
    return running if 0 < minimum <= running and running - gone < minimum else gone


def left_behind(gone: Mapping[K, int], running: Mapping[K, int], minimum: Mapping[K, int]) -> tuple[int, int]:
    """Return the number of gangs left running below their minimum, and the number of their remaining members.

    A gang that is evicted completely does not count.
    """
    left = [stops(pods, running[gang], minimum[gang]) - pods for gang, pods in gone.items()]
    return sum(members > 0 for members in left), sum(left)


def beyond(hits: Iterable[tuple[int, int]]) -> int:
    """Return the budget violations, from (evicted pods that count, disruptions allowed) per budget."""
    return sum(max(0, count - allowed) for count, allowed in hits)


def cost_of(units: Units, evicted: Collection[int]) -> Cost:
    if not evicted:
        return Cost()
    chosen = np.fromiter(sorted(evicted), dtype=np.int64)
    over = units.hits[:, chosen].sum(axis=1) - units.allowed
    gone: dict[int, int] = {}
    if units.gangs:
        for u in chosen:
            for gang, pods in units.gangs[int(u)]:
                gone[gang] = gone.get(gang, 0) + pods
    running, minimum = units.gang_running, units.gang_minimum
    gangs, members = left_behind(gone, {g: running[g] for g in gone}, {g: minimum[g] for g in gone})
    pods = int(units.pods[chosen].sum())
    return Cost(
        budgets=int(over.clip(min=0).sum()),
        priority=int(units.priority[chosen].max()),
        stopped=pods + members,
        pods=pods,
        gangs=gangs,
        workloads=len({w for u in chosen if (w := units.workload[int(u)]) >= 0}) if len(units.workload) else 0,
        kind=max(units.kind[int(u)] for u in chosen) if len(units.kind) else POD,
        work=float(units.lost[chosen].sum()),
    )


def cheapest_first(units: Units, some: Iterable[int]) -> list[int]:
    """Return units in ascending order of the cost of evicting each alone."""
    over = (units.hits - units.allowed[:, None]).clip(min=0).sum(axis=0).tolist()
    under = units.hits.sum(axis=0).tolist()
    priority, pods, lost = units.priority.tolist(), units.pods.tolist(), units.lost.tolist()

    def key(u: int) -> tuple[Any, ...]:
        broken = members = 0
        for gang, gone in units.gangs[u] if units.gangs else ():
            left = stops(gone, units.gang_running[gang], units.gang_minimum[gang]) - gone
            broken, members = broken + (left > 0), members + left
        workload = bool(len(units.workload)) and units.workload[u] >= 0
        kind = units.kind[u] if len(units.kind) else POD
        cost = Cost(over[u], priority[u], pods[u] + members, pods[u], broken, workload, kind, lost[u])
        return unit_cost(cost, under[u], u)

    return sorted(some, key=key)
