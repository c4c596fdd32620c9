"""The way in: a PreemptionProblem becomes a Plan, a proof that there is none, or an admission that the budget ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from phalanx.engine.placement.messages import amount_word
from phalanx.engine.placement.outcome import SearchOutcome, SearchVerdict
from phalanx.engine.placement.problem import leaves
from phalanx.engine.preemption.branch_and_bound import BranchAndBound, SearchBudget
from phalanx.engine.preemption.cost import ORDER, Cost, cost_of
from phalanx.engine.preemption.cost_bounds import CostBounds, ExactCostBounds, Stand
from phalanx.engine.preemption.covering import Contest
from phalanx.engine.preemption.domains import Choices, Domains, FreedSlot
from phalanx.engine.preemption.feasibility import UNITS_PER_STEP, Feasibility
from phalanx.engine.preemption.local_search import improve_victims
from phalanx.engine.preemption.node_options import NodeOptions, Situation, TooManyWays
from phalanx.engine.preemption.problem import PreemptionProblem, Units
from phalanx.engine.preemption.result import GaveUp, Hopeless, Plan, Planned, Victim
from phalanx.engine.slices import worked

NOBODY_LOWER = "No preemption victims found for incoming preemptor"
NOT_ENOUGH = "evicting everything of lower priority would not make room"
MAX_CHOICES = 4_000  # steps of the enumeration of domains
INFINITE = float("inf")


class Solved(msgspec.Struct):
    evicted: frozenset[int]
    value: float  # whole price
    bound: float  # no plan within the threshold is cheaper
    prices: CostBounds


def plan(problem: PreemptionProblem) -> Planned:
    return Planner(problem).run()


class _Best:
    """The cheapest set of victims found so far."""

    def __init__(self, units: Units, prices: CostBounds, order: Sequence[str]) -> None:
        self._units, self._prices, self._order = units, prices, order
        self.evicted: frozenset[int] | None = None
        self.value = INFINITE
        self._cost = Cost()

    def offer(self, evicted: frozenset[int]) -> float:
        """Answers what the best costs now."""
        cost = cost_of(self._units, evicted)
        value = self._prices.whole(cost)
        if self.evicted is None or value < self.value or cost.key(self._order) < self._cost.key(self._order):
            self.evicted, self.value, self._cost = evicted, value, cost
        return self.value


class _Seating:
    """What has to go so that members can sit somewhere: a price for each choice of domains, and the search in one."""

    def __init__(
        self, problem: PreemptionProblem, domains: Domains, freeing: NodeOptions, branching: BranchAndBound
    ) -> None:
        self._domains, self._freeing, self.branching = domains, freeing, branching
        self._members = sum(leaf.need for leaf in leaves(problem.placement.root))
        self._scopes: dict[int, Situation] = {}  # by the root's own node set
        self._clusters: dict[tuple[FreedSlot, ...], list[tuple[object, Contest]]] = {}
        self.too_large = False  # prices are too low: something could not be counted

    def clusters(self, assignment: tuple[FreedSlot, ...]) -> list[tuple[object, Contest]]:
        if assignment not in self._clusters:
            self._clusters[assignment] = [
                (self._name(part), cluster) for part, cluster in self._domains.clusters(assignment)
            ]
        return self._clusters[assignment]

    def _name(self, assignment: tuple[FreedSlot, ...]) -> object:
        """Equal leaves are the same to a covering."""
        return tuple(sorted((self._domains.kind(self._domains.leaves[s.leaf])[:2], s.area) for s in assignment))

    def price(self, assignment: tuple[FreedSlot, ...]) -> float | None:
        """No less than this has to go; None: it does not fit, whoever goes."""
        total = 0.0
        area = self._domains.top(assignment[0].area)
        if area not in self._scopes:
            scope = self._freeing.scope(area, self._domains.areas[area], self._members)
            self._scopes[area] = Situation(self._freeing, scope, Stand())
        for name, cluster in self.clusters(assignment):
            try:
                found = self.branching.cover(name, cluster, self._scopes[area])
            except TooManyWays:
                self.too_large = True
                continue
            if found is None:
                return None
            total += found.price
        return total

    def look(self, assignment: tuple[FreedSlot, ...], effort: SearchBudget, best: _Best) -> None:
        """Search these domains for something cheaper."""
        self.branching.effort = effort
        tasks = self.clusters(assignment)
        nodes = np.unique(np.concatenate([cluster.nodes for _, cluster in tasks]))
        claims = sum(n for _, cluster in tasks for _, n in cluster.claims)
        exact = self._freeing.scope(("choice", nodes.tobytes()), nodes, claims)
        self.branching.run(tasks, exact, best.value, best.offer)


class Planner:
    def __init__(self, problem: PreemptionProblem) -> None:
        self.problem = problem
        self.order = problem.order or ORDER
        worked(len(problem.units) // UNITS_PER_STEP)
        self.fitting = Feasibility(problem)
        self.prices = CostBounds(problem.units, self.order)
        self.domains = Domains(problem.placement)
        self.used = 0
        self._solved: dict[int, Solved | None] = {}

    def run(self) -> Planned:
        units = self.problem.units
        free = self.fitting.outcome(())
        if free.placed:
            return Plan(self.problem, (), free, Cost(), Cost(), tuple(self.order), free.expansions)
        if not len(units):
            return Hopeless(NOBODY_LOWER, free.expansions, free)
        levels = [int(p) for p in np.unique(units.priority)]
        everything = self._at(levels[-1])
        if everything.verdict is SearchVerdict.IMPOSSIBLE:
            return Hopeless(
                "evicting everything of lower priority would not make room", everything.expansions, everything
            )
        low = 0 if not everything.placed else self._lowest(levels, lambda k: self._at(levels[k]).placed)
        at = self._threshold(levels, low)
        if at is None:
            return GaveUp(self.used)
        level, solved = at
        return self._finish(levels, low, level, solved)

    def _at(self, level: int) -> SearchOutcome:
        return self.fitting.outcome([int(u) for u in np.flatnonzero(self.problem.units.priority <= level)])

    @staticmethod
    def _lowest(levels: list[int], good: Callable[[int], bool]) -> int:
        """Position of the first level that is good; levels only get better, and the last one is."""
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high) // 2
            if good(middle):
                high = middle
            else:
                low = middle + 1
        return low

    # ---- which priorities to touch ------------------------------------------------------------------------

    def _threshold(self, levels: list[int], low: int) -> tuple[int, Solved] | None:
        """The lowest level at which what matters more than priority is as cheap as it gets."""
        before = self._before()
        first = self.solve(levels[low])
        if first is None:
            low, first = next(((k, s) for k in range(low + 1, len(levels)) if (s := self.solve(levels[k]))), (-1, None))
            if first is None:
                return None
        cheap = self._part(first, before)
        if low == len(levels) - 1 or not any(cheap) or not {"budgets", "pods"} & set(before):
            return low, first
        last = self.solve(levels[-1])
        if last is None or self._part(last, before) >= cheap:
            return low, first
        least = self._part(last, before)

        def good(k: int) -> bool:
            found = self.solve(levels[k])
            return found is not None and self._part(found, before) <= least

        at = self._lowest(levels, lambda k: k >= low and good(k))
        found = self.solve(levels[at])
        return (at, found) if found is not None else (low, first)

    def _part(self, solved: Solved, names: tuple[str, ...]) -> tuple[float, ...]:
        cost = cost_of(self.problem.units, solved.evicted)
        return tuple(getattr(cost, name) for name in names if name in ("budgets", "pods"))

    # ---- whom to evict within a threshold ------------------------------------------------------------------

    def solve(self, threshold: int) -> Solved | None:
        """In budgets and pods."""
        if threshold not in self._solved:
            self._solved[threshold] = self._search(self.prices, threshold, None)
        return self._solved[threshold]

    def refine(self, threshold: int, solved: Solved) -> Solved | None:
        """The same in gangs broken and workloads hit, where budgets and pods cannot be less; None: not to be had."""
        units = self.problem.units
        best = cost_of(units, solved.evicted)
        if solved.bound < solved.value or not (best.gangs or best.workloads):
            return None
        fine = ExactCostBounds(units, self.order, best, units.priority <= threshold)
        return self._search(fine, threshold, solved.evicted) if fine.usable else None

    def _search(self, prices: CostBounds, threshold: int, known: frozenset[int] | None) -> Solved | None:
        worked(len(self.problem.units) // UNITS_PER_STEP)
        freeing = NodeOptions(self.problem, prices, threshold)
        branching = BranchAndBound(freeing, SearchBudget(self.problem.budget))
        seating = _Seating(self.problem, self.domains, freeing, branching)
        best = _Best(self.problem.units, prices, self.order)
        if known is not None:
            best.offer(known)
        bound = self._choose(seating, best, prices)
        if best.evicted is None:
            fallback = self._fallback(freeing, branching)
            if fallback is None:
                return None
            best.offer(fallback)
        assert best.evicted is not None
        value = best.value
        bound = 0.0 if seating.too_large or freeing.truncated else min(bound, value)
        return Solved(best.evicted, value, max(0.0, min(value, prices.proved(bound))), prices)

    def _choose(self, seating: _Seating, best: _Best, prices: CostBounds) -> float:
        """Offers what is found to `best`; answers what no choice that was not looked at to its end undercuts."""
        bound = INFINITE
        effort = seating.branching.effort
        choices = Choices(self.domains, seating.price, MAX_CHOICES)
        for choice in choices.run(self.problem.placement.root):
            if prices.proved(choice.bound) >= best.value:
                break
            if effort.over:
                bound = min(bound, choice.bound)
                break
            part = SearchBudget(max(effort.used + 1, min(effort.limit, effort.used + effort.limit // 3)), effort.used)
            seating.look(choice.assignment, part, best)
            effort.used = part.used
            if part.truncated:
                bound = min(bound, choice.bound)
        self.used += effort.used
        return min(bound, choices.floor) if choices.cut else bound

    def _fallback(self, freeing: NodeOptions, branching: BranchAndBound) -> frozenset[int] | None:
        """Place on everything evictable gone, then put back whom that placement does not need."""
        units = self.problem.units
        everybody = frozenset(int(u) for u in np.flatnonzero(units.priority <= freeing.threshold))
        outcome = self.fitting.outcome(everybody)
        if not outcome.placed:
            return None
        placed: dict[int, list[tuple[int, int]]] = {}
        for share in outcome.shares:
            for node, count in zip(share.nodes, share.counts, strict=True):
                placed.setdefault(int(node), []).append((share.shape, int(count)))
        used = np.zeros(self.problem.placement.node_count, dtype=bool)
        used[list(placed)] = True
        near = {int(u) for u in units.part_unit[used[units.part_node]]}
        return branching.spare(everybody & near, placed)

    # ---- the plan ------------------------------------------------------------------------------------------

    def _finish(self, levels: list[int], low: int, level: int, solved: Solved) -> Planned:
        units = self.problem.units
        fine = self.refine(levels[level], solved)
        evicted = self.fitting.spare((fine or solved).evicted)
        evicted = improve_victims(self.problem, self.fitting, self.order, evicted)
        outcome = self.fitting.outcome(evicted)
        if not outcome.placed:
            return GaveUp(self.used)
        cost = cost_of(units, evicted)
        lower = self._lower(levels, low, level, solved, cost)
        proved = self._attained(lower, cost)
        if fine is not None and {"budgets", "priority", "pods"} <= set(proved):
            lower = self._fine(lower, fine, cost)
            proved = self._attained(lower, cost)
        members: dict[int, int] = {}  # per node
        for share in outcome.shares:
            for node, count in zip(share.nodes, share.counts, strict=True):
                members[int(node)] = members.get(int(node), 0) + int(count)
        victims = tuple(
            Victim(u, units.names[u], int(units.pods[u]), int(units.priority[u]), self._why(u, members))
            for u in sorted(evicted)
        )
        return Plan(self.problem, victims, outcome, cost, lower, proved, self.used + self.fitting.calls)

    def _lower(self, levels: list[int], low: int, level: int, solved: Solved, cost: Cost) -> Cost:
        """A lexicographic lower bound in budgets, priority and pods."""
        before = [name for name in self._before() if name in ("budgets", "pods")]
        top = self._solved.get(levels[-1]) or solved
        least = self._bound(top, cost)
        first = all(getattr(least, name) == getattr(cost, name) for name in before)
        if level == low:
            second = level == 0 or self._at(levels[low - 1]).verdict is SearchVerdict.IMPOSSIBLE
        else:
            under = self._solved.get(levels[level - 1])
            known = self._bound(under, cost) if under is not None else Cost()
            second = any(getattr(known, name) > getattr(cost, name) for name in before)
        here = self._bound(solved, cost)
        if not first:
            return Cost(**{name: min(getattr(least, name), getattr(cost, name)) for name in before})
        if not second:
            return Cost(priority=levels[0], **{name: getattr(cost, name) for name in before})
        return Cost(min(here.budgets, cost.budgets), cost.priority, min(here.pods, cost.pods))

    def _fine(self, lower: Cost, fine: Solved, cost: Cost) -> Cost:
        """The bound in gangs and workloads of plans that are as good in everything before."""
        assert isinstance(fine.prices, ExactCostBounds)
        gangs, workloads = fine.prices.split_fine(fine.bound, cost)
        gangs = min(gangs, cost.gangs)
        return replace(lower, gangs=gangs, workloads=min(workloads, cost.workloads) if gangs == cost.gangs else 0)

    def _attained(self, lower: Cost, cost: Cost) -> tuple[str, ...]:
        """The parts, from the first on, in which the cost is no more than the bound."""
        proved: list[str] = []
        for name in self.order:
            if name == "work" or getattr(lower, name) != getattr(cost, name):
                break
            proved.append(name)
        return tuple(proved)

    def _before(self) -> tuple[str, ...]:
        return self.order[: self.order.index("priority")] if "priority" in self.order else self.order

    def _bound(self, solved: Solved, cost: Cost) -> Cost:
        """What no set of units within the solved threshold undercuts. Of the two parts only the first that differs
        from the cost says anything."""
        budgets, pods = self.prices.split(solved.bound)
        if self.order.index("budgets") < self.order.index("pods"):
            return Cost(budgets, pods=pods if budgets == cost.budgets else 0)
        return Cost(budgets if pods == cost.pods else 0, pods=pods)

    def _why(self, unit: int, members: dict[int, int]) -> str:
        """Where its room is needed."""
        units, placement = self.problem.units, self.problem.placement
        words = []
        for part in self.fitting.parts_of(unit):
            node = int(units.part_node[part])
            if node in members:
                name = self.problem.node_names[node] if self.problem.node_names else f"node {node}"
                what = ", ".join(
                    f"{amount_word(placement.resources[r], units.part_request[r, part])} {placement.resources[r]}"
                    for r in range(len(placement.resources))
                    if units.part_request[r, part] and placement.resources[r] != "pods"
                )
                words.append(f"{name} ({what or 'its place'}) for {members[node]} of the group")
        if not words:
            return "the group fits nowhere while it runs"
        more = f" and {len(words) - 3} more nodes" if len(words) > 3 else ""
        return "its room is needed on " + "; ".join(words[:3]) + more
