"""Cache evaluations by shape with least-recently-used eviction: their arrays are as long as the number of nodes."""

from __future__ import annotations

from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.profile import Profile
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.shapes import Shape

BUDGET = 160 * 1024 * 1024  # bytes, approximately
FEW_WAITING = 64  # up to this many evaluations of unschedulable shapes are kept
_PER_ROW = 80  # bytes per row and evaluation: a few float64 and bool columns


class Evaluations:
    def __init__(self, columns: Columns, objects: Objects) -> None:
        self._columns = columns
        self._objects = objects
        self._known: dict[Shape, Evaluation] = {}
        self.made = 0  # number of evaluations created so far

    def of(self, shape: Shape, profile: Profile) -> Evaluation:
        """Return the evaluation of a shape, not yet refreshed."""
        known = self._known
        evaluation = known.pop(shape, None)
        if evaluation is None:
            limit = max(16, BUDGET // (_PER_ROW * self._columns.capacity))
            while len(known) >= limit:
                del known[next(iter(known))]
            evaluation = Evaluation(shape, profile, self._columns, self._objects)
            self.made += 1
        known[shape] = evaluation  # dict order is the order of use
        return evaluation

    def rest(self, shape: Shape) -> None:
        """Drop the evaluation of an unschedulable shape if many are cached: most are not retried soon."""
        if len(self._known) > FEW_WAITING:
            self._known.pop(shape, None)

    def quiet(self, shape: Shape) -> bool:
        """Return True if pods of the shape neither affect nor depend on pods on other rows."""
        evaluation = self._known.get(shape)
        return evaluation is not None and not evaluation.reaches_beyond

    def forget(self, shape: Shape) -> None:
        self._known.pop(shape, None)

    def clear(self) -> None:
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)
