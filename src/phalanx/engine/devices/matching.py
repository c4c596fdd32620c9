"""Necessary conditions for an allocation: can all requests have devices, by each rule alone.

Without counters, shares and distinct attributes they are also sufficient: they give a matching of requests with
different devices. They let a search fail or succeed early.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from phalanx.engine.devices.inventory import CounterKey, Device
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.selectors import SelectorFailure

Item = TypeVar("Item", bound=Hashable)


class Usage(Protocol):
    """Devices and counters in use."""

    def in_use(self, device: Device) -> bool:
        """Return True if a claim holds the whole device."""
        ...

    def shared(self, device: Device) -> bool:
        """Return True if a claim holds a part of the device."""
        ...

    def consumed(self, device: Device, capacity: str) -> int: ...

    def counted(self, counter: CounterKey) -> int: ...


class Option(msgspec.Struct, eq=False):
    """A request, or one alternative of it, with its candidate devices."""

    request: AllocationRequest
    candidates: list[Device]
    need: int
    match: tuple[int, ...] = ()  # its claim's matchAttribute constraints on it, by number
    distinct: tuple[tuple[int, str], ...] = ()  # distinctAttribute constraints: number and attribute
    failure: SelectorFailure | None = None  # a selector failed before enough devices were found
    exclusive: bool = False  # each candidate serves one request at a time
    whole: bool = False  # no candidate serves one claim twice
    least: dict[str, int] | None = None  # smallest share of each capacity, cached
    special: bool = False  # a matching is not sufficient: admin access, counters, shares, distinct attributes


class RequestUnit(msgspec.Struct, eq=False):
    """One request of one claim: its remaining options and their common lower bound."""

    demand: int
    options: list[Option]
    candidates: list[Device]
    need: int
    exclusive: bool

    @property
    def option(self) -> Option:
        """Return the first option: the chosen one if only one remains."""
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
    """Return the unit for these options. If a selector fails, the needs are unknown: 0."""
    if len(options) == 1:
        only = options[0]
        return RequestUnit(demand, options, only.candidates, only.need, only.exclusive)
    if any(each.failure is not None for each in options):
        return RequestUnit(demand, options, [], 0, True)
    union = list(dict.fromkeys(device for each in options for device in each.candidates))
    return RequestUnit(
        demand, options, union, min(each.need for each in options), all(each.exclusive for each in options)
    )


def matching(needs: Sequence[tuple[Iterable[Item], int]]) -> list[list[Item]] | None:
    """Assign to every need the requested number of its things, each thing once; None if impossible.

    Earlier needs and earlier things have preference; an assignment changes only if another need has no other choice.
    """
    choices = [(list(things), count) for things, count in needs]
    owner: dict[Item, int] = {}
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
    found: list[list[Item]] = [[] for _ in choices]
    for number, (things, _) in enumerate(choices):
        found[number] = [thing for thing in things if owner.get(thing) == number]
    return found


def _augment(choices: Sequence[tuple[list[Item], int]], owner: dict[Item, int], number: int) -> bool:
    """Find one more thing for a need along an augmenting path."""
    reached: dict[Item, int] = {}  # thing -> need it was reached from
    through: dict[int, Item | None] = {number: None}  # need -> its thing that it would give up
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


def _shift(thing: Item, reached: dict[Item, int], through: dict[int, Item | None], owner: dict[Item, int]) -> None:
    at: Item | None = thing
    while at is not None:
        taker = reached[at]
        owner[at] = taker
        at = through[taker]


def possible(units: Sequence[RequestUnit], usage: Usage) -> list[list[Device]] | None:
    """Return a matching of the units whose devices serve only one request; None if not all units can be served."""
    matched = matching([(each.candidates, each.need) for each in units if each.exclusive])
    if matched is None:
        return None
    special = [each for each in units if any(option.special for option in each.options)]
    if special and not (_distinct(special) and _counters(special, usage) and _shares(special, usage)):
        return None
    return matched if all(_apart(units, each.demand) for each in special if each.option.request.admin) else None


def _apart(units: Sequence[RequestUnit], demand: int) -> bool:
    """Return True if all requests of a claim, including admin access, can have different devices."""
    mine = [each for each in units if each.demand == demand and all(option.whole for option in each.options)]
    return matching([(each.candidates, each.need) for each in mine]) is not None


def _distinct(units: Sequence[RequestUnit]) -> bool:
    """Return True if every distinctAttribute constraint has enough different values."""
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
    """Return True if every counter covers the lower bound of all units."""
    least: dict[CounterKey, int] = {}
    limits: dict[CounterKey, int] = {}
    for each in units:
        if not each.exclusive or not each.need:
            continue
        spare = len(each.candidates) - each.need  # number of candidates that can be avoided
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
    """Return True if shared devices together have the requested capacity."""
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
    """Return the minimum of every capacity that all candidates have, for one share."""
    if chosen.least is None:
        every = [chosen.request.takes(device) or {} for device in chosen.candidates]
        names = set[str].intersection(*(set(takes) for takes in every)) if every else set()
        chosen.least = {name: min(takes[name] for takes in every) for name in sorted(names)}
    return chosen.least
