"""What the planner answers: a plan to be shown before it is done, a proof that there is none, or that it gave up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phalanx.engine.placement.outcome import Outcome
from phalanx.engine.preemption.cost import NOBODY, Cost
from phalanx.engine.preemption.problem import PreemptionProblem


@dataclass(slots=True, frozen=True)
class Victim:
    unit: int  # index into the problem's units
    name: str
    pods: int
    priority: int
    why: str  # what fails if this one is put back


@dataclass(slots=True, frozen=True, eq=False)
class Plan:
    """Evict these and the group fits; put any one of them back and it does not."""

    problem: PreemptionProblem
    victims: tuple[Victim, ...]
    placement: Outcome  # where members go once the victims are gone
    cost: Cost
    lower_bound: Cost  # no plan costs less (gangs and work: not bounded, always 0)
    optimal: bool  # proved: budgets, priority and pods cannot be less
    expansions: int

    def to_json(self) -> dict[str, Any]:
        return {
            "victims": [{"name": v.name, "pods": v.pods, "priority": v.priority, "why": v.why} for v in self.victims],
            "cost": cost_json(self.cost),
            "lowerBound": cost_json(self.lower_bound),
            "optimal": self.optimal,
            "expansions": self.expansions,
        }

    def __str__(self) -> str:
        if not self.victims:
            return "fits without evicting anybody"
        lines = [f"evict {self.cost.pods} pods in {len(self.victims)} units ({describe(self.cost)})"]
        for v in self.victims:
            lines.append(f"  {v.name}: priority {v.priority}, {v.pods} pod{'s' if v.pods != 1 else ''}; {v.why}")
        if self.optimal:
            lines.append("proved: no cheaper plan exists")
        else:
            lines.append(f"no plan can cost less than {describe(self.lower_bound)}")
        return "\n".join(lines)


@dataclass(slots=True, frozen=True)
class Hopeless:
    """Proved: evicting everything that may be evicted does not help."""

    reason: str
    expansions: int = 0
    placement: Outcome | None = field(default=None, compare=False)  # with its certificate, where that was asked for


@dataclass(slots=True, frozen=True)
class GaveUp:
    """The budget ended before a plan or a proof was found."""

    expansions: int


Answer = Plan | Hopeless | GaveUp


def cost_json(cost: Cost) -> dict[str, Any]:
    return {
        "budgetViolations": cost.budgets,
        "highestPriority": None if cost.priority == NOBODY else cost.priority,
        "pods": cost.pods,
        "brokenGangs": cost.gangs,
        "lostSeconds": round(cost.work, 3),
    }


def describe(cost: Cost) -> str:
    words = [
        f"{cost.budgets} beyond disruption budgets",
        "nobody hurt" if cost.priority == NOBODY else f"highest priority {cost.priority}",
        f"{cost.pods} pods",
        f"{cost.gangs} gangs broken",
        f"{cost.work:.0f} s of work lost",
    ]
    return ", ".join(words)
