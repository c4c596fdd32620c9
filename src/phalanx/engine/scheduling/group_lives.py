"""The life of a group root: its state, the transitions there are, and what is told to its story."""

from __future__ import annotations

import enum
from collections import deque

from phalanx.engine.scheduling.stories import Stories


class GroupState(enum.StrEnum):  # texts: hashing another enum is slow
    HELD = "held"  # objects or members are missing, or gates are closed
    QUEUED = "queued"  # may be tried; where it is in the queue is the queue's business
    EVICTING = "evicting"  # tried, and room is being made
    COMMITTING = "committing"  # members are on nodes by our decision, not all binds are answered
    SCHEDULED = "scheduled"  # the binds that make its minimum are confirmed


HELD, QUEUED, EVICTING = GroupState.HELD, GroupState.QUEUED, GroupState.EVICTING
COMMITTING, SCHEDULED = GroupState.COMMITTING, GroupState.SCHEDULED

TRANSITIONS: dict[GroupState | None, frozenset[GroupState]] = {
    None: frozenset({HELD, QUEUED, SCHEDULED}),
    HELD: frozenset({QUEUED, SCHEDULED}),
    QUEUED: frozenset({HELD, EVICTING, COMMITTING, SCHEDULED}),
    EVICTING: frozenset({QUEUED, HELD, COMMITTING, SCHEDULED}),
    # Back to the queue: a bind failed, or members beyond the minimum wait.
    COMMITTING: frozenset({SCHEDULED, QUEUED, HELD, EVICTING}),
    # A gang that lost members, or got more, is tried again.
    SCHEDULED: frozenset({QUEUED, HELD}),
}


class GroupLives:
    def __init__(self, stories: Stories) -> None:
        self._stories = stories
        self.states: dict[str, GroupState] = {}  # by root key
        self.impossible: deque[str] = deque(maxlen=100)  # transitions that are not in the table: our own mistakes

    def to(self, root: str, state: GroupState, detail: str = "") -> None:
        """The only way a state changes."""
        before = self.states.get(root)
        if before is state:
            if detail:
                self._stories.follow(root, state.value, detail)
            return
        if state not in TRANSITIONS[before]:
            self.impossible.append(f"{root}: {before.value if before else 'nothing'} to {state.value}")
        self.states[root] = state
        if state is HELD or state is EVICTING:
            self._stories.note(root, state.value, detail)
        else:  # most gangs are placed at once and need no story
            self._stories.follow(root, state.value, detail)

    def tell(self, root: str, what: str, detail: str) -> None:
        """Something happened that does not change its state."""
        self._stories.note(root, what, detail)

    def of(self, root: str) -> GroupState | None:
        return self.states.get(root)

    def forget(self, root: str) -> None:
        """Its objects and pods are gone; the story stays, as long as there is room for it."""
        self.states.pop(root, None)
