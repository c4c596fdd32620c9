"""Consumable capacity (KEP-5075): the part of a device's capacity that a request takes. Amounts are nano-units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from phalanx.model.objects.devices import DeviceCapacity
from phalanx.model.quantity import Format, Quantity, parse


class CapacityRule(NamedTuple):
    value: int
    default: int | None = None
    values: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    step: int | None = None
    format: Format = "DecimalSI"


def capacity_rule(capacity: DeviceCapacity) -> CapacityRule:
    """Parse a capacity with its request policy. Raises BadQuantity."""
    value = parse(capacity.value)
    policy = capacity.request_policy
    if policy is None:
        return CapacityRule(value.nanos, format=value.format)
    bounds = policy.valid_range
    return CapacityRule(
        value.nanos,
        None if policy.default is None else parse(policy.default).nanos,
        tuple(parse(each).nanos for each in policy.valid_values),
        None if bounds is None or bounds.min is None else parse(bounds.min).nanos,
        None if bounds is None or bounds.max is None else parse(bounds.max).nanos,
        None if bounds is None or bounds.step is None else parse(bounds.step).nanos,
        value.format,
    )


def consumption(rules: Mapping[str, CapacityRule], asked: Mapping[str, int]) -> dict[str, int] | None:
    """Return the amount of each capacity that a request takes on an empty device; None if the device cannot serve it.

    Without a request and a default of the policy the whole capacity is taken. A request is rounded up to an allowed
    value.
    """
    if any(name not in rules for name in asked):
        return None
    found: dict[str, int] = {}
    for name, rule in rules.items():
        taken = _taken(rule, asked.get(name))
        if taken < 0 or _forbidden(rule, taken) or taken > rule.value:
            return None
        found[name] = taken
    return found


def _taken(rule: CapacityRule, asked: int | None) -> int:
    if asked is None:
        return rule.value if rule.default is None else rule.default
    if rule.least is not None:
        if asked < rule.least:
            return rule.least
        if rule.step:
            return rule.least - (rule.least - asked) // rule.step * rule.step
        return asked
    return next((value for value in rule.values if value >= asked), asked)


def _forbidden(rule: CapacityRule, taken: int) -> bool:
    if taken == rule.default:
        return False
    if rule.least is not None or rule.most is not None or rule.step is not None:
        if rule.most is not None and taken > rule.most:
            return True
        return rule.step is not None and rule.step > 0 and (taken - (rule.least or 0)) % rule.step != 0
    return bool(rule.values) and taken not in rule.values


def written(amount: int, rule: CapacityRule) -> str:
    """Return the amount as text, in the notation of the capacity."""
    return str(Quantity(amount, rule.format))
