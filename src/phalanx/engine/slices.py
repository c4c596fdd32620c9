"""Run a computation in slices: it stops after some work and later resumes exactly where it stopped. No clock: work is
counted.

A search is deep recursion over generators, tables and trials. Turning each of its functions into a generator would
affect the whole engine and slow down its inner loops. Instead it runs on its own stack (a greenlet) and calls `worked`
where it may be interrupted. Outside a slice `worked` does nothing, so the same code also answers queries without
interruption.

A search inside a trial has pods on rows where no other scheduling unit may see them. They are removed while the search
is stopped and placed again before it resumes (`Journal.park`). If that is no longer possible, `TrialInvalidated` is
raised inside the search.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet

from phalanx.engine.state.journal import Journal, Operation, Parked

T = TypeVar("T")


class TrialInvalidated(Exception):
    """Raised in a computation if a change made while it was stopped invalidated its trials."""


class _Stack(greenlet):  # type: ignore[misc]
    left = 0  # units of work until the slice ends


def worked(amount: int = 1) -> None:
    """Count `amount` units of work (one unit is about ten microseconds); the slice may stop here."""
    stack = getcurrent()
    if type(stack) is _Stack:
        stack.left -= amount
        if stack.left < 0:
            assert stack.parent is not None
            stack.parent.switch()


def in_slices() -> bool:
    """Return True if the caller may be interrupted, in which case state that it reads may change in between."""
    return type(getcurrent()) is _Stack


class Sliced(Generic[T]):
    """Call `go_on` until it returns True; then `value` is what `run` returned. An exception of `run` is raised by
    `go_on`."""

    def __init__(self, run: Callable[[], T], journal: Journal, possible: Callable[[Operation], bool]) -> None:
        """Prepare `run`. `possible`: returns whether an operation of a trial can still be repeated unchanged."""
        self._stack = _Stack(run)
        self._journal = journal
        self._possible = possible
        self._parked: Parked | None = None
        self.value: T
        self.slices = 0
        self.work = 0

    def go_on(self, work: int) -> bool:
        stack, parked, self._parked = self._stack, self._parked, None
        stack.parent = getcurrent()
        stack.left = work
        self.slices += 1
        try:
            if parked is None or self._journal.unpark(parked, self._possible):
                value = stack.switch()
            else:
                value = self._end(parked, TrialInvalidated())
        finally:
            self.work += work - stack.left
        if not stack.dead:
            self._parked = self._journal.park()
            return False
        self.value = cast("T", value)
        return True

    def drop(self) -> None:
        """Cancel the computation and unwind its stack."""
        stack, parked, self._parked = self._stack, self._parked, None
        if stack and not stack.dead and parked is not None:
            stack.parent = getcurrent()
            self._end(parked, GreenletExit())

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the interpreter is shutting down: stacks can no longer be unwound
            self.drop()

    def _end(self, parked: Parked, problem: BaseException) -> Any:
        """Unwind the stack. Its trials are already undone, so closing their marks must not undo anything else."""
        with self._journal.emptied(parked):
            return self._stack.throw(problem)
