"""History of each pod and group: its last events in short texts. All sizes are bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from phalanx.engine.framework.cluster_state import ClusterState

MOST_NOTES = 16  # per object: the first and the latest are kept
MOST_OBJECTS = 10_000  # the objects whose first event is the oldest are dropped first
MOST_GONE = 1_000  # of these, objects that are deleted; a new one of the same name keeps the history


class Note(NamedTuple):
    time: float  # seconds
    what: str
    detail: str  # a node, a message
    times: int = 1  # in a row


_Note = tuple[float, str, str, int]  # a Note as stored: a plain tuple takes half the memory


class History:
    def __init__(self, state: ClusterState) -> None:
        self._cluster = state
        self.notes_of: dict[
            str, list[_Note]
        ] = {}  # "ns/name" of a pod, or root key -> notes; dict order is order of first note
        self.exists: Callable[[str], bool] = lambda key: True
        self._next_sweep = 2 * MOST_GONE  # entries

    def note(self, key: str, what: str, detail: str = "") -> None:
        notes = self.notes_of.get(key)
        if notes is None:
            if len(self.notes_of) >= self._next_sweep:
                self._sweep()
            self.notes_of[key] = [(self._cluster.now, what, detail, 1)]
            return
        time, before, last_detail, times = notes[-1]
        if before == what and last_detail == detail:
            notes[-1] = (time, what, detail, times + 1)
            return
        if len(notes) >= MOST_NOTES:
            del notes[1]
        notes.append((self._cluster.now, what, detail, 1))

    def _sweep(self) -> None:
        """Drop the histories of objects that are gone for the longest time. The next sweep comes when there are twice
        as many, so that each entry costs O(1)."""
        gone = [key for key in self.notes_of if not self.exists(key)]
        for key in gone[: max(0, len(gone) - MOST_GONE)]:
            del self.notes_of[key]
        if len(self.notes_of) > MOST_OBJECTS * 7 // 8:
            for key in list(self.notes_of)[: len(self.notes_of) - MOST_OBJECTS * 7 // 8]:
                del self.notes_of[key]
        self._next_sweep = min(MOST_OBJECTS, max(2 * MOST_GONE, 2 * len(self.notes_of)))

    def follow(self, key: str, what: str, detail: str = "") -> None:
        """Add an entry only if the object has a history already."""
        if key in self.notes_of:
            self.note(key, what, detail)

    def of(self, key: str) -> list[Note]:
        return [Note(*note) for note in self.notes_of.get(key, ())]

    def forget(self, key: str) -> None:
        self.notes_of.pop(key, None)

    def __len__(self) -> int:
        return len(self.notes_of)

    def validate(self) -> None:
        assert len(self.notes_of) <= MOST_OBJECTS
        assert all(0 < len(notes) <= MOST_NOTES for notes in self.notes_of.values())
