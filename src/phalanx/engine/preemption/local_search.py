"""Exchange victims for others that cost less in the parts that the exact search does not count: kind and lost work.

An exchange must not worsen a more important part of the cost. Every exchange is verified by placing the group again.
"""

from __future__ import annotations

import numpy as np

from phalanx.engine.preemption.cost import POD, cost_of
from phalanx.engine.preemption.feasibility import Feasibility
from phalanx.engine.preemption.problem import PreemptionProblem
from phalanx.engine.slices import worked

CHECKS = 60  # placements tried
LARGEST = 60  # victims; with more, 60 placements try too few of the possible exchanges
NEIGHBOURS = 300  # units considered as replacement victims


def improve_victims(problem: PreemptionProblem, fitting: Feasibility, evicted: frozenset[int]) -> frozenset[int]:
    units = problem.units
    cost = cost_of(units, evicted)
    if not evicted or len(evicted) > LARGEST or not (cost.gangs or cost.kind or cost.work > 0):
        return evicted
    best = cost.key()
    checks = CHECKS
    while checks > 0:
        for trial in _exchanges(problem, fitting, evicted, best):
            checks -= 1
            if fitting.fits(trial):
                evicted = fitting.spare(trial)
                best = cost_of(units, evicted).key()
                break
            if checks <= 0:
                return evicted
        else:
            return evicted
    return evicted


def _exchanges(
    problem: PreemptionProblem,
    fitting: Feasibility,
    evicted: frozenset[int],
    best: tuple[float, ...],
) -> list[frozenset[int]]:
    """Return cheaper victim sets in which one unit replaces another, cheapest first."""
    units = problem.units
    near = np.zeros(problem.placement.node_count, dtype=bool)
    near[np.concatenate([units.part_node[fitting.parts_of(u)] for u in evicted])] = True
    inside = np.isin(np.arange(len(units)), units.part_unit[near[units.part_node]])
    highest = max(int(units.priority[u]) for u in evicted)
    others = [u for u in range(len(units)) if u not in evicted and units.priority[u] <= highest]
    others = sorted(others, key=lambda u: (not inside[u], float(units.lost[u]), u))[:NEIGHBOURS]
    found = []
    for out in sorted(evicted):
        rest = evicted - {out}
        gain = bool(units.gangs and units.gangs[out]) or (len(units.kind) > 0 and units.kind[out] > POD)
        for unit in others:
            if units.pods[unit] > units.pods[out] or (not gain and units.lost[unit] >= units.lost[out]):
                continue
            worked(2)
            trial = rest | {unit}
            key = cost_of(units, trial).key()
            if key < best:
                found.append((key, trial))
    found.sort(key=lambda entry: (entry[0], sorted(entry[1])))
    return [trial for _, trial in found]
