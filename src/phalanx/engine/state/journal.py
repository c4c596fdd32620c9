"""Provide the journal (undo of trials) and the change log (which rows must be evaluated again).

A trial is `mark → change → rewind` and costs as much as it changed. The change log only grows: a rewind appends the
inverse changes, so readers of the log need not know about trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from phalanx.engine.state.records import PodRecord

# (row, record, sign): +1 the pod was placed on the row, -1 removed from it; record None and sign 0: the node itself was
# added, changed or removed.
Change = tuple[int, "PodRecord | None", int]


T = TypeVar("T")


class ChangeLog(Generic[T]):
    """Keep the latest changes in order. Readers remember a position and ask for the changes after it."""

    __slots__ = ("_base", "_entries", "keep")

    def __init__(self, keep: int = 16_384) -> None:
        self._base = 0
        self._entries: list[T] = []
        self.keep = keep

    @property
    def position(self) -> int:
        return self._base + len(self._entries)

    def append(self, change: T) -> None:
        self._entries.append(change)
        if len(self._entries) > 2 * self.keep:
            self._trim()

    def extend(self, changes: Sequence[T]) -> None:
        self._entries += changes
        if len(self._entries) > 2 * self.keep:
            self._trim()

    def _trim(self) -> None:
        drop = len(self._entries) - self.keep
        del self._entries[:drop]
        self._base += drop

    def since(self, position: int) -> Sequence[T] | None:
        """Return the changes after `position`, or None if they are no longer kept and the reader must start over."""
        if position < self._base:
            return None
        return self._entries[position - self._base :]


Operation = tuple[Callable[..., Any], tuple[Any, ...]]


class Parked(NamedTuple):
    """Trials that are undone temporarily."""

    marks: list[int]
    redo: list[Operation]  # in the order in which they were done


class Journal:
    """Record inverse operations of the changes since the oldest open mark. Nothing is recorded outside trials."""

    __slots__ = ("_marks", "_undo", "parks")

    def __init__(self) -> None:
        self._undo: list[Operation] = []
        self._marks: list[int] = []
        self.parks = 0  # number of times trials were interrupted

    @property
    def recording(self) -> bool:
        return bool(self._marks)

    def push(self, undo: Callable[..., Any], *args: Any) -> None:
        """Record how to undo a change that has just been made. Called by the columns, and by plugins for their own
        state. Ignored outside trials."""
        if self._marks:
            self._undo.append((undo, args))

    def mark(self) -> int:
        """Open a trial. Trials nest; marks close in reverse order."""
        self._marks.append(len(self._undo))
        return len(self._marks)

    def rewind(self, mark: int) -> None:
        """Undo every change since `mark` and close it, with every mark opened after it."""
        self._check(mark)
        floor = self._marks[mark - 1]
        # Undo calls the same operations; closing the marks first prevents recording them again.
        undo = self._undo[floor:]
        del self._undo[floor:]
        outer = self._marks[: mark - 1]
        self._marks = []
        for operation, args in reversed(undo):
            operation(*args)
        self._marks = outer

    def release(self, mark: int) -> None:
        """Keep the changes since `mark` and close it. An outer mark can still undo them."""
        self._check(mark)
        del self._marks[mark - 1 :]
        if not self._marks:
            self._undo.clear()

    # ---- trials that are interrupted

    def park(self) -> Parked:
        """Undo all open trials, to repeat them later. Only for operations that push their own inverse, as those of the
        columns do."""
        undo, marks = self._undo, self._marks
        self._undo, self._marks = [], [0]
        self.parks += 1
        for operation, args in reversed(undo):
            operation(*args)
        redo = self._undo[::-1]
        assert len(redo) == len(undo), "an operation that cannot be done again was interrupted"
        self._undo, self._marks = [], []
        return Parked(marks, redo)

    def unpark(self, parked: Parked, possible: Callable[[Operation], bool]) -> bool:
        """Repeat the parked trials with the same marks. Return False, and change nothing, if that is no longer
        possible."""
        assert not self._marks, "another trial is open"
        self._undo, self._marks = [], [0]
        for each in parked.redo:
            if not possible(each):
                self.rewind(1)
                return False
            operation, args = each
            operation(*args)
        self._marks = parked.marks
        return True

    @contextmanager
    def emptied(self, parked: Parked) -> Iterator[None]:
        """Open the marks of parked trials without any operations in them, while their computation is unwound."""
        kept = self._undo, self._marks
        self._undo, self._marks = [], parked.marks
        try:
            yield
        finally:
            self._undo, self._marks = kept

    def _check(self, mark: int) -> None:
        if not 1 <= mark <= len(self._marks):
            raise ValueError(f"journal mark {mark} is not open ({len(self._marks)} are)")
