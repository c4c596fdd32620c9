"""Search devices for requests with decided alternatives and common values, with counters, shares and distinct values.

Large requests come first. After each complete request, `matching.possible` checks the remaining ones. Interchangeable
devices count as one, also across counter sets of equal form (the GPUs of a node with their partitions), and equal
requests of different claims take devices in order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import msgspec

from phalanx.engine.devices.inventory import CounterKey, Device
from phalanx.engine.devices.matching import RequestUnit, Usage, possible

Taken = tuple[Device, dict[str, int] | None]  # (device, amounts of a shared device)


class _Step(msgspec.Struct, eq=False):
    """The choice of one device for one unit."""

    at: int  # position of the unit in the order
    taken: int  # number of its devices so far
    choices: Iterator[int]  # indexes of the devices to try
    tried: set[Hashable] = msgspec.field(default_factory=set)
    place: int = -1  # index of the chosen device; -1: none


_DEAD = _Step(-1, 0, iter(()))


class DeviceSearch:
    def __init__(self, units: Sequence[RequestUnit], usage: Usage, spend: Callable[[int], None]) -> None:
        self._units = units
        self._usage = usage
        self._spend = spend
        self._order = sorted(units, key=_urgency)
        self._picks: list[tuple[RequestUnit, Device, dict[str, int] | None]] = []
        self._held: dict[Device, int] = {}  # by requests without admin access
        self._holders: dict[Device, dict[int, int]] = {}  # by claim, including admin access
        self._admin = any(unit.option.request.admin for unit in units)
        self._shares: dict[Device, dict[str, int]] = {}
        self._taken: dict[CounterKey, int] = {}
        self._values: dict[tuple[int, int, object], int] = {}  # (claim, constraint, value) of distinct constraints
        self._device_classes, self._sets = _device_classes(units, usage)
        self._touched: dict[int, list[Device]] = {}  # taken devices by counter set

    def run(self) -> list[list[Taken]] | None:
        """Return the devices of every unit; None if there are too few."""
        if not self._search():
            return None
        found: dict[int, list[Taken]] = {id(unit): [] for unit in self._units}
        for unit, device, takes in self._picks:
            found[id(unit)].append((device, takes))
        return [found[id(unit)] for unit in self._units]

    # ---- Usage, including devices taken so far

    def in_use(self, device: Device) -> bool:
        return self._usage.in_use(device)

    def shared(self, device: Device) -> bool:
        return device in self._held or self._usage.shared(device)

    def consumed(self, device: Device, capacity: str) -> int:
        return self._usage.consumed(device, capacity) + self._shares.get(device, {}).get(capacity, 0)

    def counted(self, counter: CounterKey) -> int:
        return self._usage.counted(counter) + self._taken.get(counter, 0)

    # ---- search

    def _search(self) -> bool:
        steps: list[_Step] = []
        following = self._next(0, 0, 0)
        while following is not None:
            steps.append(following)
            following = _DEAD
            while following is _DEAD:
                while steps and not self._advance(steps[-1]):
                    steps.pop()
                if not steps:
                    return False
                following = self._after(steps[-1], steps)
        return True

    def _next(self, at: int, taken: int, start: int) -> _Step | None:
        """Return the step that chooses the next device; None if all are chosen."""
        while at < len(self._order) and self._order[at].need == taken:
            at, taken, start = at + 1, 0, 0
        if at == len(self._order):
            return None
        unit = self._order[at]
        last = len(unit.candidates) - (unit.need - taken)
        return _Step(at, taken, iter(range(start, last + 1)))

    def _after(self, step: _Step, steps: Sequence[_Step]) -> _Step | None:
        """Return the next step; None if all is done; `_DEAD` if the remaining units cannot be served."""
        unit = self._order[step.at]
        if step.taken + 1 < unit.need:
            return self._next(step.at, step.taken + 1, step.place + 1)
        if not self._promising(step.at + 1):
            return _DEAD
        return self._next(step.at + 1, 0, self._first(step, steps))

    def _advance(self, step: _Step) -> bool:
        """Replace the device of a step by its next choice; return False if there is none."""
        unit = self._order[step.at]
        if step.place >= 0:
            self._give_back(unit, unit.candidates[step.place])
            step.place = -1
        for place in step.choices:
            device = unit.candidates[place]
            equivalent = self._equivalence_key(device)
            if equivalent in step.tried:
                continue
            self._spend(1)
            if self._allocate(unit, device):
                step.tried.add(equivalent)
                step.place = place
                return True
        return False

    def _promising(self, at: int) -> bool:
        """Return True if the units from `at` on may be served by the remaining devices."""
        rest = self._order[at:]
        if not rest:
            return True
        self._spend(1 + len(rest) // 4)
        left = []
        for unit in rest:
            candidates = [device for device in unit.candidates if self._amounts(unit, device) is not None]
            if len(candidates) < unit.need:
                return False
            left.append(RequestUnit(unit.demand, unit.options, candidates, unit.need, unit.exclusive))
        return possible(left, self) is not None

    def _first(self, step: _Step, steps: Sequence[_Step]) -> int:
        """Return the first device index for the next unit: equal units of different claims take devices in order."""
        if step.at + 1 >= len(self._order):
            return 0
        unit, before = self._order[step.at + 1], self._order[step.at]
        same = before.option is unit.option and before.demand != unit.demand
        if not same or unit.option.distinct or unit.option.request.admin:
            return 0
        first = steps[-unit.need].place
        return first if unit.candidates[first].multiple else first + 1

    def _equivalence_key(self, device: Device) -> Hashable:
        """Return a value that is equal for devices with equal further searches."""
        touched = self._touched.get(self._sets.get(device, -1), ())
        return (self._class_of(device), *sorted(self._class_of(each) for each in touched))

    def _class_of(self, device: Device) -> tuple[int, int, tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]:
        """Return a key of the device's class and of its use by claims."""
        holders = tuple(sorted(self._holders.get(device, {}).items())) if self._admin else ()
        shares = tuple(sorted(self._shares.get(device, {}).items()))
        return (self._device_classes[device], self._held.get(device, 0), holders, shares)

    # ---- devices

    def _amounts(self, unit: RequestUnit, device: Device) -> dict[str, int] | None:
        """Return the amounts a unit takes of a device, empty for a whole device; None if it cannot have the device."""
        request, claim = unit.option.request, unit.demand
        takes: dict[str, int] | None = {}
        if not device.multiple and self._holders.get(device, {}).get(claim):
            return None  # requests of one claim have different devices, even with admin access
        if device.multiple and not request.admin:
            takes = request.takes(device)
            limits = device.capacity
            if takes is None or any(self.consumed(device, n) + amount > limits[n].value for n, amount in takes.items()):
                return None
        elif not request.admin and self._held.get(device):
            return None
        for number, attribute in unit.option.distinct:
            if self._values.get((claim, number, device.attributes[attribute])):
                return None
        return None if not request.admin and not self._countable(device) else takes

    def _countable(self, device: Device) -> bool:
        """Return True if counters suffice for a device; those of a device in use are counted already."""
        if not device.counters or self._held.get(device) or (device.multiple and self._usage.shared(device)):
            return True
        limits = device.pool.counters
        return all(self.counted(counter) + amount <= limits[counter] for counter, amount in device.counters)

    def _allocate(self, unit: RequestUnit, device: Device) -> bool:
        """Allocate a device to a requested unit; return False if it has too little capacity."""
        takes = self._amounts(unit, device)
        if takes is None:
            return False
        admin = unit.option.request.admin
        self._mark(unit, device, 1)
        if not admin:
            if not self._held.get(device) and not (device.multiple and self._usage.shared(device)):
                self._count(device, 1)
            self._held[device] = self._held.get(device, 0) + 1
            self._share(device, takes, 1)
        self._picks.append((unit, device, takes if device.multiple and not admin else None))
        return True

    def _give_back(self, unit: RequestUnit, device: Device) -> None:
        _, _, takes = self._picks.pop()
        self._mark(unit, device, -1)
        if unit.option.request.admin:
            return
        self._held[device] -= 1
        if not self._held[device]:
            del self._held[device]
            if not (device.multiple and self._usage.shared(device)):
                self._count(device, -1)
        self._share(device, takes or {}, -1)

    def _mark(self, unit: RequestUnit, device: Device, sign: int) -> None:
        claim = unit.demand
        holders = self._holders.setdefault(device, {})
        holders[claim] = holders.get(claim, 0) + sign
        for number, attribute in unit.option.distinct:
            key = (claim, number, device.attributes[attribute])
            self._values[key] = self._values.get(key, 0) + sign
        group = self._sets.get(device)
        if group is not None:
            touched = self._touched.setdefault(group, [])
            if sign > 0:
                touched.append(device)
            else:
                touched.pop()

    def _count(self, device: Device, sign: int) -> None:
        for counter, amount in device.counters:
            self._taken[counter] = self._taken.get(counter, 0) + sign * amount

    def _share(self, device: Device, takes: dict[str, int], sign: int) -> None:
        if takes:
            shares = self._shares.setdefault(device, {})
            for name, amount in takes.items():
                shares[name] = shares.get(name, 0) + sign * amount


