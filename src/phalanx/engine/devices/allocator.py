"""Which claim gets which devices: all claims of a problem together, or none.

Requests without ties between devices are a bipartite matching, which is solved exactly and quickly. What ties devices
to each other is decided first, in order: the alternative of a request, the common value of a matchAttribute
constraint; each choice is checked by the matching as a lower bound. Shared counters, shares of capacity and
distinctAttribute need a search over devices; devices that nothing can tell apart count as one. The budget counts
steps, never seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, Protocol

import msgspec

from phalanx.engine.devices.inventory import CounterKey, Device
from phalanx.engine.devices.requests import AllocationRequest, AttributeConstraint, ClaimSpec
from phalanx.engine.devices.selectors import DeviceSelectors, SelectorFailure
from phalanx.model.objects.devices import MAX_RESULTS

BUDGET = 20_000  # steps of one search


class AllocationError(Exception):
    """The claim or a class is broken: the attempt is aborted, whatever other nodes offer."""


class Usage(Protocol):
    """What is taken already."""

    def in_use(self, device: Device) -> bool:
        """Return True if a claim holds the whole device."""
        ...

    def shared(self, device: Device) -> bool:
        """Return True if a claim holds a part of the device."""
        ...

    def consumed(self, device: Device, capacity: str) -> int: ...

    def counted(self, counter: CounterKey) -> int: ...


class ClaimDemand(NamedTuple):
    """A claim that needs devices, and those that all its consumers can reach, in order."""

    claim: Hashable
    name: str  # for messages
    spec: ClaimSpec
    devices: Sequence[Device]
    unusable: str = ""  # a pool that offers nothing for now, which requests for all devices must not overlook


class Pick(NamedTuple):
    request: AllocationRequest
    device: Device
    takes: dict[str, int] | None  # capacity, of a device that is shared


Solution = dict[Hashable, list[Pick]]


class _Unit(msgspec.Struct, eq=False):
    """One request of one claim, with the alternative that is tried."""

    demand: int
    request: AllocationRequest
    candidates: list[Device]
    need: int
    distinct: tuple[str, ...] = ()  # attributes whose values must differ, across the units of the same claim


class _Exhausted(Exception):
    pass


class Allocator:
    """One problem. `exhausted`: a negative answer is no proof."""

    def __init__(
        self, demands: Sequence[ClaimDemand], usage: Usage, selectors: DeviceSelectors, budget: int = BUDGET
    ) -> None:
        self._demands = demands
        self._usage = usage
        self._selectors = selectors
        self._left = budget
        self._failure: SelectorFailure | None = None
        self.exhausted = False

    def solve(self) -> Solution | None:
        """Return devices for every claim, or None. Raises AllocationError and SelectorFailure."""
        for demand in self._demands:
            self._check(demand)
        try:
            found = self._choose(0, [])
        except _Exhausted:
            self.exhausted = True
            found = None
        if found is None and self._failure is not None:
            raise self._failure
        return found

    def _check(self, demand: ClaimDemand) -> None:
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
                    counts.append(sum(self._selected(request, device) for device in demand.devices))
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

    # ---- candidates

    def _selected(self, request: AllocationRequest, device: Device) -> bool:
        """Return True if the selectors match the device. Raises SelectorFailure if they fail on it."""
        verdict = request.selects(device, self._selectors)
        if isinstance(verdict, SelectorFailure):
            raise verdict
        return verdict

    def _free(self, request: AllocationRequest, device: Device) -> bool:
        """Return True if a device can serve the request besides what is taken already."""
        if device.taints and not request.tolerates(device):
            return False
        if request.admin:
            return True
        usage = self._usage
        if device.multiple:
            takes = request.takes(device)
            if takes is None:
                return False
            limits = device.capacity
            if any(usage.consumed(device, name) + amount > limits[name].value for name, amount in takes.items()):
                return False
            if usage.shared(device):
                return True
        elif usage.in_use(device):
            return False
        counters = device.pool.counters
        return all(usage.counted(counter) + amount <= counters[counter] for counter, amount in device.counters)

    def _candidates(self, demand: ClaimDemand, request: AllocationRequest) -> list[Device] | None:
        """Return the devices for a request; None if all devices are requested and one is not available."""
        if request.everything:
            wanted = [device for device in demand.devices if self._selected(request, device)]
            return wanted if wanted and all(self._free(request, device) for device in wanted) else None
        found = []
        usage, admin = self._usage, request.admin
        for device in demand.devices:
            # As in kube-scheduler, devices in use are passed over before selectors are asked: theirs may fail.
            if not admin and not device.multiple and usage.in_use(device):
                continue
            try:
                if self._selected(request, device) and self._free(request, device):
                    found.append(device)
            except SelectorFailure as failure:
                if len(found) < request.count:
                    raise
                self._failure = failure  # reached only if the devices before it are not enough
                break
        if request.capacity and any(device.multiple for device in found):
            found.sort(key=lambda device: self._remaining(device))  # fill devices that are in use first
        return found

    def _remaining(self, device: Device) -> float:
        """Return the largest share of a capacity that is left of a device."""
        limits = [(name, rule.value) for name, rule in device.capacity.items() if rule.value]
        parts = [1.0 - self._usage.consumed(device, name) / limit for name, limit in limits]
        return max(parts, default=1.0) if device.multiple else 1.0

    # ---- what ties devices: alternatives and common values

    def _choose(self, number: int, units: list[_Unit]) -> Solution | None:
        """Choose alternatives and common values of the claims from `number` on."""
        if number == len(self._demands):
            return _Assignment(self, units).run()
        demand = self._demands[number]
        for mine in self._variants(number, demand):
            self._spend()
            together = [*units, *mine]
            if number + 1 < len(self._demands) and not _matchable(together):
                continue
            found = self._choose(number + 1, together)
            if found is not None:
                return found
        return None

    def _variants(self, number: int, demand: ClaimDemand) -> Iterator[list[_Unit]]:
        for chosen in product(*demand.spec.requests):
            units = []
            total = 0
            for request in chosen:
                candidates = self._candidates(demand, request)
                need = len(candidates or ()) if request.everything else request.count
                if candidates is None or len(candidates) < need:
                    break
                total += need
                units.append(_Unit(number, request, candidates, need))
            else:
                if total <= MAX_RESULTS:
                    yield from self._values(units, demand.spec.constraints)

    def _values(self, units: list[_Unit], constraints: Sequence[AttributeConstraint]) -> Iterator[list[_Unit]]:
        """Yield the units with the devices that each choice of common values leaves them."""
        if not constraints:
            yield units
            return
        first, rest = constraints[0], constraints[1:]
        concerned = [first.concerns(unit.request) for unit in units]
        attribute = first.attribute
        if first.distinct:
            limited = [
                _with(unit, [device for device in unit.candidates if attribute in device.attributes], attribute)
                if mine
                else unit
                for unit, mine in zip(units, concerned, strict=True)
            ]
            if all(_enough(unit) for unit in limited):
                yield from self._values(limited, rest)
            return
        values = {
            device.attributes[attribute]: None
            for unit, mine in zip(units, concerned, strict=True)
            if mine
            for device in unit.candidates
            if attribute in device.attributes
        }
        if not any(concerned):
            yield from self._values(units, rest)
            return
        for value in values:
            self._spend()
            limited = [
                _with(unit, [device for device in unit.candidates if device.attributes.get(attribute) == value])
                if mine
                else unit
                for unit, mine in zip(units, concerned, strict=True)
            ]
            if all(_enough(unit) for unit in limited):
                yield from self._values(limited, rest)


class _Assignment:
    """Devices for units whose ties are decided, except distinct values, counters and shares."""

    def __init__(self, allocator: Allocator, units: list[_Unit]) -> None:
        self._allocator = allocator
        self._usage: Usage = allocator._usage
        self._units = units
        self._picks: list[tuple[_Unit, Device, dict[str, int] | None]] = []
        self._held: dict[Device, int] = {}  # as a whole
        self._holders: dict[tuple[int, Device], int] = {}  # by claim: a device is given to an admin request once
        self._shares: dict[Device, dict[str, int]] = {}
        self._counted: dict[CounterKey, int] = {}
        self._values: dict[tuple[int, str, object], int] = {}  # (claim, attribute, value) of distinct constraints

    def run(self) -> Solution | None:
        units = self._units
        if not _matchable(units):
            return None
        simple = not any(
            unit.distinct or unit.request.admin or any(d.multiple or d.counters for d in unit.candidates)
            for unit in units
        )
        if simple:
            matched = _matching(units)
            return None if matched is None else self._answer(matched)
        order = sorted(units, key=lambda unit: not unit.request.everything)  # all or nothing: no choice there
        self._marks = _memberships(order)
        self._order = order
        if not self._search(0, 0, 0):
            return None
        found: Solution = {self._allocator._demands[unit.demand].claim: [] for unit in units}
        for unit in units:
            claim = self._allocator._demands[unit.demand].claim
            found[claim] += [Pick(u.request, device, takes) for u, device, takes in self._picks if u is unit]
        return found

    def _answer(self, matched: list[list[Device]]) -> Solution:
        found: Solution = {}
        for unit, devices in zip(self._units, matched, strict=True):
            claim = self._allocator._demands[unit.demand].claim
            found.setdefault(claim, []).extend(Pick(unit.request, device, None) for device in devices)
        return found

    def _search(self, at: int, taken: int, start: int) -> bool:
        """Search depth first. `taken` devices of unit `at` are chosen; the next one comes from `start` on."""
        if at == len(self._order):
            return True
        unit = self._order[at]
        if taken == unit.need:
            return self._search(at + 1, 0, self._first(at + 1))
        tried: set[object] = set()
        last = len(unit.candidates) - (unit.need - taken)
        for number in range(start, last + 1):
            device = unit.candidates[number]
            likeness = self._likeness(unit, device)
            if likeness in tried:
                continue
            self._allocator._spend()
            takes = self._take(unit, device)
            if takes is None:
                continue
            tried.add(likeness)
            if self._search(at, taken + 1, number + 1):
                return True
            self._give_back(unit, device)
        return False

    def _first(self, at: int) -> int:
        """Return where the devices of a unit begin: equal units of different claims take theirs in order."""
        if at >= len(self._order) or not self._picks:
            return 0
        unit, (before, device, takes) = self._order[at], self._picks[-1]
        same = (
            before.request is unit.request
            and before.demand != unit.demand
            and not unit.request.admin
            and takes is None
            and len(before.candidates) == len(unit.candidates)
            and unit.need == before.need == 1
        )
        return before.candidates.index(device) + 1 if same and before.candidates == unit.candidates else 0

    def _likeness(self, unit: _Unit, device: Device) -> object:
        """Return a value that is equal for devices which lead to the same further search."""
        values = tuple(device.attributes.get(attribute) for attribute in unit.distinct)
        shares = tuple(sorted(self._shares.get(device, {}).items())) if device.multiple else ()
        before = (
            tuple((name, self._usage.consumed(device, name), rule.value) for name, rule in device.capacity.items())
            if device.multiple
            else ()
        )
        return (self._marks[device], device.counters, values, device.multiple, shares, before, device in self._held)

    def _take(self, unit: _Unit, device: Device) -> dict[str, int] | None:
        """Take a device; return an empty dict if it is taken as a whole, None if that is not possible."""
        request, claim = unit.request, unit.demand
        takes: dict[str, int] | None = {}
        if request.admin:
            takes = None if self._holders.get((claim, device)) else {}
        elif device.multiple:
            takes = self._share(request, device)
        elif self._held.get(device):
            takes = None
        if takes is None or any(
            self._values.get((claim, attribute, device.attributes[attribute])) for attribute in unit.distinct
        ):
            return None
        if not request.admin and not self._count(device):
            return None
        self._holders[claim, device] = self._holders.get((claim, device), 0) + 1
        for attribute in unit.distinct:
            key = (claim, attribute, device.attributes[attribute])
            self._values[key] = self._values.get(key, 0) + 1
        if not request.admin:
            self._held[device] = self._held.get(device, 0) + 1
            if device.multiple:
                shares = self._shares.setdefault(device, {})
                for name, amount in takes.items():
                    shares[name] = shares.get(name, 0) + amount
        self._picks.append((unit, device, takes if device.multiple and not request.admin else None))
        return takes

    def _share(self, request: AllocationRequest, device: Device) -> dict[str, int] | None:
        takes = request.takes(device)
        if takes is None:
            return None
        held = self._shares.get(device, {})
        for name, amount in takes.items():
            if self._usage.consumed(device, name) + held.get(name, 0) + amount > device.capacity[name].value:
                return None
        return takes

    def _count(self, device: Device) -> bool:
        """Take the counters of a device that is not in use yet."""
        if not device.counters or self._held.get(device) or (device.multiple and self._usage.shared(device)):
            return True
        limits = device.pool.counters
        for counter, amount in device.counters:
            if self._usage.counted(counter) + self._counted.get(counter, 0) + amount > limits[counter]:
                return False
        for counter, amount in device.counters:
            self._counted[counter] = self._counted.get(counter, 0) + amount
        return True

    def _give_back(self, unit: _Unit, device: Device) -> None:
        _, _, takes = self._picks.pop()
        claim = unit.demand
        self._holders[claim, device] -= 1
        for attribute in unit.distinct:
            self._values[claim, attribute, device.attributes[attribute]] -= 1
        if unit.request.admin:
            return
        self._held[device] -= 1
        if not self._held[device]:
            del self._held[device]
            if not (device.multiple and self._usage.shared(device)):
                for counter, amount in device.counters:
                    self._counted[counter] -= amount
        for name, amount in (takes or {}).items():
            self._shares[device][name] -= amount


def _with(unit: _Unit, candidates: list[Device], distinct: str = "") -> _Unit:
    more = (*unit.distinct, distinct) if distinct else unit.distinct
    return _Unit(unit.demand, unit.request, candidates, unit.need, more)


def _enough(unit: _Unit) -> bool:
    return len(unit.candidates) >= unit.need


def _memberships(units: Sequence[_Unit]) -> dict[Device, int]:
    """Return, for each device, the units that could use it, as a bit mask."""
    found: dict[Device, int] = {}
    for number, unit in enumerate(units):
        for device in unit.candidates:
            found[device] = found.get(device, 0) | 1 << number
    return found


def _matchable(units: Sequence[_Unit]) -> bool:
    """Return True if there are enough whole devices; shares and admin access do not use devices up."""
    if all(_enough(unit) for unit in units) and len(units) == 1:
        return True
    exclusive = [
        unit for unit in units if not unit.request.admin and not any(device.multiple for device in unit.candidates)
    ]
    return _matching(exclusive) is not None


def _matching(units: Sequence[_Unit]) -> list[list[Device]] | None:
    """Match every unit with a different device, early units first.

    A unit changes its device only if another unit has no other choice.
    """
    owner: dict[Device, int] = {}
    given: list[dict[Device, None]] = [{} for _ in units]

    def augment(number: int, visited: set[Device]) -> bool:
        for device in units[number].candidates:
            if device not in owner:
                owner[device] = number
                given[number][device] = None
                return True
        for device in units[number].candidates:
            other = owner[device]
            if other == number or device in visited:
                continue
            visited.add(device)
            del given[other][device]
            owner[device] = number
            given[number][device] = None
            if augment(other, visited):
                return True
            del given[number][device]
            owner[device] = other
            given[other][device] = None
        return False

    for number, unit in enumerate(units):
        for _ in range(unit.need):
            if not augment(number, set()):
                return None
    order = {device: place for unit in units for place, device in enumerate(unit.candidates)}
    return [sorted(devices, key=lambda device: order[device]) for devices in given]
