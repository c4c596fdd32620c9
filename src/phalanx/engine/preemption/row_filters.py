"""Some filters of a shape, asked about one row as it is in a trial, without a look at the others where that will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.engine.framework.adapters import RowFilter
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.traits import traits_of

Filters = Sequence[tuple[Any, Any]]  # plugins and what they say of a shape


class RowFilters:
    def __init__(self, evaluation: Evaluation, filters: Filters) -> None:
        self.evaluation = evaluation
        self._rows = [tracker for _, tracker in filters if isinstance(tracker, RowFilter)]
        self._beyond = [(plugin, tracker) for plugin, tracker in filters if not isinstance(tracker, RowFilter)]
        self._asked = [tracker for _, tracker in self._beyond]

    def approach(self, row: int) -> bool:
        """Before a trial that only takes pods away: what says yes now, and is never worse off with fewer pods, is not
        asked again. Answers whether anything is left that looks beyond the row."""
        self.evaluation.refresh()
        self._asked = [
            tracker for plugin, tracker in self._beyond if not (tracker.mask[row] and self._relieved(plugin))
        ]
        return bool(self._asked)

    def _relieved(self, plugin: Any) -> bool:
        """Whoever wants company may lose it."""
        return traits_of(plugin).relieved and self.evaluation.shape.affinity is None

    @property
    def monotone(self) -> bool:
        """Whether a row that is shut with everybody gone is shut whoever goes."""
        return all(self._relieved(plugin) for plugin, _ in self._beyond)

    def shut(self, row: int) -> bool:
        """By what only those on the row can change."""
        return not all(tracker.verdict(row) for tracker in self._rows)

    def passes(self, row: int) -> bool:
        if self.shut(row):
            return False
        if self._asked:
            self.evaluation.refresh()
        return all(bool(tracker.mask[row]) for tracker in self._asked)

    def hindered_beyond(self, row: int) -> bool:
        """Whether a filter that others elsewhere could change says no; of an evaluation that is up to date."""
        return not all(bool(tracker.mask[row]) for _, tracker in self._beyond)
