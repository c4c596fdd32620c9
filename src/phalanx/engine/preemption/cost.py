"""What an eviction costs, and how two costs compare: the one order, used by every planner and every tie-break.

To change the order, change `ORDER`. Two rules hold it together: budgets, priority and pods come first (in any order:
they add up, or only have a highest, so the search prices them unit by unit), and then what depends on who else goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from phalanx.engine.preemption.problem import Units

# Most important first. The first four are the order of kube-scheduler between nodes and of KEP-5710's units.
ORDER = ("budgets", "priority", "pods", "gangs", "workloads", "work")
NOBODY = -(2**63)
K = TypeVar("K")


@dataclass(slots=True, frozen=True)
class Cost:
    budgets: int = 0  # evicted pods beyond what disruption budgets allow
    priority: int = NOBODY  # highest priority hurt; NOBODY: nothing is evicted
    pods: int = 0
    gangs: int = 0  # left running below their minimum
    workloads: int = 0  # gangs, and groups that go as a whole, that lose anybody; a pod of no such group counts none
    work: float = 0.0  # seconds lost; of no meaning by itself where a planner compares costs that outlive the moment

    def key(self, order: Sequence[str] = ORDER) -> tuple[float, ...]:
        """The comparator: the lesser key hurts less."""
        return _parts(tuple(order))(self)


@cache
def _parts(order: tuple[str, ...]) -> Callable[[Cost], tuple[float, ...]]:
    return attrgetter(*order)


def unit_cost(
    beyond: int, protected: int, priority: int, pods: int, workload: bool, work: float, name: Any
) -> tuple[Any, ...]:
    """The same order for one unit alone, by name among equals: the lesser goes first, the greatest is spared first.

    beyond: violations if nobody else went; protected: its pods under budgets; workload: a gang's, or a whole group.
    """
    return (beyond, protected, priority, pods, workload, work, name)


def broken(gone: Mapping[K, int], running: Mapping[K, int], minimum: Mapping[K, int]) -> int:
    """Gangs that ran and would be left below their minimum; one that is gone altogether is not broken."""
    return sum(
        running[gang] >= minimum[gang] and 0 < running[gang] - pods < minimum[gang] for gang, pods in gone.items()
    )


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
    return Cost(
        budgets=int(over.clip(min=0).sum()),
        priority=int(units.priority[chosen].max()),
        pods=int(units.pods[chosen].sum()),
        gangs=broken(gone, dict(enumerate(units.gang_running)), dict(enumerate(units.gang_minimum))) if gone else 0,
        workloads=len({w for u in chosen if (w := units.workload[int(u)]) >= 0}) if len(units.workload) else 0,
        work=float(units.lost[chosen].sum()),
    )


def hurts_least_first(units: Units, some: Iterable[int]) -> list[int]:
    alone = (units.hits - units.allowed[:, None]).clip(min=0).sum(axis=0)
    under = units.hits.sum(axis=0)

    def key(u: int) -> tuple[Any, ...]:
        workload = bool(len(units.workload)) and units.workload[u] >= 0
        return unit_cost(
            int(alone[u]), int(under[u]), int(units.priority[u]), int(units.pods[u]), workload, float(units.lost[u]), u
        )

    return sorted(some, key=key)
