"""The cheapest units to evict on one row, exactly: branch and bound over units that differ in nothing but work lost.

Parts of the cost are compared in the one order (`cost.ORDER`). The growing ones bound what is left of a branch; gangs
and workloads are counted where a set suffices. Units that differ in work alone are taken in the order of it: that
keeps branches few, and work improved on, not proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from phalanx.engine.preemption import cost
from phalanx.engine.preemption.cost import GROWING, NOBODY, PROVABLE, Cost, Key, beyond, stops
from phalanx.engine.preemption.victim_index import EvictionUnit, VictimIndex
from phalanx.model.groups import GroupKey

Freed = tuple[EvictionUnit, dict[int, float]]  # what a unit frees on a row, by resource


@dataclass(frozen=True, slots=True)
class Kind:
    """Units that cost and free the same, but for work: those that lose least first."""

    units: tuple[EvictionUnit, ...]
    gives: tuple[float, ...]  # of what is lacking, each
    priority: int
    pods: int
    hits: tuple[tuple[int, int], ...]  # (budget, pods that count against it), each
    gangs: tuple[tuple[GroupKey, int], ...]  # (gang, pods of it), each


@dataclass(frozen=True, slots=True)
class Taken:
    """What the units chosen so far cost in the growing parts."""

    price: Cost
    hits: dict[int, int]  # budget -> pods that count against it
    gone: dict[GroupKey, int]  # gang -> pods evicted


class RowSearch:
    """The cheapest set of units on one row. `proved`: it cannot be less in any part but work."""

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
        # Of the kinds from each on: all they free, and the most that one pod of them frees, by resource.
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
        self._look(0, need, Taken(Cost(priority=NOBODY), {}, {}))
        self.proved = self.left > 0
        self.spent = before - max(0, self.left)

    def _sorted(self, victim_index: VictimIndex, freed: Sequence[Freed], rids: tuple[int, ...]) -> list[Kind]:
        """The cheapest first; a unit that alone costs more than the best known set is left out."""
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
            kinds.append(Kind(tuple(units), what, units[0].priority, len(units[0].pods), counts, gangs))
        return kinds

    def _stops(self, gang: GroupKey, gone: int) -> int:
        return stops(gone, self._victim_index.running(gang), self._victim_index.minimum(gang))

    def _look(self, at: int, need: tuple[float, ...], taken: Taken) -> None:
        """Branch on how many units of a kind are evicted. `need`: what is still lacking."""
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
            self._look(at + 1, left, self._with(taken, kind, count))
            del self._chosen[-count:]
        self._look(at + 1, need, taken)

    def _with(self, taken: Taken, kind: Kind, count: int) -> Taken:
        """The same with so many units of a kind evicted as well."""
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
    """A bound that is quickly found: no set of these units that frees enough costs less."""
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
        # A set with a unit of a higher priority costs more already.
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
    """Pods that stop when the unit is evicted alone."""
    left = (
        stops(count, victim_index.running(gang), victim_index.minimum(gang)) - count
        for gang, count in victim_index.gangs(unit)
    )
    return len(unit.pods) + sum(left)


def _fewest(freed: Sequence[Freed], rid: int, need: float) -> int:
    """Pods that have to go at least to free so much of one resource."""
    count = 0
    for each, pods in sorted(((gives[rid] / len(unit.pods), len(unit.pods)) for unit, gives in freed), reverse=True):
        if each * pods >= need:
            return count + ceil(need / each - 1e-9)
        need -= each * pods
        count += pods
    return max(1, count)


def _all_break(victim_index: VictimIndex, freed: Sequence[Freed]) -> bool:
    """Whether each of these is of a gang that cannot do without it, and that cannot go as a whole from here."""
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
