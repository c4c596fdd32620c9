"""CEL selectors on devices: compiled once per expression, evaluated once per expression and device.

A selector that fails on a device aborts the whole attempt if the device is looked at (resource/v1 CELDeviceSelector):
the answer about such a device is a `SelectorFailure`, kept like any other answer.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from phalanx.engine.devices.inventory import Device


class SelectorFailure(Exception):
    """An expression does not compile, or it failed on a device."""


Selector = Callable[[Device], bool]
"""Raises SelectorFailure."""

Compiler = Callable[[str], Selector]
"""Raises SelectorFailure."""

Verdict = bool | SelectorFailure


class Selectors:
    """What expressions say about devices. Devices that are gone are forgotten with their verdicts."""

    def __init__(self, compiler: Compiler) -> None:
        self._compile = compiler
        self._compiled: dict[str, Selector | SelectorFailure] = {}
        self._verdicts: WeakKeyDictionary[Device, dict[str, Verdict]] = WeakKeyDictionary()
        self.evaluations = 0  # so far

    def verdict(self, expression: str, device: Device) -> Verdict:
        known = self._verdicts.get(device)
        if known is None:
            known = self._verdicts[device] = {}
        answer = known.get(expression)
        if answer is None:
            answer = known[expression] = self._evaluate(expression, device)
        return answer

    def problem(self, expression: str) -> SelectorFailure | None:
        """Why an expression does not compile."""
        compiled = self._selector(expression)
        return compiled if isinstance(compiled, SelectorFailure) else None

    def _selector(self, expression: str) -> Selector | SelectorFailure:
        compiled = self._compiled.get(expression)
        if compiled is None:
            try:
                compiled = self._compile(expression)
            except SelectorFailure as problem:
                compiled = problem
            self._compiled[expression] = compiled
        return compiled

    def _evaluate(self, expression: str, device: Device) -> Verdict:
        selector = self._selector(expression)
        if isinstance(selector, SelectorFailure):
            return selector
        self.evaluations += 1
        try:
            return selector(device)
        except SelectorFailure as problem:
            return SelectorFailure(f"CEL runtime error: {problem}")
