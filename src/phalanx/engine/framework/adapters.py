"""Adapt plain and vectorised plugins to trackers, and isolate plugins that fail.

Every call into a plugin during an evaluation goes through here or through `guarded`; an exception of a plugin becomes a
`PluginFailure` with the plugin's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework.interface import (
    MAX_SCORE,
    Bools,
    Code,
    Depends,
    Finding,
    Floats,
    NodeView,
    Rows,
    ShapeFilter,
    ShapeScore,
    Status,
)
from phalanx.engine.framework.options import PluginOptions
from phalanx.engine.framework.profile import Profile
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

# Up to this many changed rows are evaluated one by one; more are evaluated as vectors, of these rows or of all rows.
FEW_ROWS = 32
MANY_ROWS = 48  # up to this many one by one, if the plugin has no vector form for some rows


class PluginFailure(Exception):
    """Raised if a plugin raises or returns an invalid value: the attempt fails, the engine continues."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(f"plugin {plugin}: {message}")
        self.plugin = plugin


def guarded(plugin: Any, call: Any, *args: Any) -> Any:
    """Call a plugin and return its answer. Raise PluginFailure for any exception, SystemExit included: a failing plugin
    must not end the scheduler. All calls into plugins are guarded this way; signals end the process by another path."""
    try:
        return call(*args)
    except PluginFailure:
        raise
    except BaseException as problem:
        raise failure_of(plugin, problem) from problem


def failure_of(plugin: Any, problem: BaseException) -> PluginFailure:
    """Return a PluginFailure that names the exception and the line that raised it, for the author of the plugin."""
    trace, where = problem.__traceback__, ""
    while trace is not None:
        where = f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return PluginFailure(plugin.name, f"{type(problem).__name__}: {problem}{where}")


def checked(plugin: Any, method: str, answer: Any) -> Status | None:
    """Return `answer` if it is a Status or None. Otherwise raise PluginFailure with a message for the plugin's
    author."""
    if answer is None or isinstance(answer, Status):
        return answer
    raise PluginFailure(plugin.name, f"{method}() must return a Status or None, got {_describe(answer)}")


_NODE, _USAGE = int(Depends.NODE), int(Depends.USAGE)  # plain ints: flag arithmetic is slow


def relevant_rows(changes: Iterable[Change], depends: int) -> list[int]:
    """Return the distinct rows, in order, whose verdict may have changed."""
    rows: dict[int, None] = {}
    for row, record, _ in changes:
        if depends & (_NODE if record is None else _USAGE):
            rows[row] = None
    return list(rows)


class _ByRow(ABC):
    """Base of the adapters of vectorised plugins for one shape, updated row by row."""

    def __init__(self, options: PluginOptions, shape: Shape, columns: Columns) -> None:
        self.plugin = options.plugin
        self.shape = shape
        self.columns = columns
        self.depends = int(options.traits.depends)

    def start(self) -> bool:
        """Compute all rows. Return False if the plugin does not apply to the shape."""
        return self._fill()

    def rebuild(self) -> None:
        self._fill()

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        rows = relevant_rows(changes, self.depends)
        self.evaluate_rows(rows)
        return rows

    @abstractmethod
    def evaluate_rows(self, rows: Sequence[int]) -> None:
        """Evaluate these rows again."""

    @abstractmethod
    def _fill(self) -> bool: ...


class RowFilter(_ByRow):
    """Adapt a vectorised filter for one shape."""

    def __init__(self, options: PluginOptions, shape: Shape, columns: Columns) -> None:
        super().__init__(options, shape, columns)
        self.row_verdict = options.mask_row
        self.rows_verdict = options.mask_rows
        self.mask: Bools = np.zeros(0, dtype=np.bool_)

    def _fill(self) -> bool:
        """Ask the plugin for its mask; False: it allows every node."""
        n = self.columns.n
        verdict = self.plugin.mask(self.shape, self.columns)
        mask = np.zeros(self.columns.capacity, dtype=np.bool_)
        if verdict is None:
            mask[:n] = True
            self.mask = mask
            return False
        if not isinstance(verdict, np.ndarray) or verdict.dtype != np.bool_ or verdict.shape != (n,):
            raise PluginFailure(self.plugin.name, f"mask() must return {n} booleans, got {_describe(verdict)}")
        mask[:n] = verdict
        self.mask = mask
        return True

    def evaluate_rows(self, rows: Sequence[int]) -> None:
        verdict, count = self.row_verdict, len(rows)
        if verdict is not None and (count <= FEW_ROWS or (count <= MANY_ROWS and self.rows_verdict is None)):
            for row in rows:
                self.mask[row] = bool(verdict(self.shape, self.columns, row))
        elif self.rows_verdict is not None and count * 4 < self.columns.n:
            at = np.array(rows)
            self.mask[at] = self.rows_verdict(self.shape, self.columns, at)
        else:
            self._fill()

    def explain(self, rows: Rows) -> Sequence[Finding]:
        findings: Sequence[Finding] = self.plugin.explain(self.shape, self.columns, rows)
        return findings

    def verdict(self, row: int) -> bool:
        """Return the current verdict for one row, without changing the mask."""
        if self.row_verdict is not None:
            return bool(self.row_verdict(self.shape, self.columns, row))
        verdict = self.plugin.mask(self.shape, self.columns)
        return verdict is None or bool(verdict[row])


