"""Search exactly for the cheapest victims on one row: branch and bound over kinds of equivalent units.

Costs are compared in the order of `cost.ORDER`. The growing parts bound the rest of a branch; gangs and workloads are
counted when a set is sufficient. Units of one kind differ in lost work alone and are evicted in ascending order of it.
That keeps the number of branches small, but lost work is not proved minimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from phalanx.engine.preemption import cost
from phalanx.engine.preemption.cost import GROWING, NO_VICTIMS, PROVABLE, Cost, Key, beyond, stops
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.model.groups import GroupKey

Freed = tuple[EvictionUnit, dict[int, float]]  # a unit and what it frees on a row, by resource


@dataclass(frozen=True, slots=True)
class EquivalentUnits:
    """Equivalent units: they differ in lost work alone. Units that lose least work come first."""

    units: tuple[EvictionUnit, ...]
    gives: tuple[float, ...]  # freed amount per missing resource, per unit
    priority: int
    pods: int
    hits: tuple[tuple[int, int], ...]  # (budget, pods that count against it), per unit
    gangs: tuple[tuple[GroupKey, int], ...]  # (gang, pods of it), per unit


@dataclass(frozen=True, slots=True)
class Taken:
    """Cost of the units chosen so far, in the growing parts."""

    price: Cost
    hits: dict[int, int]  # budget -> pods that count against it
    gone: dict[GroupKey, int]  # gang -> pods evicted


class RowSearch:
    """Find the cheapest victim set on one row. `proved`: it is minimal in every part except lost work."""

    def __init__(
        self,
        victim_index: VictimIndex,
        freed: Sequence[Freed],
        lacking: dict[int, float],
        known: tuple[Key, tuple[EvictionUnit, ...]],
        expansions: int,
    ) -> None:
        self._victim_index = victim_index
        self._allowed = victim_index.budgets.allowed
        self.key, self.units = known
        self.left = expansions
        self._kinds = self._sorted(victim_index, freed, tuple(lacking))
        need = tuple(lacking.values())
        # Suffix arrays over kinds, by resource: total freed, and the most that one pod frees.
        self._total = [(0.0,) * len(need)]
        self._most = [(0.0,) * len(need)]
        for kind in reversed(self._kinds):
            count = len(kind.units)
            self._total.append(tuple(a + count * g for a, g in zip(self._total[-1], kind.gives, strict=True)))
            self._most.append(tuple(max(a, g / kind.pods) for a, g in zip(self._most[-1], kind.gives, strict=True)))
        self._total.reverse()
        self._most.reverse()
        self._chosen: list[EvictionUnit] = []
        before = self.left
        self._branch(0, need, Taken(Cost(priority=NO_VICTIMS), {}, {}))
        self.proved = self.left > 0
        self.spent = before - max(0, self.left)

    def _sorted(
        self, victim_index: VictimIndex, freed: Sequence[Freed], rids: tuple[int, ...]
    ) -> list[EquivalentUnits]:
        """Group units by kind, cheapest first; omit units that alone cost more than the best known set."""
        found: dict[tuple[Any, ...], list[EvictionUnit]] = {}
        for unit, gives in freed:
            hits: dict[int, int] = {}
            for pod in unit.pods.values() if self._allowed else ():
                for budget in victim_index.budgets.of(pod):
                    hits[budget] = hits.get(budget, 0) + 1
            gangs = tuple(victim_index.gangs(unit))
            stopped = len(unit.pods) + sum(self._stops(gang, count) - count for gang, count in gangs)
            over = beyond((count, self._allowed[budget]) for budget, count in hits.items())
            alone = Cost(over, unit.priority, stopped, len(unit.pods)).key()[:GROWING]
            if alone > self.key[:GROWING]:
                continue
            whole = None if isinstance(unit.key, str) else unit.key
            what = tuple(gives[rid] for rid in rids)
            key = (alone, what, tuple(sorted(hits.items())), gangs, whole, victim_index.kind(unit))
            found.setdefault(key, []).append(unit)
        kinds = []
        for (_, what, counts, gangs, _, _), units in sorted(
            found.items(), key=lambda entry: (entry[0][0], entry[0][5])
        ):
            units.sort(key=lambda unit: (-unit.started, str(unit.key)))
            kinds.append(EquivalentUnits(tuple(units), what, units[0].priority, len(units[0].pods), counts, gangs))
        return kinds

    def _stops(self, gang: GroupKey, gone: int) -> int:
        return stops(gone, self._victim_index.running(gang), self._victim_index.minimum(gang))

    def _branch(self, at: int, need: tuple[float, ...], taken: Taken) -> None:
        """Branch on the number of evicted units of a kind. need: amount still missing per resource."""
        self.left -= 1
        if self.left <= 0:
            return
        if all(amount <= 0 for amount in need):
            key = self._victim_index.cost(self._chosen).key()
            if key < self.key:
                self.key, self.units = key, tuple(self._chosen)
            return
        if any(total < amount for total, amount in zip(self._total[at], need, strict=True)):
            return
        more = max(ceil(a / most - 1e-9) for a, most in zip(need, self._most[at], strict=True) if a > 0)
        price, pods = taken.price, taken.price.pods + more
        least = Cost(price.budgets, price.priority, max(price.stopped, pods), pods).key()[:GROWING]
        best = self.key[:GROWING]
        if least > best or (least == best and not any(self.key[GROWING:PROVABLE])):
            return
        kind = self._kinds[at]
        enough = max(ceil(a / g) if g else 0 for a, g in zip(need, kind.gives, strict=True) if a > 0)
        for count in range(min(enough, len(kind.units)), 0, -1):
            self._chosen.extend(kind.units[:count])
            left = tuple(a - count * g for a, g in zip(need, kind.gives, strict=True))
            self._branch(at + 1, left, self._with(taken, kind, count))
            del self._chosen[-count:]
        self._branch(at + 1, need, taken)

    def _with(self, taken: Taken, kind: EquivalentUnits, count: int) -> Taken:
        """Return `taken` with `count` more units of a kind evicted."""
        price, over = taken.price, taken.price.budgets
        hits, gone = taken.hits, taken.gone
        if kind.hits:
            hits = dict(hits)
            for budget, each in kind.hits:
                before, allowed = hits.get(budget, 0), self._allowed[budget]
                hits[budget] = before + count * each
                over += max(0, hits[budget] - allowed) - max(0, before - allowed)
        stopped = price.stopped + count * kind.pods
        if kind.gangs:
            gone = dict(gone)
            for gang, each in kind.gangs:
                before = gone.get(gang, 0)
                gone[gang] = before + count * each
                stopped += self._stops(gang, gone[gang]) - self._stops(gang, before) - count * each
        cost = Cost(over, max(price.priority, kind.priority), stopped, price.pods + count * kind.pods)
        return Taken(cost, hits, gone)


def least_possible(victim_index: VictimIndex, freed: Sequence[Freed], lacking: dict[int, float]) -> Cost:
    """Return a quick lower bound on the cost of any set of these units that frees enough."""
    in_order = sorted(freed, key=lambda entry: entry[0].priority)
    total = dict.fromkeys(lacking, 0.0)
    priority = in_order[-1][0].priority
    for unit, gives in in_order:
        for rid in lacking:
            total[rid] += gives[rid]
        if all(total[rid] >= need for rid, need in lacking.items()):
            priority = unit.priority
            break
    if cost.ORDER.index("priority") < min(cost.ORDER.index("stopped"), cost.ORDER.index("pods")):
        # A set that contains a unit of higher priority costs more.
        in_order = [entry for entry in in_order if entry[0].priority <= priority]
    pods = max(_fewest(in_order, rid, need) for rid, need in lacking.items())
    stopped = max(pods, min(_stopped_alone(victim_index, unit) for unit, _ in in_order))
    gangs = [victim_index.workload(unit) for unit, _ in in_order]
    if None in gangs:
        return Cost(priority=priority, stopped=stopped, pods=pods)
    return Cost(
        priority=priority, stopped=stopped, pods=pods, gangs=int(_all_break(victim_index, in_order)), workloads=1
    )


def _stopped_alone(victim_index: VictimIndex, unit: EvictionUnit) -> int:
    """Return the number of pods that stop if the unit alone is evicted."""
    left = (
        stops(count, victim_index.running(gang), victim_index.minimum(gang)) - count
        for gang, count in victim_index.gangs(unit)
    )
    return len(unit.pods) + sum(left)


def _fewest(freed: Sequence[Freed], rid: int, need: float) -> int:
    """Return the minimum number of evicted pods that frees `need` of one resource."""
    count = 0
    for each, pods in sorted(((gives[rid] / len(unit.pods), len(unit.pods)) for unit, gives in freed), reverse=True):
        if each * pods >= need:
            return count + ceil(need / each - 1e-9)
        need -= each * pods
        count += pods
    return max(1, count)


def _all_break(victim_index: VictimIndex, freed: Sequence[Freed]) -> bool:
    """Return True if evicting any of these units breaks a gang that cannot be evicted completely on this row."""
    here: dict[object, int] = {}
    for unit, _ in freed:
        if not isinstance(unit.key, str):
            return False
        leaf = victim_index.workload(unit)
        here[leaf] = here.get(leaf, 0) + 1
    return all(
        isinstance(leaf, GroupKey)
        and victim_index.running(leaf) == victim_index.minimum(leaf)
        and victim_index.running(leaf) > count
        for leaf, count in here.items()
    )
