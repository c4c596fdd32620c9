"""Device selectors in CEL, for the allocator: what an expression says about one published device."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import msgspec

from phalanx.cel.devices import DeviceValue, compile_device_selector, device_value
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import EvaluationError
from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.selectors import Selector, SelectorFailure

_values: WeakKeyDictionary[Device, DeviceValue] = WeakKeyDictionary()


def compile_selector(expression: str) -> Selector:
    """Raises SelectorFailure."""
    compiled = compile_device_selector(expression)
    if isinstance(compiled, CompileError):
        raise SelectorFailure(f"CEL compile error: {compiled}")

    def matches(device: Device) -> bool:
        try:
            return compiled.matches(_value(device))
        except EvaluationError as problem:
            raise SelectorFailure(str(problem)) from None

    return matches


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
