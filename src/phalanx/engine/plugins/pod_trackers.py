"""Base of trackers that count pods by label: updated with added and removed pods, rebuilt after any other change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from phalanx.engine.plugins.pod_index import TrackerWatch
from phalanx.engine.state.journal import Change
from phalanx.engine.state.labels import LabelColumn
from phalanx.engine.state.records import PodRecord

T = TypeVar("T")  # meaning of a label class or rule set for the tracker
Updates = Sequence[tuple[T, int, int]]  # (meaning, row, sign) of every added or removed pod


class PodTracker(ABC, Generic[T]):
    def __init__(self, watch: TrackerWatch[T]) -> None:
        self._watch = watch
        self._key_versions: list[tuple[LabelColumn, int]] = []  # columns of topology keys and their last version

    @abstractmethod
    def rebuild(self) -> None: ...

    def affects_other_nodes(self, record: PodRecord) -> bool:
        return self._watch.affects_other_nodes(record)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        if not self._stale(changes):
            updates = self._updates()
            if updates is not None:
                return self._apply_updates(updates)
        self.rebuild()
        return None

    def _updates(self) -> Updates[T] | None:
        return self._watch.updates()

    @abstractmethod
    def _apply_updates(self, updates: Updates[T]) -> Sequence[int] | None:
        """Apply the changes; return the rows whose verdict may have changed; None: any row."""

    def _stale(self, changes: Sequence[Change]) -> bool:
        """Return True if more changed than the set of placed pods."""
        return any(column.version != version for column, version in self._key_versions)
