"""Tables of transitions. An illegal transition raises in tests; in production it is counted and logged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

MOST_KEPT = 100


class Transition(NamedTuple):
    """An entry of a table (state before, state after) -> transition."""

    function: Callable[..., None]  # changes what belongs to the states
    when: str  # for the state diagram in docs/architecture.md


class IllegalTransition(Exception):
    """A pod or unit was about to make a transition that is not in the table."""


class IllegalTransitions:
    """Collects illegal transitions of one engine. They are not made; each is a defect of the scheduler."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict  # raise instead
        self.count = 0
        self.recent: deque[str] = deque(maxlen=MOST_KEPT)
        self._logged = 0

    def add(self, key: str, before: Enum, after: Enum) -> None:
        """Count an illegal transition; raise if `strict`."""
        self.count += 1
        text = f"{key}: {before.name} to {after.name}"
        self.recent.append(text)
        if self.strict:
            raise IllegalTransition(text)

    def take(self) -> list[str]:
        """Return the illegal transitions since the last call, for the log."""
        fresh, self._logged = self.count - self._logged, self.count
        return list(self.recent)[-fresh:] if fresh else []

    def validate(self) -> None:
        """Fail if there was an illegal transition, and raise from now on: a validated engine is under test."""
        assert not self.count, f"illegal transitions: {list(self.recent)}"
        self.strict = True
