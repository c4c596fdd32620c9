"""Exchange victims for others that hurt less in what the exact search does not count: gangs broken, work lost.

Only exchanges that keep everything more important equal or better; every one is checked by placing the group again.
"""

from __future__ import annotations

import numpy as np

from phalanx.engine.preemption.cost import cost_of
from phalanx.engine.preemption.fitting import Fitting
from phalanx.engine.preemption.problem import PreemptionProblem

CHECKS = 150  # placements
LARGEST = 60  # victims; with more the exchanges tried would be a drop in the sea


def polish(
    problem: PreemptionProblem, fitting: Fitting, order: tuple[str, ...], evicted: frozenset[int]
) -> frozenset[int]:
    units = problem.units
    if not evicted or len(evicted) > LARGEST:
        return evicted
    best = cost_of(units, evicted).key(order)
    touched = np.unique(np.concatenate([units.part_node[fitting.parts_of(u)] for u in evicted]))
    near = np.zeros(problem.placement.node_count, dtype=bool)
    near[touched] = True
    if problem.placement.domains:
        for column in problem.placement.domains.values():
            near |= np.isin(column, column[touched][column[touched] >= 0])
    else:
        near[:] = True
    others = [int(u) for u in np.unique(units.part_unit[near[units.part_node]]) if int(u) not in evicted]
    checks = CHECKS
    improved = True
    while improved and checks > 0:
        improved = False
        for trial_key, trial in _exchanges(problem, order, evicted, others, best):
            checks -= 1
            if fitting.fits(trial):
                others = [u for u in [*others, *evicted] if u not in trial]
                evicted = fitting.spare(trial)
                best = min(trial_key, cost_of(units, evicted).key(order))
                improved = True
                break
            if checks <= 0:
                break
    return evicted


def _exchanges(
    problem: PreemptionProblem,
    order: tuple[str, ...],
    evicted: frozenset[int],
    others: list[int],
    best: tuple[float, ...],
) -> list[tuple[tuple[float, ...], frozenset[int]]]:
    """Cheaper sets that differ by one unit out and one in (or just one in for several out), cheapest first."""
    units = problem.units
    found = []
    for out in sorted(evicted):
        less = evicted - {out}
        size = units.pods[out]
        for unit in others:
            if units.pods[unit] > size:
                continue
            trial = less | {unit}
            key = cost_of(units, trial).key(order)
            if key < best:
                found.append((key, trial))
    found.sort(key=lambda entry: (entry[0], sorted(entry[1])))
    return found
