"""Trackers that count pods by label: told of those that came and went, made anew where that is not the whole story."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from phalanx.engine.plugins.pod_index import Watch
from phalanx.engine.state.journal import Change
from phalanx.engine.state.labels import LabelColumn
from phalanx.engine.state.records import PodRecord

T = TypeVar("T")  # what a class of pods or a set of rules means to the tracker
News = Sequence[tuple[T, int, int]]  # (meaning, row, sign) of every pod that came or went


class PodTracker(ABC, Generic[T]):
    def __init__(self, watch: Watch[T]) -> None:
        self._watch = watch
        self._key_versions: list[tuple[LabelColumn, int]] = []  # columns of topology keys, as they were

    @abstractmethod
    def rebuild(self) -> None: ...

    def affects_other_nodes(self, record: PodRecord) -> bool:
        return self._watch.affects_other_nodes(record)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        if not self._stale(changes):
            news = self._news()
            if news is not None:
                return self._heard(news)
        self.rebuild()
        return None

    def _news(self) -> News[T] | None:
        return self._watch.news()

    @abstractmethod
    def _heard(self, news: News[T]) -> Sequence[int] | None:
        """Rows whose verdict may be another one now; None: any."""

    def _stale(self, changes: Sequence[Change]) -> bool:
        """More has happened than pods coming and going."""
        return any(column.version != version for column, version in self._key_versions)
