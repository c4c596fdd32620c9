"""A computation that stops after some work and goes on later exactly where it stopped. No clock: work is counted.

A search is deep recursion over generators, tables and trials. Making every function of it a generator would colour the
whole engine and slow down its inner loops; instead it runs on a stack of its own (a greenlet), and calls `worked` where
it may be interrupted. Outside a slice `worked` does nothing, so the same code answers questions in one go.

A search inside a trial has pods on rows where no other unit may see them: they are taken off while it is stopped, and
put back before it goes on (`Journal.park`). If that is no longer possible, `Disturbed` is raised inside the search.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from greenlet import GreenletExit, getcurrent, greenlet

from phalanx.engine.state.journal import Journal, Operation, Parked

T = TypeVar("T")


class Disturbed(Exception):
    """What happened while the computation was stopped took away what it stood on."""


class _Stack(greenlet):  # type: ignore[misc]
    left = 0  # work until the slice is over


def worked(amount: int = 1) -> None:
    """So much was done (one unit is about ten microseconds); here is a place to stop."""
    stack = getcurrent()
    if type(stack) is _Stack:
        stack.left -= amount
        if stack.left < 0:
            assert stack.parent is not None
            stack.parent.switch()


def in_slices() -> bool:
    """Whether the caller may be interrupted: what it borrows may then change under its hands."""
    return type(getcurrent()) is _Stack


class Sliced(Generic[T]):
    """`go_on` until it says True; then `value` is what `run` returned. What `run` raises, `go_on` raises."""

    def __init__(self, run: Callable[[], T], journal: Journal, possible: Callable[[Operation], bool]) -> None:
        """`possible`: whether an operation of a trial can still be done as it was."""
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
                value = self._end(parked, Disturbed())
        finally:
            self.work += work - stack.left
        if not stack.dead:
            self._parked = self._journal.park()
            return False
        self.value = cast("T", value)
        return True

    def drop(self) -> None:
        """Nobody wants the answer any more."""
        stack, parked, self._parked = self._stack, self._parked, None
        if stack and not stack.dead and parked is not None:
            stack.parent = getcurrent()
            self._end(parked, GreenletExit())

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the interpreter ends: stacks cannot be unwound any more
            self.drop()

    def _end(self, parked: Parked, problem: BaseException) -> Any:
        """Unwind the stack. Its trials are taken back already: closing their marks must not undo anything else."""
        with self._journal.emptied(parked):
            return self._stack.throw(problem)
