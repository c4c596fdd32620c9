"""Define the optional parts of a plugin: one protocol each, resolved once when a profile is created.

A plugin that has one of these methods need not declare it elsewhere. `options_of` is the only place that checks which
it has; the rest of the engine reads `PluginOptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from phalanx.engine.decisions import Decision
from phalanx.engine.events import Outcome
from phalanx.engine.framework import interface as fw
from phalanx.engine.framework.interface import Bools, ClusterChange, Floats, Normaliser, Rows
from phalanx.engine.framework.traits import Traits, traits_of
from phalanx.engine.state.claims import ClaimKey
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import Pod

# ---- of vectorised filters and scores


@runtime_checkable
class MasksRow(Protocol):
    def mask_row(self, shape: Shape, columns: Columns, row: int) -> bool:
        """Return the verdict on one row. Without it `mask` is computed again."""
        ...


@runtime_checkable
class MasksRows(Protocol):
    def mask_rows(self, shape: Shape, columns: Columns, rows: Rows) -> Bools:
        """Return the verdicts on some rows."""
        ...


@runtime_checkable
class ScoresRow(Protocol):
    def score_row(self, shape: Shape, columns: Columns, row: int) -> float:
        """Return the raw score of one row. Without it `scores` is computed again."""
        ...


@runtime_checkable
class ScoresRows(Protocol):
    def score_rows(self, shape: Shape, columns: Columns, rows: Rows) -> Floats:
        """Return the raw scores of some rows."""
        ...


@runtime_checkable
class HasNormaliser(Protocol):
    """Implemented by a score plugin, or by its ShapeScore, which takes precedence. Raw scores may be any finite
    number."""

    @property
    def normaliser(self) -> Normaliser: ...


# ---- of filters


@runtime_checkable
class StrictFit(Protocol):
    """Implemented by a filter with `Traits.room`."""

    @property
    def strict(self) -> bool:
        """Return True if a row without room for every request is infeasible."""
        ...


@runtime_checkable
class LimitsPodsPerNode(Protocol):
    def max_per_node(self, shape: Shape) -> int | None:
        """Return how many pods of the shape one node may take; None: any number."""
        ...


@runtime_checkable
class HasQueueingHint(Protocol):
    def queueing_hint(self, shape: Shape, change: ClusterChange) -> bool:
        """Return False if a change in `Traits.wakes_on` cannot make the rejected shape feasible. If in doubt, return
        True."""
        ...


# ---- of what a tracking filter or score makes for one shape


@runtime_checkable
class AffectsOtherNodes(Protocol):
    def affects_other_nodes(self, record: PodRecord) -> bool:
        """Return False if that pod on one node cannot change the verdict on another node. If in doubt, return True.

        Preemption then searches victims on other nodes only among the pods for which this is True.
        """
        ...


@runtime_checkable
class CountsSlots(Protocol):
    """Implemented by a tracking filter that knows how many pods of the shape fit on a row."""

    slots: (
        Rows | None
    )  # (capacity,) int64: how many more pods each row can take as far as the filter knows; None: unknown
    counted: bool  # True: the slots cover all effects between several pods of this shape


@runtime_checkable
class FailsOnRows(Protocol):
    """Implemented by a tracking filter that may fail on some rows. The attempt fails if all other filters accept the
    row."""

    failures: dict[int, str]  # row -> what is wrong there; `mask` is False on these rows


@runtime_checkable
class DependsOnFeasible(Protocol):
    def set_feasible(self, mask: Bools) -> bool:
        """Record the (n,) rows that passed all filters; return True if `raw` changed anywhere.

        Called after `update` and before scores are read, whenever the mask or `raw` may have changed. For scores that
        depend on the set of feasible nodes, as PodTopologySpread does. NaN in `raw` means not scored, and counts as 0.
        """
        ...


# ---- of any plugin


@runtime_checkable
class ObservesObjects(Protocol):
    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        """Handle that an object other than Pod and Node was added (old None), changed, or removed (new None)."""
        ...


@runtime_checkable
class ObservesOutcomes(Protocol):
    def outcome(self, decision: Decision, event: Outcome) -> None:
        """Handle the outcome of a decision."""
        ...


@runtime_checkable
class DeallocatesClaims(Protocol):
    """Implemented by the plugin that allocates devices: a gang may get devices elsewhere than its claims have them."""

    def can_share_devices(self, shape: Shape) -> bool:
        """Return True if pods of a shape may get devices that several nodes can use."""
        ...

    def releasable(self, records: Sequence[PodRecord]) -> list[ClaimKey]:
        """Return the allocated claims of pending pods that may be deallocated."""
        ...

    def leaving(self) -> list[ClaimKey]:
        """Return the allocated claims of deleted pods, which their controller is about to deallocate."""
        ...

    def disregard(self, keys: Iterable[ClaimKey]) -> None:
        """Treat claims as not allocated until the trial is rewound."""
        ...

    def deallocations(self, keys: Iterable[ClaimKey]) -> tuple[Decision, ...]:
        """Return the decisions that deallocate claims."""
        ...


@runtime_checkable
class SignsPods(Protocol):
    def sign(self, pod: Pod) -> Hashable:
        """Return what this filter reads of a pod in addition to its shape; it becomes part of the shape."""
        ...


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """A plugin of a profile with its optional parts. None: the plugin does not have that part."""

    plugin: Any
    traits: Traits
    filter_method: str  # "track", "mask", "filter", or "" for none
    score_method: str  # "track_score", "scores", "score", or ""
    mask_row: Callable[[Shape, Columns, int], bool] | None
    mask_rows: Callable[[Shape, Columns, Rows], Bools] | None
    score_row: Callable[[Shape, Columns, int], float] | None
    score_rows: Callable[[Shape, Columns, Rows], Floats] | None
    normaliser: Normaliser | None
    strict: bool
    max_per_node: Callable[[Shape], int | None] | None
    queueing_hint: Callable[[Shape, ClusterChange], bool] | None


def options_of(plugin: Any) -> PluginOptions:
    return PluginOptions(
        plugin=plugin,
        traits=traits_of(plugin),
        filter_method=fw.way_of(plugin, "filter"),
        score_method=fw.way_of(plugin, "score"),
        mask_row=plugin.mask_row if isinstance(plugin, MasksRow) else None,
        mask_rows=plugin.mask_rows if isinstance(plugin, MasksRows) else None,
        score_row=plugin.score_row if isinstance(plugin, ScoresRow) else None,
        score_rows=plugin.score_rows if isinstance(plugin, ScoresRows) else None,
        normaliser=plugin.normaliser if isinstance(plugin, HasNormaliser) else None,
        strict=plugin.strict if isinstance(plugin, StrictFit) else False,
        max_per_node=plugin.max_per_node if isinstance(plugin, LimitsPodsPerNode) else None,
        queueing_hint=plugin.queueing_hint if isinstance(plugin, HasQueueingHint) else None,
    )


def always_affects(record: PodRecord) -> bool:
    """Replace `affects_other_nodes` for a tracker that does not implement it."""
    return True


def implements(tracker: object, protocol: Any) -> bool:
    """Return True if a tracker implements an optional protocol; trackers of one class are alike.

    Every shape has trackers of its own, and an isinstance check of a protocol takes 35 µs.
    """
    key = (type(tracker), protocol)
    found = _IMPLEMENTED.get(key)
    if found is None:
        found = _IMPLEMENTED[key] = isinstance(tracker, protocol)
    return found


_IMPLEMENTED: dict[tuple[type[Any], Any], bool] = {}


def affects_other_nodes_of(tracker: fw.ShapeFilter) -> Callable[[PodRecord], bool]:
    if implements(tracker, AffectsOtherNodes):
        return cast("AffectsOtherNodes", tracker).affects_other_nodes
    return always_affects


def set_feasible_of(tracker: fw.ShapeScore) -> Callable[[Bools], bool] | None:
    return cast("DependsOnFeasible", tracker).set_feasible if implements(tracker, DependsOnFeasible) else None


def normaliser_of(options: PluginOptions, tracker: fw.ShapeScore) -> Normaliser | None:
    return cast("HasNormaliser", tracker).normaliser if implements(tracker, HasNormaliser) else options.normaliser
