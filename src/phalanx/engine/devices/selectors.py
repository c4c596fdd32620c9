"""CEL device selectors: compiled once per expression, evaluated once per expression and kind of device.

A selector that fails on an examined device aborts the attempt (resource/v1 CELDeviceSelector): the cached verdict of
such a device is a `SelectorFailure`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from phalanx.engine.devices.inventory import Device


class SelectorFailure(Exception):
    """An expression does not compile, or it failed on a device."""


class Selector(NamedTuple):
    """A compiled expression."""

    matches: Callable[[Device], bool]  # raises SelectorFailure
    key: Callable[[Device], Hashable | None]  # equal for devices that it cannot distinguish; None: unknown


Compiler = Callable[[str], Selector]
"""Raises SelectorFailure."""

Verdict = bool | SelectorFailure


MOST_SHARED = 10_000  # verdicts cached per expression for devices that it cannot distinguish


class DeviceSelectors:
    """Verdicts of expressions on devices. Verdicts of removed devices are dropped."""

    def __init__(self, compiler: Compiler) -> None:
        self._compile = compiler
        self._compiled: dict[str, Selector | SelectorFailure] = {}
        # Most devices of a cluster are equal: expression -> key of equal devices -> verdict.
        self._shared: dict[str, dict[Hashable, Verdict]] = {}
        self._verdicts: WeakKeyDictionary[Device, dict[str, Verdict]] = WeakKeyDictionary()  # of other devices
        self.evaluations = 0  # number so far

    def verdict(self, expression: str, device: Device) -> Verdict:
        selector = self._compiled.get(expression)
        if selector is None:
            selector = self._selector(expression)
        if isinstance(selector, SelectorFailure):
            return selector
        shared = self._shared.get(expression)
        if shared is None:
            shared = self._shared[expression] = {}
        key = selector.key(device)
        if key is not None:
            if (answer := shared.get(key)) is not None:
                return answer
            if len(shared) < MOST_SHARED:
                answer = shared[key] = self._evaluate(selector, device)
                return answer
        known = self._verdicts.get(device)
        if known is None:
            known = self._verdicts[device] = {}
        if (answer := known.get(expression)) is None:
            answer = known[expression] = self._evaluate(selector, device)
        return answer

    def problem(self, expression: str) -> SelectorFailure | None:
        """Return why an expression does not compile."""
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

    def _evaluate(self, selector: Selector, device: Device) -> Verdict:
        self.evaluations += 1
        try:
            return selector.matches(device)
        except SelectorFailure as problem:
            return SelectorFailure(f"CEL runtime error: {problem}")