def _urgency(unit: RequestUnit) -> tuple[bool, int, int]:
    """Return the sort key of units: no choice first, then large requests, then few spare devices."""
    sizes = [
        sum(amount for _, amount in device.counters)
        + (sum((unit.option.request.takes(device) or {}).values()) if device.multiple else 0)
        for device in unit.candidates
    ]
    return (not unit.option.request.everything, -min(sizes, default=0), len(unit.candidates) - unit.need)


def _device_classes(units: Sequence[RequestUnit], usage: Usage) -> tuple[dict[Device, int], dict[Device, int]]:
    """Return the class number of each device, and the counter set of each device that uses counters.

    Two sets have equal classes if their counters have equal amounts left and devices of equal kinds use them.
    """
    masks: dict[Device, int] = {}
    names: dict[str, None] = {}
    for number, unit in enumerate(units):
        names.update(dict.fromkeys(attribute for _, attribute in unit.option.distinct))
        for device in unit.candidates:
            masks[device] = masks.get(device, 0) | 1 << number
    kinds: dict[Hashable, int] = {}

    def kind(look: Hashable) -> int:
        return kinds.setdefault(look, len(kinds))

    plain = {device: kind((mask, _form(device, names, usage))) for device, mask in masks.items()}
    sets = _sets_of_counters([device for device in masks if device.counters])
    looks = dict(plain)
    for members in sets:
        counters = sorted({counter for device in members for counter, _ in device.counters})
        place = {counter: number for number, counter in enumerate(counters)}
        left = tuple(members[0].pool.counters[counter] - usage.counted(counter) for counter in counters)
        forms = {
            device: (plain[device], tuple(sorted((place[counter], amount) for counter, amount in device.counters)))
            for device in members
        }
        whole = kind((left, tuple(sorted(forms.values()))))
        for device in members:
            looks[device] = kind((whole, forms[device], "of a set"))
    return looks, {device: number for number, members in enumerate(sets) for device in members}


def _form(device: Device, names: Iterable[str], usage: Usage) -> Hashable:
    values = tuple(device.attributes.get(name) for name in names)
    if not device.multiple:
        return values
    shares = tuple((name, usage.consumed(device, name), rule) for name, rule in device.capacity.items())
    return (values, usage.shared(device), shares)


def _sets_of_counters(devices: Sequence[Device]) -> list[list[Device]]:
    """Return the groups of devices that compete for counters, directly or transitively."""
    number: dict[CounterKey, int] = {}
    members: dict[int, list[Device]] = {}
    for at, device in enumerate(devices):
        members[at] = [device]
        for counter, _ in device.counters:
            other = number.get(counter, at)
            if other != at:
                members[at] += members.pop(other)
                number.update({key: at for key, group in number.items() if group == other})
            number[counter] = at
    return list(members.values())
