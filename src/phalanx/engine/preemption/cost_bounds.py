"""Express the cost of each unit as one float that coverings can add: whole numbers for proofs, fractions for ties.

Weights combine the counts (budgets, stopped, pods, gangs, workloads) into one number, most important first. A cost that
is paid once for any number of evicted units is a charge: the remaining members of a gang that falls below its minimum,
a broken gang, an affected workload. Until a charge is decided, it is divided among the units that can be evicted, which
gives a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from phalanx.engine.placement.problem import Bools, Floats, Ints
from phalanx.engine.preemption import cost
from phalanx.engine.preemption.cost import Cost, cost_of, stops
from phalanx.engine.preemption.problem import Units

TIES = 0.01  # upper limit of the sum of all tie-breaking fractions
LARGEST = 1e11  # largest price at which a float still distinguishes the fractions
STEP = 1e7  # more than any number of pods: separates two whole numbers in one float
UNLIMITED = 1 << 30
_NONE: frozenset[int] = frozenset()


class BranchDecisions(msgspec.Struct, frozen=True):
    """Decisions of a search branch.

    out: evicted units. kept: units that must not be evicted. paid: charges that are paid in any case. whole: charges of
    gangs that must not fall below their minimum.
    """

    out: frozenset[int] = _NONE
    kept: frozenset[int] = _NONE
    paid: frozenset[int] = _NONE
    whole: frozenset[int] = _NONE


Terms = tuple[tuple[int, ...], tuple[int, ...]]  # exhausted budgets and paid charges, on which prices depend


class Charge(msgspec.Struct):
    """A cost that is paid once. `units`: unit -> its pods of the gang, or 1 for a workload."""

    weight: float
    units: dict[int, int]
    gang: int = -1  # gang whose members stop; -1: the charge is for an affected workload or a broken gang
    surplus: int = 0  # pods that the gang can lose before the charge is due


def coarse_weights() -> dict[str, float]:
    """Return the weights of the first two counts, which may be of any size."""
    first, second, *_ = cost.counts_in_order()
    return {first: STEP, second: 1.0}


def fine_weights(units: Units, best: Cost, within: Bools) -> dict[str, float]:
    """Return the weights of all counts, for plans that equal `best` in the first two counts; {} if they are too large.

    The first two counts are proved minimal, so a better plan is no worse in the third. The number of affected gangs and
    workloads is limited by their total number and by the number of evicted pods.
    """
    inside = np.flatnonzero(within).tolist()
    gangs = {gang for u in inside if len(units.gangs) for gang, _ in units.gangs[u]}
    workloads = {w for u in inside if len(units.workload) and (w := units.workload[u]) >= 0}
    most = {"gangs": min(best.pods, len(gangs)), "workloads": min(best.pods, len(workloads))}
    weights: dict[str, float] = {}
    weight = 1.0
    for name in reversed([part for part in cost.provable() if part != "priority"]):
        weights[name] = weight
        weight *= most[name] + 1.0 if name in most else getattr(best, name) + 1.0
    return weights if weight < LARGEST else {}


class CostBounds:
    """Price units. An eviction within a budget's allowed disruptions is free, so prices depend on earlier decisions."""

    slack = 1e-3

    def __init__(self, units: Units, weights: Mapping[str, float], within: Bools, most: int = UNLIMITED) -> None:
        """Prepare the charges. within: (U,) units that may be evicted. most: upper limit of evicted pods in a plan."""
        self.units = units
        self.weights = weights
        self.within = within
        self.most = most
        self.charges: list[Charge] = []
        self._gangs: dict[int, dict[int, int]] = {}  # gang -> evictable unit -> its pods of the gang
        for u in np.flatnonzero(within).tolist() if len(units.gangs) else ():
            for gang, pods in units.gangs[u]:
                self._gangs.setdefault(gang, {})[u] = pods
        self._make_charges()
        self._of_unit: dict[int, list[int]] = {}
        for number, charge in enumerate(self.charges):
            for u in charge.units:
                self._of_unit.setdefault(u, []).append(number)
        self._index()
        self.ties: Floats = _ties(units)
        self.base: Floats = units.pods.astype(np.float64) * (self._weight("pods") + self._weight("stopped"))
        for charge in self.charges:
            if charge.gang >= 0:
                for u, pods in charge.units.items():
                    self.base[u] -= pods * self._weight("stopped")

    def _weight(self, name: str) -> float:
        return self.weights.get(name, 0.0)

    # ---- charges

    def _make_charges(self) -> None:
        once: dict[tuple[int, ...], Charge] = {}  # by units: workloads, and gangs that any eviction breaks
        if self._weight("workloads"):
            hit: dict[int, dict[int, int]] = {}
            for u in np.flatnonzero(self.within).tolist() if len(self.units.workload) else ():
                if self.units.workload[u] >= 0:
                    hit.setdefault(self.units.workload[u], {})[u] = 1
            for _, members in sorted(hit.items()):
                once[tuple(members)] = Charge(self._weight("workloads"), members)
        for gang, members in sorted(self._gangs.items()):
            surplus, running, evictable = self._surplus(gang), self.units.gang_running[gang], sum(members.values())
            if surplus < 0 or evictable <= surplus or (len(members) == 1 and evictable == running):
                continue  # it cannot break
            if self._weight("stopped"):
                spare = surplus if min(members.values()) <= surplus else 0  # 0: any of these units breaks it
                self.charges.append(Charge(running * self._weight("stopped"), members, gang, spare))
            if self._weight("gangs") and surplus == 0 and not self._can_go(gang, _NONE):  # any pod evicted breaks it
                alike = once.setdefault(tuple(members), Charge(0.0, dict.fromkeys(members, 1)))
                alike.weight += self._weight("gangs")
        self.charges += once.values()

    def _index(self) -> None:
        """Store the charges as arrays, one entry per charge and unit."""
        entries = [(c, u, n) for c, charge in enumerate(self.charges) for u, n in charge.units.items()]
        table: Ints = np.array(entries, dtype=np.int64).reshape(-1, 3)
        self._charge, self._unit, self._amount = table[:, 0], table[:, 1], table[:, 2].astype(np.float64)
        self._charge_weight: Floats = np.array([charge.weight for charge in self.charges])
        # A gang with surplus pods: each evicted pod costs only itself until the surplus is used up.
        self._by_pod: Bools = np.array([charge.surplus > 0 for charge in self.charges], dtype=bool)

    def _shares(self, terms: Terms, inside: Bools) -> Floats:
        """Return (U,) the share of undecided charges per unit. inside: (U,) units whose eviction can help."""
        count = len(self.units)
        if not len(self._charge):
            return np.zeros(count)
        useful = self._amount * inside[self._unit]
        total = np.bincount(self._charge, weights=useful, minlength=len(self.charges)).clip(1.0, self.most)
        per_amount = np.where(self._by_pod, self._weight("stopped"), self._charge_weight / total)
        per_amount[list(terms[1])] = 0.0
        shared = np.bincount(self._unit, weights=useful * per_amount[self._charge], minlength=count)
        return shared.astype(np.float64)

    def _surplus(self, gang: int) -> int:
        """Return the pods that the gang can lose; negative: it already runs below its minimum and cannot break."""
        return self.units.gang_running[gang] - self.units.gang_minimum[gang]

    def _can_go(self, gang: int, kept: frozenset[int]) -> bool:
        """Return True if the whole gang may be evicted."""
        running = self.units.gang_running[gang]
        evictable = sum(pods for u, pods in self._gangs[gang].items() if u not in kept)
        return evictable >= running and running <= self.most

    def _gone(self, charge: Charge, out: Iterable[int]) -> int:
        return sum(charge.units.get(u, 0) for u in out)

    def _paid(self, stand: BranchDecisions) -> set[int]:
        touched = {number for u in stand.out for number in self._of_unit.get(u, ())}
        due = (n for n in touched if self._gone(self.charges[n], stand.out) > self.charges[n].surplus)
        return set(stand.paid).union(due)

    # ---- prices

    def terms(self, stand: BranchDecisions) -> Terms:
        units = self.units
        spent: tuple[int, ...] = ()
        if len(units.allowed):
            left = units.allowed - units.hits[:, sorted(stand.out)].sum(axis=1)
            spent = tuple(int(b) for b in np.flatnonzero(left <= 0))
        return spent, tuple(sorted(self._paid(stand)))

    def units_now(self, terms: Terms, inside: Bools) -> Floats:
        """Return (U,) the price of each unit without tie-breaks. inside: (U,) units whose eviction can help."""
        priced: Floats = self.base + self._shares(terms, inside)
        if terms[0]:
            priced += self.units.hits[list(terms[0])].sum(axis=0) * self._weight("budgets")
        return priced

    def decided(self, stand: BranchDecisions) -> float:
        """Return the cost that the decisions so far cause in any case."""
        now = cost_of(self.units, stand.out)
        fixed: float = sum(getattr(now, name) * self._weight(name) for name in cost.COUNTS)
        for number in self._paid(stand):
            charge = self.charges[number]
            fixed += charge.weight
            if charge.gang >= 0:  # subtract the pods that `now` already counts
                pods, running = self._gone(charge, stand.out), self.units.gang_running[charge.gang]
                fixed -= stops(pods, running, running - charge.surplus) * self._weight("stopped")
        if self._weight("gangs"):
            fixed += self._weight("gangs") * sum(self._surely_broken(g, stand) for g in self._open_gangs(stand.out))
        return fixed

    def proved(self, price: float) -> float:
        """Return the lowest whole price that is possible if `price` is a lower bound."""
        return float(np.ceil(price - TIES - self.slack))

    def whole(self, priced: Cost) -> float:
        return float(sum(getattr(priced, name) * weight for name, weight in self.weights.items()))

    def split(self, whole: float) -> dict[str, int]:
        """Split a weighted bound into its counts."""
        found: dict[str, int] = {}
        for name, weight in sorted(self.weights.items(), key=lambda entry: -entry[1]):
            found[name], whole = int(whole // weight), whole % weight
        return found

    # ---- branching

    def settled(self, stand: BranchDecisions) -> BranchDecisions:
        """Also keep the units whose eviction would break a gang that must not fall below its minimum."""
        kept = set(stand.kept)
        for number in stand.whole:
            charge = self.charges[number]
            left = charge.surplus - self._gone(charge, stand.out)
            kept.update(u for u, pods in charge.units.items() if pods > left and u not in stand.out)
        return (
            BranchDecisions(stand.out, frozenset(kept), stand.paid, stand.whole)
            if len(kept) > len(stand.kept)
            else stand
        )

    def responsible(self, stand: BranchDecisions, touched: Iterable[int]) -> list[BranchDecisions]:
        """Return the branches to search if the bound is below the real cost of these units."""
        touched = sorted(set(touched) - stand.out)
        all_pods = stand.out.union(touched)
        paid = self._paid(stand)
        open_ = {c for u in touched for c in self._of_unit.get(u, ()) if c not in paid}
        due = [c for c in open_ if self._gone(self.charges[c], all_pods) > self.charges[c].surplus]
        due = [c for c in due if self.charges[c].surplus or len(self.charges[c].units) > 1]
        if due:
            return self._decide(max(due, key=lambda c: (self.charges[c].weight, -c)), stand, all_pods)
        for gang in sorted(self._open_gangs(all_pods)) if self._weight("gangs") else ():
            gone = sum(pods for u, pods in self._gangs[gang].items() if u in all_pods)
            broken = self._surplus(gang) < gone < self.units.gang_running[gang]
            undecided = [u for u in self._gangs[gang] if u not in stand.out and u not in stand.kept]
            if broken and undecided and not self._surely_broken(gang, stand):
                unit = min(undecided, key=lambda u: (u not in all_pods, u))
                return [self._keep(stand, {unit}), self._evict(stand, unit)]
        return []

    def _decide(self, number: int, stand: BranchDecisions, all_pods: frozenset[int]) -> list[BranchDecisions]:
        """Branch on a charge: it is paid, or too few of its units are evicted for it to be due."""
        charge = self.charges[number]
        pay = BranchDecisions(stand.out, stand.kept, stand.paid | {number}, stand.whole)
        if charge.surplus == 0:
            return [self._keep(stand, charge.units), pay]
        whole = BranchDecisions(stand.out, stand.kept, stand.paid, stand.whole | {number})
        unit = min(u for u in charge.units if u in all_pods and u not in stand.out)
        cases = [self._keep(whole, {unit}), self._evict(whole, unit)]
        return cases if number in stand.whole else [*cases, pay]

    def _keep(self, stand: BranchDecisions, units: Iterable[int]) -> BranchDecisions:
        return self.settled(BranchDecisions(stand.out, stand.kept.union(units), stand.paid, stand.whole))

    def _evict(self, stand: BranchDecisions, unit: int) -> BranchDecisions:
        return self.settled(BranchDecisions(stand.out | {unit}, stand.kept, stand.paid, stand.whole))

    def _open_gangs(self, units: Iterable[int]) -> set[int]:
        """Return the gangs of these units that break or not depending on which pods are evicted."""
        gangs = self.units.gangs
        touched = {gang for u in units if len(gangs) for gang, _ in gangs[u]}
        return {g for g in touched if self._surplus(g) > 0 or (self._surplus(g) == 0 and self._can_go(g, _NONE))}

    def _surely_broken(self, gang: int, stand: BranchDecisions) -> bool:
        gone = sum(pods for u, pods in self._gangs[gang].items() if u in stand.out)
        if gone <= self._surplus(gang):
            return False
        others = sum(int(self.units.pods[u]) for u in stand.out) - gone
        return not self._can_go(gang, stand.kept) or others + self.units.gang_running[gang] > self.most


def _ties(units: Units) -> Floats:
    """Return (U,) tie-breaking fractions for gangs, workloads, kind and lost work; their sum is at most TIES."""
    ties = np.zeros(len(units))
    for u, membership in enumerate(units.gangs):
        for gang, pods in membership:
            left = units.gang_running[gang] - pods
            ties[u] += 0 < left < units.gang_minimum[gang] <= units.gang_running[gang]
    if len(units.workload):
        workload = np.asarray(units.workload)
        size = np.bincount(workload[workload >= 0], minlength=1)
        ties += np.where(workload >= 0, 1.0 / np.maximum(size[workload.clip(min=0)], 1), 0.0)
    if len(units.kind):
        ties += np.asarray(units.kind, dtype=np.float64) * 2.0
    total = float(units.lost.sum())
    if total > 0:
        ties += units.lost / total
    return ties * (TIES / max(1.0, float(ties.sum())))
