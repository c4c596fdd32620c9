"""What an eviction costs, and how two costs compare."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.engine.placement.problem import Floats
from phalanx.engine.preemption.problem import Units

# The order kube-scheduler uses between candidate nodes, and the one of KEP-5710's units.
ORDER = ("budgets", "priority", "pods", "gangs", "work")
NOBODY = -(2**63)
TIES = 0.01
_STEP = 1e7  # more than any number of pods: keeps two whole numbers apart in one float


@dataclass(slots=True, frozen=True)
class Cost:
    budgets: int = 0  # evicted pods beyond what disruption budgets allow
    priority: int = NOBODY  # highest priority hurt; NOBODY: nothing is evicted
    pods: int = 0
    gangs: int = 0  # left running below their minimum
    work: float = 0.0  # seconds lost

    def key(self, order: Sequence[str] = ORDER) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in order)


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
    broken = 0
    for gang, pods in gone.items():
        running, minimum = units.gang_running[gang], units.gang_minimum[gang]
        broken += running >= minimum and 0 < running - pods < minimum
    return Cost(
        budgets=int(over.clip(min=0).sum()),
        priority=int(units.priority[chosen].max()),
        pods=int(units.pods[chosen].sum()),
        gangs=broken,
        work=float(units.lost[chosen].sum()),
    )


class Prices:
    """Costs that add up unit by unit, in one float: whole numbers prove, a small fraction only breaks ties.

    Budgets: as long as a budget has room an eviction is free of violation, so prices depend on who is already out.
    """

    def __init__(self, units: Units, order: Sequence[str]) -> None:
        self.units = units
        first = min(("budgets", "pods"), key=order.index) if "pods" in order and "budgets" in order else "budgets"
        self.per_budget, self.per_pod = (_STEP, 1.0) if first == "budgets" else (1.0, _STEP)
        ties = np.zeros(len(units))
        for u, membership in enumerate(units.gangs):
            for gang, pods in membership:
                left = units.gang_running[gang] - pods
                ties[u] += 0 < left < units.gang_minimum[gang] <= units.gang_running[gang]
        total = float(units.lost.sum())
        if total > 0:
            ties += units.lost / total
        self.ties: Floats = ties * (TIES / max(1.0, float(ties.sum())))  # (U,) sums up to TIES at most
        self.base: Floats = units.pods.astype(np.float64) * self.per_pod

    def units_now(self, spent: Sequence[int]) -> Floats:
        """(U,) price of each unit, given the budgets without room left; ties apart."""
        if not spent:
            return self.base
        priced: Floats = self.base + self.units.hits[list(spent)].sum(axis=0) * self.per_budget
        return priced

    def proved(self, price: float) -> float:
        """The whole price that no eviction can be below, if it cannot be below `price`."""
        return float(np.ceil(price - TIES - 1e-5))

    def whole(self, cost: Cost) -> float:
        return cost.budgets * self.per_budget + cost.pods * self.per_pod

    def split(self, whole: float) -> tuple[int, int]:
        """(budget violations, pods) of a bound."""
        if self.per_budget > self.per_pod:
            return int(whole // _STEP), int(whole % _STEP)
        return int(whole % _STEP), int(whole // _STEP)
