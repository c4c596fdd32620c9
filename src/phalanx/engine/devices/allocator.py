"""Allocate devices to all claims of a problem together, or to none.

Decisions that couple devices come first: the alternative of a request, then the common value of a matchAttribute
constraint. Before and after each decision, `matching.possible` checks all requests together, undecided ones with all
devices that remain for them. If counters, capacity shares or distinctAttribute are involved, a search assigns devices
(`search.py`); otherwise the matching is the answer. Equal claims and interchangeable values are tried once. The budget
counts steps, never seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.matching import Option, RequestUnit, Usage, option, possible, unit
from phalanx.engine.devices.requests import THE_CLAIM, AllocationRequest, ClaimSpec
from phalanx.engine.devices.search import DeviceSearch
from phalanx.engine.devices.selectors import DeviceSelectors, SelectorFailure
from phalanx.model.objects.devices import MAX_RESULTS

__all__ = ["AllocationError", "Allocator", "ClaimDemand", "Pick", "Solution", "Usage"]

BUDGET = 6_000  # steps of one search


class AllocationError(Exception):
    """The claim or a class is invalid: the attempt is aborted, even if other nodes would fit."""


class ClaimDemand(NamedTuple):
    """A claim that needs devices, with the devices that all its consumers can reach, in order."""

    claim: Hashable
    name: str  # for messages
    spec: ClaimSpec
    devices: Sequence[Device]
    unusable: str = ""  # a pool without usable devices at present; requests for all devices must fail because of it


class Pick(NamedTuple):
    request: AllocationRequest
    device: Device
    takes: dict[str, int] | None  # capacity taken of a shared device


Solution = dict[Hashable, list[Pick]]


class _Exhausted(Exception):
    pass


class _Decision(msgspec.Struct):
    """The next decision: the alternative of a unit, or the common value of a constraint of its claim."""

    demand: int
    unit: int = -1
    constraint: int = -1


class Allocator:
    """One allocation problem. `exhausted`: the budget ended, so a negative answer is no proof."""

    def __init__(
        self, demands: Sequence[ClaimDemand], usage: Usage, selectors: DeviceSelectors, budget: int = BUDGET
    ) -> None:
        self._demands = demands
        self._usage = usage
        self._selectors = selectors
        self._left = budget
        self._failure: SelectorFailure | None = None
        self._options: dict[tuple[int, int], list[Option]] = {}  # by request and list of devices
        self._units: list[RequestUnit] = []
        self._decisions: list[_Decision] = []
        self._chosen: dict[int, int] = {}  # unit -> index of its alternative
        self._same_unit: dict[int, int] = {}  # unit -> the same unit of the preceding equal claim
        self.exhausted = False

    def solve(self) -> Solution | None:
        """Return devices for every claim, or None. Raises AllocationError and SelectorFailure."""
        for demand in self._demands:
            self._check_possible(demand)
        if not self._prepare():
            return None
        try:
            found = self._decide()
        except _Exhausted:
            self.exhausted = True
            found = None
        if found is None and self._failure is not None:
            raise self._failure
        return found

    def _check_possible(self, demand: ClaimDemand) -> None:
        spec = demand.spec
        if spec.error:
            raise AllocationError(spec.error)
        least = 0
        for alternatives in spec.requests:
            counts = []
            for request in alternatives:
                if request.everything:
                    if demand.unusable:
                        text = f"claim {demand.name}, request {request.name}: asks for all devices, but resource pool "
                        raise AllocationError(text + demand.unusable)
                    counts.append(sum(self._selected(demand, request, device) for device in demand.devices))
                else:
                    counts.append(request.count)
            least += min(counts, default=0)
        if least > MAX_RESULTS:
            text = f"claim {demand.name}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
            raise AllocationError(text)

    def _spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise _Exhausted

    # ---- options

    def _selected(self, demand: ClaimDemand, request: AllocationRequest, device: Device) -> bool:
        """Return True if the selectors match the device. Raises SelectorFailure if they fail on it."""
        verdict = request.selects(device, self._selectors)
        if isinstance(verdict, SelectorFailure):
            text = str(verdict).removeprefix(THE_CLAIM)
            raise verdict if text == str(verdict) else SelectorFailure(f"claim {demand.name}{text}")
        return verdict

    def _free(self, request: AllocationRequest, device: Device) -> bool:
        """Return True if a device can serve the request in addition to existing allocations."""
        if device.taints and not request.tolerates(device):
            return False
        if request.admin:
            return True
        usage = self._usage
        if usage.in_use(device):
            return False
        if device.multiple:
            takes = request.takes(device)
            if takes is None:
                return False
            limits = device.capacity
            if any(usage.consumed(device, name) + amount > limits[name].value for name, amount in takes.items()):
                return False
            if usage.shared(device):
                return True
        counters = device.pool.counters
        return all(usage.counted(counter) + amount <= counters[counter] for counter, amount in device.counters)

    def _candidates(self, demand: ClaimDemand, request: AllocationRequest) -> list[Device] | None:
        """Return the devices for a request; None if all devices are requested and one is unavailable."""
        if request.everything:
            wanted = [device for device in demand.devices if self._selected(demand, request, device)]
            return wanted if wanted and all(self._free(request, device) for device in wanted) else None
        found = []
        usage, admin = self._usage, request.admin
        for device in demand.devices:
            # As in kube-scheduler, devices in use are skipped before selectors run: a selector may fail on them.
            if not admin and usage.in_use(device):
                continue
            try:
                if self._selected(demand, request, device) and self._free(request, device):
                    found.append(device)
            except SelectorFailure as failure:
                if len(found) < request.count:
                    raise
                self._failure = failure  # reached only if earlier devices are not sufficient
                break
        if request.capacity and any(device.multiple for device in found):
            found.sort(key=lambda device: self._remaining(device))  # fill devices in use first
        return found

    def _remaining(self, device: Device) -> float:
        """Return the largest remaining share of a device's capacities."""
        limits = [(name, rule.value) for name, rule in device.capacity.items() if rule.value]
        parts = [1.0 - self._usage.consumed(device, name) / limit for name, limit in limits]
        return max(parts, default=1.0) if device.multiple else 1.0

    def _option(self, demand: ClaimDemand, request: AllocationRequest) -> Option | None:
        """Return a request with its devices; None if there are too few."""
        try:
            candidates = self._candidates(demand, request)
        except SelectorFailure as failure:
            return option(request, [], 0, failure=failure)
        if candidates is None:
            return None
        need = len(candidates) if request.everything else request.count
        match, distinct = [], []
        for number, limit in enumerate(demand.spec.constraints):
            if limit.concerns(request):
                candidates = [device for device in candidates if limit.attribute in device.attributes]
                if limit.distinct:
                    distinct.append((number, limit.attribute))
                else:
                    match.append(number)
        if len(candidates) < need:
            return None
        return option(request, candidates, need, tuple(match), tuple(distinct))

    def _prepare(self) -> bool:
        """List the units and their decisions; return False if a unit has no devices."""
        for number, demand in enumerate(self._demands):
            first = len(self._units)
            before = self._demands[number - 1] if number else None
            equal = before is not None and before.spec is demand.spec and before.devices is demand.devices
            for place, alternatives in enumerate(demand.spec.requests):
                key = (id(alternatives), id(demand.devices))
                options = self._options.get(key)
                if options is None:
                    made = [self._option(demand, request) for request in alternatives]
                    options = self._options[key] = [each for each in made if each is not None]
                if not options:
                    return False
                if options[0].failure is not None:
                    raise options[0].failure
                if len(options) > 1:
                    self._decisions.append(_Decision(number, unit=len(self._units)))
                    if equal:
                        self._same_unit[len(self._units)] = first - len(demand.spec.requests) + place
                self._units.append(unit(number, options))
            for place, limit in enumerate(demand.spec.constraints):
                if not limit.distinct:
                    self._decisions.append(_Decision(number, constraint=place))
        return True

    # ---- decisions

    def _decide(self) -> Solution | None:
        """Make one decision after another; backtrack if the rest cannot be served."""
        matched = possible(self._units, self._usage)
        # Per decision: the units before it with their matching, and the remaining choices.
        steps: list[tuple[list[RequestUnit], list[list[Device]], Iterator[list[RequestUnit]]]] = []
        while True:
            if matched is not None and len(steps) == len(self._decisions):
                found = self._assign(matched)
                if found is not None:
                    return found
            elif matched is not None:
                decision = self._decisions[len(steps)]
                tries = self._alternatives(decision) if decision.unit >= 0 else self._values(decision)
                steps.append((self._units, matched, tries))
            following = None
            while steps and following is None:
                before, known, tries = steps[-1]
                self._units = before
                following = next(tries, None)
                if following is None:
                    steps.pop()
            if following is None:
                return None
            matched = known if following is before else self._check_units(following)

    def _check_units(self, units: list[RequestUnit]) -> list[list[Device]] | None:
        self._spend(1 + len(units) // 8)
        self._units = units
        return possible(units, self._usage)

    def _alternatives(self, decision: _Decision) -> Iterator[list[RequestUnit]]:
        """Yield the units with each alternative. Equal claims take alternatives in order."""
        at, units = decision.unit, self._units
        for place in range(self._least(at), len(units[at].options)):
            chosen = units[at].options[place]
            if chosen.failure is not None:
                raise chosen.failure
            self._chosen[at] = place
            mine = [each for each in units if each.demand == decision.demand]
            if sum(each.need for each in mine) - units[at].need + chosen.need <= MAX_RESULTS:
                yield [*units[:at], unit(decision.demand, [chosen]), *units[at + 1 :]]

    def _least(self, at: int) -> int:
        """Return the first alternative to try: that of the preceding equal claim, if all units before are equal too."""
        before = self._same_unit.get(at)
        if before is None:
            return 0
        earlier = [each for each in self._same_unit if each < at and self._units[each].demand == self._units[at].demand]
        same = all(self._chosen[each] == self._chosen[self._same_unit[each]] for each in earlier)
        return self._chosen[before] if same else 0

    def _values(self, decision: _Decision) -> Iterator[list[RequestUnit]]:
        """Yield the units with each common value; interchangeable values only once."""
        units = self._units
        concerned = [
            each.demand == decision.demand and decision.constraint in each.option.match and each.need > 0
            for each in units
        ]
        if not any(concerned):
            yield units
            return
        attribute = self._demands[decision.demand].spec.constraints[decision.constraint].attribute
        values = dict.fromkeys(
            device.attributes[attribute]
            for each, mine in zip(units, concerned, strict=True)
            if mine
            for device in each.candidates
        )
        if len(values) == 1:
            yield units
            return
        kinds = self._kinds(attribute)
        tried: set[Hashable] = set()
        for value in values:
            kind = kinds.get(value)
            if kind in tried:
                continue
            tried.add(kind)
            limited = []
            for each, mine in zip(units, concerned, strict=True):
                if mine:
                    left = [device for device in each.candidates if device.attributes[attribute] == value]
                    chosen = each.option
                    made = option(chosen.request, left, chosen.need, chosen.match, chosen.distinct)
                    limited.append(unit(each.demand, [made]))
                else:
                    limited.append(each)
            if all(len(each.candidates) >= each.need for each in limited):
                yield limited

    def _kinds(self, attribute: str) -> dict[object, Hashable]:
        """Return a key of the devices with each value of an attribute; values with equal keys are interchangeable."""
        others = {limit.attribute for demand in self._demands for limit in demand.spec.constraints} - {attribute}
        names = sorted(others)
        masks: dict[Device, int] = {}
        bit = 1
        for each in self._units:
            for chosen in each.options:
                for device in chosen.candidates:
                    masks[device] = masks.get(device, 0) | bit
                bit <<= 1
        found: dict[object, list[Hashable]] = {}
        for device, mask in masks.items():
            value = device.attributes.get(attribute)
            if value is not None:
                seen = tuple(device.attributes.get(name) for name in names)
                found.setdefault(value, []).append((mask, seen, device.counters, _state(device, self._usage)))
        return {value: tuple(sorted(looks, key=repr)) for value, looks in found.items()}

    # ---- devices

    def _assign(self, matched: list[list[Device]]) -> Solution | None:
        units = self._units
        if any(each.option.special for each in units):
            assigned = DeviceSearch(units, self._usage, self._spend).run()
        else:
            assigned = [[(device, None) for device in devices] for devices in matched]
        if assigned is None:
            return None
        found: Solution = {}
        for each, devices in zip(units, assigned, strict=True):
            request = each.option.request
            picks = [Pick(request, device, takes) for device, takes in devices]
            found.setdefault(self._demands[each.demand].claim, []).extend(picks)
        return found


def _state(device: Device, usage: Usage) -> Hashable:
    """Return the remaining capacity of a device that several claims may use."""
    if not device.multiple:
        return None
    return tuple((name, usage.consumed(device, name), rule) for name, rule in device.capacity.items())