class PlainFilter:
    """Adapt a per-node filter for one shape."""

    def __init__(self, plugin: Any, shape: Shape, columns: Columns) -> None:
        self.plugin = plugin
        self.shape = shape
        self.columns = columns
        self.mask: Bools = np.zeros(0, dtype=np.bool_)

    def rebuild(self) -> None:
        columns = self.columns
        self.mask = np.zeros(columns.capacity, dtype=np.bool_)
        for row in np.flatnonzero(columns.alive[: columns.n]):
            self.mask[row] = self.verdict(int(row))

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        rows = relevant_rows(changes, _NODE | _USAGE)
        for row in rows:
            self.mask[row] = self.columns.nodes[row] is not None and self.verdict(row)
        return rows

    def affects_other_nodes(self, record: PodRecord) -> bool:
        return False  # each node is evaluated on its own, and again only when it or its pods change

    def verdict(self, row: int) -> bool:
        if self.columns.nodes[row] is None:
            return False
        status = checked(self.plugin, "filter", self.plugin.filter(self.shape, NodeView(self.columns, row)))
        if status is None or status.code is Code.SUCCESS:
            return True
        if not status.rejected:
            raise PluginFailure(self.plugin.name, status.message or f"filter() answered {status.code.name}")
        return False

    def explain(self, rows: Rows) -> Sequence[Finding]:
        found: dict[tuple[str, bool], list[int]] = {}
        for row in rows:
            status = self.plugin.filter(self.shape, NodeView(self.columns, int(row)))
            for reason in status.reasons if status is not None else ():
                found.setdefault((reason, status.code is Code.UNRESOLVABLE), []).append(int(row))
        return [Finding(np.array(at), reason, unresolvable) for (reason, unresolvable), at in found.items()]


class RowScore(_ByRow):
    """Adapt a vectorised score for one shape."""

    def __init__(self, options: PluginOptions, shape: Shape, columns: Columns) -> None:
        super().__init__(options, shape, columns)
        self.row_score = options.score_row
        self.rows_score = options.score_rows
        self.bounded = options.normaliser is None  # must be 0..100 because there is no normaliser
        self.raw: Floats = np.zeros(0)

    def _fill(self) -> bool:
        """Ask the plugin for its scores; False: it has none."""
        columns = self.columns
        raw = np.zeros(columns.capacity)
        scores = self.plugin.scores(self.shape, columns)
        self.raw = raw
        if scores is None:
            return False
        if not isinstance(scores, np.ndarray) or scores.shape != (columns.n,):
            raise PluginFailure(self.plugin.name, f"scores() must return {columns.n} numbers, got {_describe(scores)}")
        raw[: columns.n] = scores
        if columns.count < columns.n:
            raw[: columns.n][~columns.alive[: columns.n]] = 0.0
        low, high = (float(scores.min()), float(scores.max())) if columns.count == columns.n > 0 else _range(raw)
        if not (low > -np.inf and high < np.inf):  # also when NaN
            raise PluginFailure(self.plugin.name, "scores() returned a score that is not a finite number")
        if self.bounded and (low < 0 or high > MAX_SCORE):
            raise PluginFailure(self.plugin.name, f"scores() returned a score outside 0..{MAX_SCORE}")
        return True

    def evaluate_rows(self, rows: Sequence[int]) -> None:
        score, count = self.row_score, len(rows)
        if score is not None and (count <= FEW_ROWS or (count <= MANY_ROWS and self.rows_score is None)):
            for row in rows:
                value = float(score(self.shape, self.columns, row))
                if self.bounded and not 0.0 <= value <= MAX_SCORE:
                    raise PluginFailure(self.plugin.name, f"score_row() returned {value}, outside 0..{MAX_SCORE}")
                self.raw[row] = value
        elif self.rows_score is not None and count * 4 < self.columns.n:
            at = np.array(rows)
            values = self.rows_score(self.shape, self.columns, at)
            if self.bounded and not (values.min() >= 0 and values.max() <= MAX_SCORE):
                raise PluginFailure(self.plugin.name, f"score_rows() returned a score outside 0..{MAX_SCORE}")
            self.raw[at] = values
        else:
            self._fill()


