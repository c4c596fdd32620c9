"""Plan preemption for a group: return a Plan, a proof that none exists, or SearchBudgetExhausted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np

from phalanx.engine.placement.outcome import SearchOutcome, SearchVerdict, amount_word
from phalanx.engine.placement.problem import leaves
from phalanx.engine.preemption import cost as costs
from phalanx.engine.preemption.branch_and_bound import BranchAndBound, SearchBudget
from phalanx.engine.preemption.cost import COUNTS, POD, Cost, cost_of, proved_parts
from phalanx.engine.preemption.cost_bounds import BranchDecisions, CostBounds, coarse_weights, fine_weights
from phalanx.engine.preemption.covering import Contest
from phalanx.engine.preemption.domains import Choices, Domains, FreedSlot
from phalanx.engine.preemption.feasibility import UNITS_PER_STEP, Feasibility
from phalanx.engine.preemption.node_options import BranchState, NodeOptions, TooManySubsets
from phalanx.engine.preemption.problem import PreemptionProblem, Units
from phalanx.engine.preemption.result import Hopeless, Plan, Planned, SearchBudgetExhausted, Victim
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


NO_LOWER_PRIORITY = "No preemption victims found for incoming preemptor"
MAX_CHOICES = 4_000  # steps of the enumeration of topology domains
INFINITE = float("inf")


class Solved(msgspec.Struct):
    evicted: frozenset[int]
    value: float  # weighted cost of the victim set
    bound: float  # lower bound of any plan within the threshold
    prices: CostBounds


def plan(problem: PreemptionProblem) -> Planned:
    return Planner(problem).run()


class _Best:
    """Keep the cheapest set of victims found so far."""

    def __init__(self, units: Units, prices: CostBounds) -> None:
        self._units, self._prices = units, prices
        self.evicted: frozenset[int] | None = None
        self.value = INFINITE
        self._cost = Cost()

    def offer(self, evicted: frozenset[int]) -> float:
        """Keep the set if it is cheaper; return the cost of the best set."""
        cost = cost_of(self._units, evicted)
        value = self._prices.whole(cost)
        if self.evicted is None or value < self.value or cost.key() < self._cost.key():
            self.evicted, self.value, self._cost = evicted, value, cost
        return self.value


class _AssignmentSearch:
    """Bound the eviction cost of each assignment of groups to domains, and search one assignment for victims."""

    def __init__(
        self, problem: PreemptionProblem, domains: Domains, freeing: NodeOptions, branching: BranchAndBound
    ) -> None:
        self._domains, self._freeing, self.branching = domains, freeing, branching
        self._members = sum(leaf.need for leaf in leaves(problem.placement.root))
        self._scopes: dict[int, BranchState] = {}  # by the node set of the root group
        self._clusters: dict[tuple[FreedSlot, ...], list[tuple[object, Contest]]] = {}
        self.too_large = False  # a cover was too large to price, so there is no lower bound

    def clusters(self, assignment: tuple[FreedSlot, ...]) -> list[tuple[object, Contest]]:
        if assignment not in self._clusters:
            self._clusters[assignment] = [
                (self._name(part), cluster) for part, cluster in self._domains.clusters(assignment)
            ]
        return self._clusters[assignment]

    def _name(self, assignment: tuple[FreedSlot, ...]) -> object:
        """Return a cache key that is the same for interchangeable leaves."""
        return tuple(sorted((self._domains.kind(self._domains.leaves[s.leaf])[:2], s.area) for s in assignment))

    def price(self, assignment: tuple[FreedSlot, ...]) -> float | None:
        """Return a lower bound of the eviction cost; None if no victim set makes the group feasible here."""
        total = 0.0
        area = self._domains.top(assignment[0].area)
        if area not in self._scopes:
            scope = self._freeing.scope(area, self._domains.areas[area], self._members)
            self._scopes[area] = BranchState(self._freeing, scope, BranchDecisions())
        for name, cluster in self.clusters(assignment):
            try:
                found = self.branching.cover(name, cluster, self._scopes[area])
            except TooManySubsets:
                self.too_large = True
                continue
            if found is None:
                return None
            total += found.price
        return total

    def search(self, assignment: tuple[FreedSlot, ...], effort: SearchBudget, best: _Best) -> None:
        """Search this assignment of domains for a cheaper victim set."""
        self.branching.effort = effort
        tasks = self.clusters(assignment)
        nodes = np.unique(np.concatenate([cluster.nodes for _, cluster in tasks]))
        claims = sum(n for _, cluster in tasks for _, n in cluster.claims)
        exact = self._freeing.scope(("choice", nodes.tobytes()), nodes, claims)
        self.branching.run(tasks, exact, best.value, best.offer)


class Planner:
    def __init__(self, problem: PreemptionProblem) -> None:
        self.problem = problem
        worked(len(problem.units) // UNITS_PER_STEP)
        self.fitting = Feasibility(problem)
        self.coarse = coarse_weights()
        self.domains = Domains(problem.placement)
        self.used = 0
        self._solved: dict[int, Solved | None] = {}

    def run(self) -> Planned:
        """Return the cheapest set of victims, or why there is none."""
        units = self.problem.units
        free = self.fitting.outcome(())
        if free.placed:
            return Plan(self.problem, (), free, Cost(), Cost(), costs.provable(), free.expansions)
        if not len(units):
            return Hopeless(NO_LOWER_PRIORITY, free.expansions, free)
        levels = [int(p) for p in np.unique(units.priority)]
        everything = self._at(levels[-1])
        if everything.verdict is SearchVerdict.IMPOSSIBLE:
            return Hopeless(
                "evicting everything of lower priority would not make room", everything.expansions, everything
            )
        low = 0 if not everything.placed else self._lowest(levels, lambda k: self._at(levels[k]).placed)
        at = self._threshold(levels, low)
        if at is None:
            return SearchBudgetExhausted(self.used)
        level, solved = at
        return self._finish(levels, low, level, solved)

    def _at(self, level: int) -> SearchOutcome:
        return self.fitting.outcome([int(u) for u in np.flatnonzero(self.problem.units.priority <= level)])

    @staticmethod
    def _lowest(levels: list[int], good: Callable[[int], bool]) -> int:
        """Return the position of the first good level by bisection; all levels above a good level are good."""
        low, high = 0, len(levels) - 1
        while low < high:
            middle = (low + high) // 2
            if good(middle):
                high = middle
            else:
                low = middle + 1
        return low

    # ---- highest priority of victims -----------------------------------------------------------------------

    def _threshold(self, levels: list[int], low: int) -> tuple[int, Solved] | None:
        """Return the lowest priority level at which the parts of the cost before priority are minimal."""
        before = self._before()
        first = self.solve(levels[low])
        if first is None:
            low, first = next(((k, s) for k in range(low + 1, len(levels)) if (s := self.solve(levels[k]))), (-1, None))
            if first is None:
                return None
        cheap = self._part(first, before)
        if low == len(levels) - 1 or not any(cheap) or not before:
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
        return tuple(getattr(cost, name) for name in names)

    # ---- victims within a priority threshold ---------------------------------------------------------------

    def solve(self, threshold: int) -> Solved | None:
        """Find the cheapest victims up to this priority, in the first two counts of the cost."""
        if threshold not in self._solved:
            prices = CostBounds(self.problem.units, self.coarse, self.problem.units.priority <= threshold)
            self._solved[threshold] = self._search(prices, threshold, None)
        return self._solved[threshold]

    def refine(self, threshold: int, solved: Solved) -> Solved | None:
        """Solve again in all counts once the first two are proved minimal; None: not needed, or not possible."""
        units = self.problem.units
        best = cost_of(units, solved.evicted)
        if solved.bound < solved.value or not any(getattr(best, name) for name in self._open_counts(threshold)):
            return None
        within = units.priority <= threshold
        weights = fine_weights(units, best, within)
        return (
            self._search(CostBounds(units, weights, within, best.pods), threshold, solved.evicted) if weights else None
        )

    def _open_counts(self, threshold: int) -> list[str]:
        """Return the counts that the first search does not prove."""
        left = [part for part in costs.provable() if part != "priority" and part not in self.coarse]
        if not self._breakable(threshold) and {"stopped", "pods"} & set(self.coarse):
            left = [part for part in left if part not in ("stopped", "pods")]  # equal if no gang can break
        return left

    def _breakable(self, threshold: int) -> bool:
        """Return True if evictions can leave a gang running below its minimum."""
        units = self.problem.units
        within = np.flatnonzero(units.priority <= threshold).tolist() if len(units.gangs) else ()
        gangs = {gang for u in within for gang, _ in units.gangs[u]}
        return any(0 < units.gang_minimum[gang] <= units.gang_running[gang] for gang in gangs)

    def _search(self, prices: CostBounds, threshold: int, known: frozenset[int] | None) -> Solved | None:
        worked(len(self.problem.units) // UNITS_PER_STEP)
        freeing = NodeOptions(self.problem, prices, threshold)
        branching = BranchAndBound(freeing, SearchBudget(self.problem.budget))
        assignment_search = _AssignmentSearch(self.problem, self.domains, freeing, branching)
        best = _Best(self.problem.units, prices)
        if known is not None:
            best.offer(known)
        bound = self._choose(assignment_search, best, prices)
        if best.evicted is None:
            fallback = self._fallback(freeing, branching)
            if fallback is None:
                return None
            best.offer(fallback)
        assert best.evicted is not None
        value = best.value
        bound = 0.0 if assignment_search.too_large or freeing.truncated else min(bound, value)
        return Solved(best.evicted, value, max(0.0, min(value, prices.proved(bound))), prices)

    def _choose(self, assignment_search: _AssignmentSearch, best: _Best, prices: CostBounds) -> float:
        """Offer victim sets to `best`; return a lower bound over choices that were not searched completely."""
        bound = INFINITE
        effort = assignment_search.branching.effort
        choices = Choices(self.domains, assignment_search.price, MAX_CHOICES)
        for choice in choices.run(self.problem.placement.root):
            if prices.proved(choice.bound) >= best.value:
                break
            if effort.over:
                bound = min(bound, choice.bound)
                break
            part = SearchBudget(max(effort.used + 1, min(effort.limit, effort.used + effort.limit // 3)), effort.used)
            assignment_search.search(choice.assignment, part, best)
            effort.used = part.used
            if part.truncated:
                bound = min(bound, choice.bound)
        self.used += effort.used
        return min(bound, choices.floor) if choices.cut else bound

    def _fallback(self, freeing: NodeOptions, branching: BranchAndBound) -> frozenset[int] | None:
        """Place the group with all units within the threshold evicted, then reprieve unneeded victims."""
        units = self.problem.units
        all_pods = frozenset(int(u) for u in np.flatnonzero(units.priority <= freeing.threshold))
        outcome = self.fitting.outcome(all_pods)
        if not outcome.placed:
            return None
        placed: dict[int, list[tuple[int, int]]] = {}
        for share in outcome.shares:
            for node, count in zip(share.nodes, share.counts, strict=True):
                placed.setdefault(int(node), []).append((share.shape, int(count)))
        used = np.zeros(self.problem.placement.node_count, dtype=bool)
        used[list(placed)] = True
        near = {int(u) for u in units.part_unit[used[units.part_node]]}
        return branching.spare(all_pods & near, placed)

    # ---- the plan ------------------------------------------------------------------------------------------

    def _finish(self, levels: list[int], low: int, level: int, solved: Solved) -> Planned:
        units = self.problem.units
        fine = self.refine(levels[level], solved)
        evicted = self.fitting.spare((fine or solved).evicted)
        evicted = improve_victims(self.problem, self.fitting, evicted)
        outcome = self.fitting.outcome(evicted)
        if not outcome.placed:
            return SearchBudgetExhausted(self.used)
        cost = cost_of(units, evicted)
        lower = self._with_counts(self._lower(levels, low, level, solved, cost), levels[level], fine, cost)
        proved = proved_parts(cost.key(), lower.key())
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
        """Return a lexicographic lower bound in priority and the first two counts."""
        before = self._before()
        top = self._solved.get(levels[-1]) or solved
        least = self._bound(top, cost)
        first = all(least.get(name, -1) == getattr(cost, name) for name in before)
        if level == low:
            second = level == 0 or self._at(levels[low - 1]).verdict is SearchVerdict.IMPOSSIBLE
        else:
            under = self._solved.get(levels[level - 1])
            known = self._bound(under, cost) if under is not None else {}
            second = any(known.get(name, 0) > getattr(cost, name) for name in before)
        if not first:
            return Cost(**{name: min(least.get(name, 0), getattr(cost, name)) for name in before})
        if not second:
            return Cost(priority=levels[0], **{name: getattr(cost, name) for name in before})
        here = self._bound(solved, cost)
        return Cost(priority=cost.priority, **{name: min(here[name], getattr(cost, name)) for name in self.coarse})

    def _with_counts(self, lower: Cost, threshold: int, fine: Solved | None, cost: Cost) -> Cost:
        """Extend the bound by the other counts, for plans that are equal in priority and the first two counts."""
        if any(getattr(lower, name) != getattr(cost, name) for name in ("priority", *self.coarse)):
            return lower
        left = self._open_counts(threshold)
        others = [part for part in costs.provable() if part != "priority" and part not in self.coarse]
        bounds = {name: getattr(cost, name) for name in others if name not in left}
        found = fine.prices.split(fine.bound) if fine is not None else {}
        for name in left:
            bounds[name] = min(found.get(name, 0), getattr(cost, name))
            if bounds[name] < getattr(cost, name):
                break  # later counts are no lower bound once an earlier one differs
        return replace(lower, **bounds)

    def _before(self) -> tuple[str, ...]:
        """Return the counts that come before priority in `cost.ORDER`."""
        return tuple(part for part in costs.ORDER[: costs.ORDER.index("priority")] if part in COUNTS)

    def _bound(self, solved: Solved, cost: Cost) -> dict[str, int]:
        """Return the lower bound of the first two counts within the solved threshold.

        Counts after the first one that differs from the cost are 0.
        """
        bounds = dict.fromkeys(self.coarse, 0)
        for name, value in solved.prices.split(solved.bound).items():
            bounds[name] = value
            if value != getattr(cost, name):
                break
        return bounds

    def _why(self, unit: int, members: dict[int, int]) -> str:
        """Say on which nodes the group needs the resources of this victim."""
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
