"""A cost in one float, unit by unit, so that coverings can add up: whole numbers prove, a small fraction breaks ties.

`CostBounds` counts budgets and pods. `ExactCostBounds`, for plans that cannot be cheaper in those, also counts
gangs broken and workloads hit. A charge that is paid once per workload is divided among the units that can be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from phalanx.engine.placement.problem import Bools, Floats
from phalanx.engine.preemption.cost import Cost, cost_of
from phalanx.engine.preemption.problem import Units

TIES = 0.01
LARGEST = 1e10  # prices up to which a float keeps fractions apart
_STEP = 1e7  # more than any number of pods: keeps two whole numbers apart in one float
_NONE: frozenset[int] = frozenset()


class Stand(msgspec.Struct, frozen=True):
    """Who is decided about: units that are out, units that must stay, charges that are paid whoever goes."""

    out: frozenset[int] = _NONE
    kept: frozenset[int] = _NONE
    paid: frozenset[int] = _NONE


Terms = tuple[tuple[int, ...], tuple[int, ...]]  # budgets without room, charges paid: what prices depend on


class CostBounds:
    """Budgets: as long as a budget has room an eviction is free of violation, so prices depend on who is out."""

    slack = 1e-5

    def __init__(self, units: Units, order: Sequence[str]) -> None:
        self.units = units
        self.budgets_first = order.index("budgets") < order.index("pods")
        self.per_budget, self.per_pod = (_STEP, 1.0) if self.budgets_first else (1.0, _STEP)
        ties = np.zeros(len(units))
        for u, membership in enumerate(units.gangs):
            for gang, pods in membership:
                left = units.gang_running[gang] - pods
                ties[u] += 0 < left < units.gang_minimum[gang] <= units.gang_running[gang]
        if len(units.workload):
            workload = np.asarray(units.workload)
            size = np.bincount(workload[workload >= 0], minlength=1)
            ties += np.where(workload >= 0, 1.0 / np.maximum(size[workload.clip(min=0)], 1), 0.0)
        total = float(units.lost.sum())
        if total > 0:
            ties += units.lost / total
        self.ties: Floats = ties * (TIES / max(1.0, float(ties.sum())))  # (U,) sums up to TIES at most
        self.base: Floats = units.pods.astype(np.float64) * self.per_pod

    def terms(self, stand: Stand) -> Terms:
        units = self.units
        if not len(units.allowed):
            return (), ()
        left = units.allowed - units.hits[:, sorted(stand.out)].sum(axis=1)
        return tuple(int(b) for b in np.flatnonzero(left <= 0)), ()

    def units_now(self, terms: Terms) -> Floats:
        """(U,) price of each unit under these terms; ties apart."""
        spent = terms[0]
        if not spent:
            return self.base
        priced: Floats = self.base + self.units.hits[list(spent)].sum(axis=0) * self.per_budget
        return priced

    def decided(self, stand: Stand) -> float:
        """What is to be paid whatever else goes."""
        return self.whole(cost_of(self.units, stand.out))

    def proved(self, price: float) -> float:
        """The whole price that no eviction can be below, if it cannot be below `price`."""
        return float(np.ceil(price - TIES - self.slack))

    def whole(self, cost: Cost) -> float:
        return cost.budgets * self.per_budget + cost.pods * self.per_pod

    def blame(self, stand: Stand, touched: Iterable[int]) -> list[Stand]:
        """Cases to be told apart where the bound charged less than evicting these units costs; none here."""
        return []

    def split(self, whole: float) -> tuple[int, int]:
        """(budget violations, pods) of a bound."""
        if self.budgets_first:
            return int(whole // _STEP), int(whole % _STEP)
        return int(whole % _STEP), int(whole // _STEP)


class Charge(msgspec.Struct):
    weight: float
    units: set[int] = msgspec.field(default_factory=set)


class ExactCostBounds(CostBounds):
    """For plans that violate as few budgets and evict as few pods as `best`, which cannot be less."""

    slack = 1e-3

    def __init__(self, units: Units, order: Sequence[str], best: Cost, within: Bools) -> None:
        super().__init__(units, order)
        most = best.pods  # nor do more pods go, hence no more gangs, workloads or units
        self.most = most
        self.within = within  # (U,) may be evicted
        self.per_workload, self.per_gang = 1.0, most + 1.0
        step = (most + 1.0) ** 2
        self.per_pod, self.per_budget = (
            (step, step * (most + 1.0)) if self.budgets_first else (step * (best.budgets + 1.0), step)
        )
        self.base = units.pods.astype(np.float64) * self.per_pod
        self.gang_units: dict[int, dict[int, int]] = {}  # gang -> evictable unit -> its pods of the gang
        for u in np.flatnonzero(within).tolist():
            for gang, pods in units.gangs[u] if len(units.gangs) else ():
                self.gang_units.setdefault(gang, {})[u] = pods
        self.charges: list[Charge] = []
        self._of_unit: dict[int, list[int]] = {}
        self._make_charges()
        for charge in self.charges:
            share = self._share(charge)
            for u in charge.units:
                self.base[u] += share

    @property
    def usable(self) -> bool:
        return max(self.per_pod * (self.most + 1.0), self.per_budget) < LARGEST

    def _make_charges(self) -> None:
        found: dict[tuple[str, int], Charge] = {}
        for u in np.flatnonzero(self.within).tolist() if len(self.units.workload) else ():
            workload = self.units.workload[u]
            if workload >= 0:
                found.setdefault(("workload", workload), Charge(self.per_workload)).units.add(u)
        for gang, pods in self.gang_units.items():
            if self._surplus(gang) == 0 and not self._can_go(gang, _NONE):  # whoever touches it breaks it
                found["gang", gang] = Charge(self.per_gang, set(pods))
        same: dict[frozenset[int], Charge] = {}
        for _, charge in sorted(found.items(), key=lambda entry: entry[0]):
            alike = same.setdefault(frozenset(charge.units), charge)
            if alike is not charge:
                alike.weight += charge.weight
        self.charges = list(same.values())
        for number, charge in enumerate(self.charges):
            for u in charge.units:
                self._of_unit.setdefault(u, []).append(number)

    def _share(self, charge: Charge) -> float:
        return charge.weight / max(1, min(len(charge.units), self.most))

    def _surplus(self, gang: int) -> int:
        """Pods the gang can lose; negative: it runs below its minimum as it is, and cannot be broken."""
        return self.units.gang_running[gang] - self.units.gang_minimum[gang]

    def _can_go(self, gang: int, kept: frozenset[int]) -> bool:
        """Whether all of the gang may be evicted."""
        running = self.units.gang_running[gang]
        evictable = sum(pods for u, pods in self.gang_units[gang].items() if u not in kept)
        return evictable >= running and running <= self.most

    def _paid(self, stand: Stand) -> set[int]:
        return set(stand.paid).union(*(self._of_unit.get(u, ()) for u in stand.out))

    def terms(self, stand: Stand) -> Terms:
        return super().terms(stand)[0], tuple(sorted(self._paid(stand)))

    def units_now(self, terms: Terms) -> Floats:
        priced = super().units_now(terms)
        if terms[1]:
            priced = priced.copy()
            for number in terms[1]:
                charge = self.charges[number]
                priced[list(charge.units)] -= self._share(charge)
        return priced

    def decided(self, stand: Stand) -> float:
        cost = cost_of(self.units, stand.out)
        fixed = cost.budgets * self.per_budget + cost.pods * self.per_pod
        paid = self._paid(stand)
        fixed += sum(self.charges[number].weight for number in paid)
        return fixed + self.per_gang * sum(self._broken_for_sure(gang, stand) for gang in self._gangs(stand.out))

    def _gangs(self, units: Iterable[int]) -> set[int]:
        """Gangs of these units that only depend on who goes in how they end."""
        gangs = self.units.gangs
        touched = {gang for u in units if len(gangs) for gang, _ in gangs[u]}
        return {g for g in touched if self._surplus(g) > 0 or (self._surplus(g) == 0 and self._can_go(g, _NONE))}

    def _broken_for_sure(self, gang: int, stand: Stand) -> bool:
        gone = sum(pods for u, pods in self.gang_units[gang].items() if u in stand.out)
        if gone <= self._surplus(gang):
            return False
        others = sum(int(self.units.pods[u]) for u in stand.out) - gone
        return not self._can_go(gang, stand.kept) or others + self.units.gang_running[gang] > self.most

    def whole(self, cost: Cost) -> float:
        return super().whole(cost) + cost.gangs * self.per_gang + cost.workloads * self.per_workload

    def blame(self, stand: Stand, touched: Iterable[int]) -> list[Stand]:
        touched = sorted(set(touched) - stand.out)
        paid = self._paid(stand)
        shared = {c for u in touched for c in self._of_unit.get(u, ()) if c not in paid}
        shared = {c for c in shared if min(len(self.charges[c].units), self.most) > 1}
        if shared:
            number = max(shared, key=lambda c: (self.charges[c].weight, -c))
            others = frozenset(self.charges[number].units)
            return [
                Stand(stand.out, stand.kept | others, stand.paid),
                Stand(stand.out, stand.kept, stand.paid | {number}),
            ]
        everybody = stand.out.union(touched)
        for gang in sorted(self._gangs(everybody)):
            gone = sum(pods for u, pods in self.gang_units[gang].items() if u in everybody)
            broken = self._surplus(gang) < gone < self.units.gang_running[gang]
            undecided = [u for u in self.gang_units[gang] if u not in stand.out and u not in stand.kept]
            if broken and undecided and not self._broken_for_sure(gang, stand):
                unit = min(undecided, key=lambda u: (u not in everybody, u))
                return [
                    Stand(stand.out, stand.kept | {unit}, stand.paid),
                    Stand(stand.out | {unit}, stand.kept, stand.paid),
                ]
        return []

    def split_fine(self, whole: float, best: Cost) -> tuple[int, int]:
        """(gangs, workloads) of a bound on plans that are as good as `best` in budgets and pods."""
        rest = max(0.0, whole - super().whole(best))
        return int(rest // self.per_gang), int(rest % self.per_gang)