class PlainScore:
    """Adapt a per-node score for one shape."""

    def __init__(self, options: PluginOptions, shape: Shape, columns: Columns) -> None:
        self.plugin = options.plugin
        self.shape = shape
        self.columns = columns
        self.bounded = options.normaliser is None
        self.raw: Floats = np.zeros(0)

    def rebuild(self) -> None:
        self.raw = np.zeros(self.columns.capacity)
        for row in np.flatnonzero(self.columns.alive[: self.columns.n]):
            self._evaluate_row(int(row))

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        rows = relevant_rows(changes, _NODE | _USAGE)
        for row in rows:
            self._evaluate_row(row)
        return rows

    def _evaluate_row(self, row: int) -> None:
        if self.columns.nodes[row] is None:
            self.raw[row] = 0.0
            return
        value = float(self.plugin.score(self.shape, NodeView(self.columns, row)))
        if not np.isfinite(value) or (self.bounded and not 0.0 <= value <= MAX_SCORE):
            raise PluginFailure(self.plugin.name, f"score() returned {value}, outside 0..{MAX_SCORE}")
        self.raw[row] = value


def _range(raw: Floats) -> tuple[float, float]:
    return (float(raw.min()), float(raw.max())) if len(raw) else (0.0, 0.0)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return type(value).__name__


def make_filter(options: PluginOptions, shape: Shape, columns: Columns) -> ShapeFilter | None:
    """Return an up-to-date tracker, or None if the plugin does not apply to this shape."""
    way = options.filter_method
    if way == "track":
        tracker: ShapeFilter | None = options.plugin.track(shape, columns)
        if tracker is not None:
            tracker.rebuild()
        return tracker
    if way == "mask":
        row_filter = RowFilter(options, shape, columns)
        return row_filter if row_filter.start() else None
    if way == "filter":
        plain = PlainFilter(options.plugin, shape, columns)
        plain.rebuild()
        return plain
    return None


def make_score(options: PluginOptions, shape: Shape, columns: Columns) -> ShapeScore | None:
    way = options.score_method
    if way == "track_score":
        tracker: ShapeScore | None = options.plugin.track_score(shape, columns)
        if tracker is not None:
            tracker.rebuild()
        return tracker
    if way == "scores":
        row_score = RowScore(options, shape, columns)
        return row_score if row_score.start() else None
    if way == "score":
        plain = PlainScore(options, shape, columns)
        plain.rebuild()
        return plain
    return None


class ByMax:
    """Normalise to 100 * raw / max; all 0 when the maximum is 0. `reverse`: 100 minus that (all 100 when the maximum is
    0)."""

    def __init__(self, *, reverse: bool = False) -> None:
        self.reverse = reverse

    def bounds(self, raw: Floats) -> tuple[float, float]:
        return 0.0, float(raw.max())

    def scale(self, raw: Any, low: float, high: float) -> Any:
        scaled = np.floor(raw * MAX_SCORE / high) if high > 0 else raw * 0.0
        return MAX_SCORE - scaled if self.reverse else scaled


def allows(profile: Profile, shape: Shape, columns: Columns, row: int) -> bool:
    """Return True if every row-local filter accepts a row in its current state; tracking filters count as accepting.
    Used for wake-ups: it needs no evaluation and never returns False wrongly."""
    if not columns.alive[row]:
        return False
    for plugin in profile.row_filters:
        options = profile.options[plugin.name]
        try:
            if options.mask_row is not None:
                if not options.mask_row(shape, columns, row):
                    return False
            elif options.filter_method == "mask":
                if not RowFilter(options, shape, columns).verdict(row):
                    return False
            elif not PlainFilter(plugin, shape, columns).verdict(row):
                return False
        except BaseException:
            return True  # the attempt will fail with the plugin's name in the message
    return True
