"""Bounds on what devices can serve: whether requests could have devices at all, each rule looked at by itself.

Everything here is necessary, and without counters, shares and distinct attributes also sufficient: a matching of
requests with different devices. So a search that asks first gives up, or ends, as early as possible.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from phalanx.engine.devices.inventory import CounterKey, Device
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.selectors import SelectorFailure

Thing = TypeVar("Thing", bound=Hashable)


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


class Option(msgspec.Struct, eq=False):
    """A request, or one alternative of it, with the devices that could serve it."""

    request: AllocationRequest
    candidates: list[Device]
    need: int
    match: tuple[int, ...] = ()  # matchAttribute constraints of its claim that concern it, by number
    distinct: tuple[tuple[int, str], ...] = ()  # distinctAttribute constraints: number and attribute
    failure: SelectorFailure | None = None  # a selector failed before there were enough devices
    exclusive: bool = False  # every candidate serves one request at a time
    whole: bool = False  # no candidate serves one claim twice
    least: dict[str, int] | None = None  # the smallest share of each capacity, once it was asked for
    special: bool = False  # a matching alone does not decide: admin access, counters, shares, distinct attributes


class RequestUnit(msgspec.Struct, eq=False):
    """One request of one claim: the options that are left, and what every one of them needs at least."""

    demand: int
    options: list[Option]
    candidates: list[Device]
    need: int
    exclusive: bool

    @property
    def option(self) -> Option:
        """The first option: the chosen one, once there is only one left."""
        return self.options[0]


def option(
    request: AllocationRequest,
    candidates: list[Device],
    need: int,
    match: tuple[int, ...] = (),
    distinct: tuple[tuple[int, str], ...] = (),
    failure: SelectorFailure | None = None,
) -> Option:
    multiple = any(device.multiple for device in candidates)
    special = bool(distinct) or request.admin or multiple or any(device.counters for device in candidates)
    exclusive = not request.admin and not multiple
    return Option(request, candidates, need, match, distinct, failure, exclusive, not multiple, special=special)


def unit(demand: int, options: list[Option]) -> RequestUnit:
    """Return the unit for these options. One whose selector fails could be anything, so it needs nothing for now."""
    if len(options) == 1:
        only = options[0]
        return RequestUnit(demand, options, only.candidates, only.need, only.exclusive)
    if any(each.failure is not None for each in options):
        return RequestUnit(demand, options, [], 0, True)
    union = list(dict.fromkeys(device for each in options for device in each.candidates))
    return RequestUnit(
        demand, options, union, min(each.need for each in options), all(each.exclusive for each in options)
    )


def matching(needs: Sequence[tuple[Iterable[Thing], int]]) -> list[list[Thing]] | None:
    """Give every need as many of its things as it asks for, each thing once; None if that is not possible.

    Early needs come first, and early things; one changes its thing only if another has no other choice.
    """
    choices = [(list(things), count) for things, count in needs]
    owner: dict[Thing, int] = {}
    for number, (things, count) in enumerate(choices):
        if len(things) < count:
            return None
        left = count
        for thing in things:
            if not left:
                break
            if thing not in owner:
                owner[thing] = number
                left -= 1
        for _ in range(left):
            if not _augment(choices, owner, number):
                return None
    found: list[list[Thing]] = [[] for _ in choices]
    for number, (things, _) in enumerate(choices):
        found[number] = [thing for thing in things if owner.get(thing) == number]
    return found


def _augment(choices: Sequence[tuple[list[Thing], int]], owner: dict[Thing, int], number: int) -> bool:
    """Find one more thing for a need, by letting others change theirs."""
    reached: dict[Thing, int] = {}  # thing -> need from which it was reached
    through: dict[int, Thing | None] = {number: None}  # need -> its thing that it would give up
    queue = [number]
    for at in queue:
        for thing in choices[at][0]:
            if thing in reached:
                continue
            reached[thing] = at
            other = owner.get(thing)
            if other is None:
                _shift(thing, reached, through, owner)
                return True
            if other not in through:
                through[other] = thing
                queue.append(other)
    return False


def _shift(thing: Thing, reached: dict[Thing, int], through: dict[int, Thing | None], owner: dict[Thing, int]) -> None:
    at: Thing | None = thing
    while at is not None:
        taker = reached[at]
        owner[at] = taker
        at = through[taker]


def possible(units: Sequence[RequestUnit], usage: Usage) -> list[list[Device]] | None:
    """Return a matching of the units whose devices serve one request each; None if the units cannot all be served."""
    matched = matching([(each.candidates, each.need) for each in units if each.exclusive])
    if matched is None:
        return None
    special = [each for each in units if any(option.special for option in each.options)]
    if special and not (_distinct(special) and _counters(special, usage) and _shares(special, usage)):
        return None
    return matched if all(_apart(units, each.demand) for each in special if each.option.request.admin) else None


def _apart(units: Sequence[RequestUnit], demand: int) -> bool:
    """Return True if the requests of a claim, those with admin access included, could all have different devices."""
    mine = [each for each in units if each.demand == demand and all(option.whole for option in each.options)]
    return matching([(each.candidates, each.need) for each in mine]) is not None


def _distinct(units: Sequence[RequestUnit]) -> bool:
    """Return True if there are enough different values for every distinctAttribute constraint."""
    groups: dict[tuple[int, int, str], list[RequestUnit]] = {}
    for each in units:
        if len(each.options) == 1:
            for number, attribute in each.option.distinct:
                groups.setdefault((each.demand, number, attribute), []).append(each)
    return all(
        matching([({device.attributes[attribute]: None for device in each.candidates}, each.need) for each in members])
        is not None
        for (_, _, attribute), members in groups.items()
    )


def _counters(units: Sequence[RequestUnit], usage: Usage) -> bool:
    """Return True if every counter suffices for what the units take of it at least."""
    least: dict[CounterKey, int] = {}
    limits: dict[CounterKey, int] = {}
    for each in units:
        if not each.exclusive or not each.need:
            continue
        spare = len(each.candidates) - each.need  # so many devices can be avoided
        uses: dict[CounterKey, list[int]] = {}
        for device in each.candidates:
            for counter, amount in device.counters:
                uses.setdefault(counter, []).append(amount)
                limits[counter] = device.pool.counters[counter]
        for counter, amounts in uses.items():
            if len(amounts) > spare:
                amounts.sort()
                least[counter] = least.get(counter, 0) + sum(amounts[: len(amounts) - spare])
    return all(usage.counted(counter) + amount <= limits[counter] for counter, amount in least.items())


def _shares(units: Sequence[RequestUnit], usage: Usage) -> bool:
    """Return True if shared devices together have the capacity that is asked for."""
    least: dict[str, int] = {}
    devices: dict[Device, None] = {}
    for each in units:
        decided = len(each.options) == 1 and each.need and not each.option.request.admin
        if decided and all(device.multiple for device in each.candidates):
            devices.update(dict.fromkeys(each.candidates))
            for name, amount in smallest(each.option).items():
                least[name] = least.get(name, 0) + amount * each.need
    for name, amount in least.items():
        rules = [(device, device.capacity[name].value) for device in devices if name in device.capacity]
        if amount > sum(value - usage.consumed(device, name) for device, value in rules):
            return False
    return True


def smallest(chosen: Option) -> dict[str, int]:
    """Return what one share takes at least of every capacity that all candidates have."""
    if chosen.least is None:
        every = [chosen.request.takes(device) or {} for device in chosen.candidates]
        names = set[str].intersection(*(set(takes) for takes in every)) if every else set()
        chosen.least = {name: min(takes[name] for takes in every) for name in sorted(names)}
    return chosen.least
