"""Results of the preemption planner: a plan to show or execute, a proof of none, or SearchBudgetExhausted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from phalanx.engine.placement.outcome import SearchOutcome, plural
from phalanx.engine.preemption import cost as costs
from phalanx.engine.preemption.cost import NO_VICTIMS, Cost, provable
from phalanx.engine.preemption.problem import PreemptionProblem


class Victim(msgspec.Struct, frozen=True):
    unit: int  # index into the problem's units
    name: str
    pods: int
    priority: int
    why: str  # why the victim is needed


@dataclass(slots=True, frozen=True, eq=False)
class Plan:
    """Victims whose eviction makes the group fit; without any one of them it does not fit."""

    problem: PreemptionProblem
    victims: tuple[Victim, ...]
    placement: SearchOutcome | None  # where members go after the evictions; None: checked by filters only
    cost: Cost
    lower_bound: Cost  # lower bound of the cost of any plan
    proved: tuple[str, ...]  # leading parts of the cost that are proved minimal, most important first
    expansions: int

    @property
    def optimal(self) -> bool:
        """Return True if every provable part is proved minimal; kind and lost work are only improved."""
        return set(provable()) <= set(self.proved)

    def __str__(self) -> str:
        if not self.victims:
            return "fits without evicting a pod"
        lines = [f"{summary(self.cost, len(self.victims))} ({describe(self.cost)})"]
        for v in self.victims:
            lines.append(f"  {v.name}: priority {v.priority}, {plural(v.pods, 'pod')}; {v.why}")
        lines.append(proof(self.proved, self.lower_bound))
        return "\n".join(lines)


@dataclass(slots=True, frozen=True)
class Hopeless:
    """Proof that no victim set makes the group feasible."""

    reason: str
    expansions: int = 0
    placement: SearchOutcome | None = field(default=None, compare=False)  # with its certificate if requested


class SearchBudgetExhausted(msgspec.Struct, frozen=True):
    """The search budget ended before a plan or a proof was found."""

    expansions: int


Planned = Plan | Hopeless | SearchBudgetExhausted


# Parts of a cost that answers name, by their word in `cost.ORDER`.
COST_FIELDS = {
    "budgets": "budgetViolations",
    "priority": "highestPriority",
    "stopped": "stoppedPods",
    "pods": "pods",
    "gangs": "brokenGangs",
    "workloads": "workloads",
    "work": "lostSeconds",
}


def summary(cost: Cost, units: int) -> str:
    """Say what is evicted, and how many other gang members stop."""
    left = cost.stopped - cost.pods
    rest = f"; {plural(left, 'member')} of {plural(cost.gangs, 'gang')} left below the minimum" if left else ""
    return f"evict {plural(cost.pods, 'pod')} in {plural(units, 'unit')}{rest}"


def describe(cost: Cost) -> str:
    words = {
        "budgets": f"{cost.budgets} beyond disruption budgets",
        "priority": "nothing evicted" if cost.priority == NO_VICTIMS else f"highest priority {cost.priority}",
        "stopped": f"{plural(cost.stopped, 'pod')} stopped",
        "pods": f"{plural(cost.pods, 'pod')} evicted",
        "gangs": f"{plural(cost.gangs, 'gang')} broken",
        "workloads": f"{plural(cost.workloads, 'workload')} hit",
        "work": f"{cost.work:.0f} s of work lost",
    }
    return ", ".join(words[part] for part in costs.ORDER if part in words)


_PARTS = {
    "budgets": "disruption budgets",
    "priority": "highest priority",
    "stopped": "pods stopped",
    "pods": "pods evicted",
    "gangs": "gangs broken",
    "workloads": "workloads hit",
}


def proof(proved: Sequence[str], lower_bound: Cost) -> str:
    """Say which parts of a cost are proved minimal."""
    if _PARTS.keys() <= set(proved):
        return "proved: no plan costs less (work lost is not part of the proof)"
    words = [_PARTS[part] for part in proved if part in _PARTS]
    least = f"proved to be least: {', '.join(words)}; " if words else ""
    return f"{least}no plan can cost less than {describe(lower_bound)}"
