"""Evaluations by shape, the least recently used forgotten first: their arrays are as long as the cluster is large."""

from __future__ import annotations

from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.profile import Profile
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.shapes import Shape

BUDGET = 160 * 1024 * 1024  # bytes, roughly
FEW_ASLEEP = 64  # so many are kept although they may not be needed soon
_PER_ROW = 80  # bytes per row and evaluation: a few float64 and bool columns


class Evaluations:
    def __init__(self, columns: Columns, objects: Objects) -> None:
        self._columns = columns
        self._objects = objects
        self._known: dict[Shape, Evaluation] = {}
        self.made = 0  # so far

    def of(self, shape: Shape, profile: Profile) -> Evaluation:
        """The evaluation of a shape, not yet refreshed."""
        known = self._known
        evaluation = known.pop(shape, None)
        if evaluation is None:
            limit = max(16, BUDGET // (_PER_ROW * self._columns.capacity))
            while len(known) >= limit:
                del known[next(iter(known))]
            evaluation = Evaluation(shape, profile, self._columns, self._objects)
            self.made += 1
        known[shape] = evaluation  # dict order is order of use
        return evaluation

    def rest(self, shape: Shape) -> None:
        """Its pods sleep: one of many need not be kept, since most never wake."""
        if len(self._known) > FEW_ASLEEP:
            self._known.pop(shape, None)

    def quiet(self, shape: Shape) -> bool:
        """Known to say nothing about pods on other rows, and nothing that they could change."""
        evaluation = self._known.get(shape)
        return evaluation is not None and not evaluation.reaches_beyond

    def forget(self, shape: Shape) -> None:
        self._known.pop(shape, None)

    def clear(self) -> None:
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)
