"""Preemption: find the cheapest set of victims whose eviction makes a pod or group schedulable."""

from phalanx.engine.preemption.cost import NO_VICTIMS, ORDER, Cost, cost_of
from phalanx.engine.preemption.plan import plan
from phalanx.engine.preemption.problem import DEFAULT_BUDGET, PreemptionProblem, Units
from phalanx.engine.preemption.result import Hopeless, Plan, Planned, SearchBudgetExhausted, Victim

__all__ = [
    "DEFAULT_BUDGET",
    "NO_VICTIMS",
    "ORDER",
    "Cost",
    "Hopeless",
    "Plan",
    "Planned",
    "PreemptionProblem",
    "SearchBudgetExhausted",
    "Units",
    "Victim",
    "cost_of",
    "plan",
]
