"""Run filters of a shape on one row during a trial, without evaluating other rows where possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.engine.framework.adapters import RowFilter
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.traits import traits_of

Filters = Sequence[tuple[Any, Any]]  # (plugin, its tracker for a shape)


class RowFilters:
    def __init__(self, evaluation: Evaluation, filters: Filters) -> None:
        self.evaluation = evaluation
        self._rows = [tracker for _, tracker in filters if isinstance(tracker, RowFilter)]
        self._beyond = [(plugin, tracker) for plugin, tracker in filters if not isinstance(tracker, RowFilter)]
        self._asked = [tracker for _, tracker in self._beyond]

    def approach(self, row: int) -> bool:
        """Prepare a trial that only removes pods.

        A filter that passes now and cannot fail with fewer pods is not run again. Return True if filters remain that
        depend on other rows.
        """
        self.evaluation.refresh()
        self._asked = [
            tracker for plugin, tracker in self._beyond if not (tracker.mask[row] and self._relieved(plugin))
        ]
        return bool(self._asked)

    def _relieved(self, plugin: Any) -> bool:
        """Return True if removing pods cannot make the filter fail. Required pod affinity can lose its match."""
        return traits_of(plugin).relieved and self.evaluation.shape.affinity is None

    @property
    def monotone(self) -> bool:
        """Return True if a row that fails with all candidates evicted fails for every victim set."""
        return all(self._relieved(plugin) for plugin, _ in self._beyond)

    def rejects(self, row: int) -> bool:
        """Return True if a filter that depends on this row alone fails."""
        return not all(tracker.verdict(row) for tracker in self._rows)

    def passes(self, row: int) -> bool:
        if self.rejects(row):
            return False
        if self._asked:
            self.evaluation.refresh()
        return all(bool(tracker.mask[row]) for tracker in self._asked)

    def fails_because_of_other_rows(self, row: int) -> bool:
        """Return True if a filter that depends on other rows fails. The evaluation must be up to date."""
        return not all(bool(tracker.mask[row]) for _, tracker in self._beyond)
