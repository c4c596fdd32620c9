"""Evaluate CEL device selectors on published devices, for the allocator."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import msgspec

from phalanx.cel.devices import DeviceValue, compile_device_selector, device_value
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import EvaluationError
from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.selectors import Selector, SelectorFailure

_GUARD = (
    ". consider using CEL optional chaining (.? followed by orValue())"
    " or guarding the check with has() for optional fields"
)
_values: WeakKeyDictionary[Device, DeviceValue] = WeakKeyDictionary()


def compile_selector(expression: str) -> Selector:
    """Compile a device selector. Raises SelectorFailure."""
    compiled = compile_device_selector(expression)
    if isinstance(compiled, CompileError):
        raise SelectorFailure(f"CEL compile error: {compiled}")

    def matches(device: Device) -> bool:
        try:
            return compiled.matches(_value(device))
        except EvaluationError as problem:
            advice = _GUARD if "no such key:" in str(problem) else ""
            raise SelectorFailure(f"{problem}{advice}") from None

    return Selector(matches, _equality_key(compiled.reads))


def _equality_key(reads: frozenset[str] | None) -> Callable[[Device], Hashable | None]:
    """Return a function with equal values for devices that an expression cannot distinguish; None: unknown.

    An invalid version or capacity fails every expression, so all of them are part of the key.
    """
    names = sorted(reads) if reads is not None else []

    def key(device: Device) -> Hashable | None:
        if reads is None:
            return None
        attributes = device.attributes
        versions = tuple([item for item in attributes.items() if item[1][0] in ("version", "")])
        amounts = tuple([(name, each.value) for name, each in device.source.capacity.items()])
        return device.driver, device.multiple, tuple([attributes.get(name) for name in names]), versions, amounts

    return key


def _value(device: Device) -> DeviceValue:
    known = _values.get(device)
    if known is None:
        source = device.source
        known = _values[device] = device_value(
            device.driver,
            msgspec.to_builtins(source.attributes),
            {name: {"value": each.value} for name, each in source.capacity.items()},
            source.allow_multiple_allocations,
        )
    return known
