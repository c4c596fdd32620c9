"""What an eviction costs, and how two costs compare: the one order, used by every planner, bound and tie-break.

To change the order, change `ORDER`. Three rules hold it together, and `checked` enforces them:

* budgets, priority, stopped and pods come first, in any order. They never shrink when one more unit is evicted, so a
  search can use them as a bound;
* gangs and workloads follow, in any order. They are proved as well, but depend on which other units are evicted;
* kind and work come last, in any order. A plan is improved in them, not proved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from phalanx.engine.preemption.problem import Units

# Most important first. Other modules read it as `cost.ORDER` when they need it, never as a copy.
ORDER = ("budgets", "priority", "stopped", "pods", "gangs", "workloads", "kind", "work")
GROWING = 4  # first parts of a cost: they never shrink when one more unit is evicted
PROVABLE = 6  # first parts of a cost that a plan can be proved in
COUNTS = ("budgets", "stopped", "pods")  # growing parts that are sums, in no order
NOBODY = -(2**63)
POD, GROUP, COMPOSITE = range(3)  # kinds of victims, the least important first, as kube-scheduler 1.37 ranks them
Key = tuple[float, ...]  # a cost in the order of its parts
K = TypeVar("K")


@dataclass(slots=True, frozen=True)
class Cost:
    budgets: int = 0  # evicted pods beyond what disruption budgets allow
    priority: int = NOBODY  # highest priority of an evicted unit; NOBODY: nothing is evicted
    stopped: int = 0  # evicted pods, and the members left behind in a gang below its minimum: they cannot work
    pods: int = 0  # evicted
    gangs: int = 0  # left running below their minimum
    workloads: int = 0  # gangs, and groups evicted as a whole, that lose a pod; a pod of no such group counts none
    kind: int = POD  # most important kind of victim
    work: float = 0.0  # seconds lost; of no meaning by itself where a planner compares costs that outlive the moment

    def key(self) -> Key:
        """The comparator: the lesser key costs less."""
        return _parts(ORDER)(self)


def checked(order: Sequence[str]) -> tuple[str, ...]:
    """The order itself if a planner can follow it, else ValueError."""
    parts = [{"budgets", "priority", "stopped", "pods"}, {"gangs", "workloads"}, {"kind", "work"}]
    if len(order) != 8 or [set(order[:GROWING]), set(order[GROWING:PROVABLE]), set(order[PROVABLE:])] != parts:
        raise ValueError(f"no planner can follow the order {order}: see the rules in {__name__}")
    return tuple(order)


@cache
def _parts(order: tuple[str, ...]) -> Callable[[Cost], Key]:
    return attrgetter(*checked(order))


def counts_in_order() -> tuple[str, ...]:
    """The parts of `COUNTS`, most important first."""
    return tuple(part for part in ORDER if part in COUNTS)


def provable() -> tuple[str, ...]:
    return ORDER[:PROVABLE]


def cost_from(key: Sequence[float]) -> Cost:
    """A cost from the first parts of its key; the others are nothing."""
    return Cost(**dict(zip(ORDER, key, strict=False)))  # type: ignore[arg-type]


def proved_parts(key: Sequence[float], least: Sequence[float]) -> tuple[str, ...]:
    """The parts, from the most important on, in which a cost is no more than the bound."""
    found: list[str] = []
    for name, value, bound in zip(provable(), key, least, strict=False):
        if value != bound:
            break
        found.append(name)
    return tuple(found)


def unit_cost(cost: Cost, protected: int, name: Any) -> tuple[Any, ...]:
    """Sort key of one unit: what evicting it alone costs. The lesser is evicted first, the greatest reprieved first.

    protected: its pods under disruption budgets, which break ties in violations. Names order equals.
    """
    parts = zip(ORDER, cost.key(), strict=True)
    return (*((value, protected) if part == "budgets" else value for part, value in parts), name)


def rung(key: tuple[Any, ...]) -> tuple[float, ...]:
    """The parts of a unit's own cost (`unit_cost`) that matter more than how many pods stop or are evicted."""
    first_count = min(ORDER.index("stopped"), ORDER.index("pods"))
    return tuple(part[0] if isinstance(part, tuple) else part for part in key[:first_count])


def stops(gone: int, running: int, minimum: int) -> int:
    """Pods of a gang that stop when so many are evicted: all that run where it falls below its minimum."""
    return running if 0 < minimum <= running and running - gone < minimum else gone


def left_behind(gone: Mapping[K, int], running: Mapping[K, int], minimum: Mapping[K, int]) -> tuple[int, int]:
    """Gangs that would be left running below their minimum, and their members that stay; a gang that is evicted
    altogether is not broken."""
    left = [stops(pods, running[gang], minimum[gang]) - pods for gang, pods in gone.items()]
    return sum(members > 0 for members in left), sum(left)


def beyond(hits: Iterable[tuple[int, int]]) -> int:
    """Violations, from (evicted pods that count, disruptions allowed) of every budget."""
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
    """Units in the order of what evicting each alone costs."""
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
