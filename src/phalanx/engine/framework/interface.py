"""Define the extension points: what a plugin may implement, and what it gets. Types only; `profile` registers plugins.

A plugin is any object with a `name` and at least one of the methods below. There are three ways to filter or score;
use the simplest that is fast enough:

* plain:      `filter(shape, node)` / `score(shape, node)` per node, adapted automatically;
* vectorised: `mask(shape, columns)` / `scores(shape, columns)` over all rows at once, and optionally
  `mask_row` / `score_row` for one row, with `Traits.depends` saying which changes of a row matter;
* tracking:   `track(shape, columns)` / `track_score(shape, columns)` returns an object that follows the change log;
  for verdicts in which rows depend on each other (topology spread, affinity, volumes).

A filter gets the shape of a pod, not the pod. A third-party filter that reads more of the pod than the shape contains
defines `sign(pod)`, which returns a hashable value; that value becomes part of the shape.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.decisions import Decision
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.label_interest import LabelInterest
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.gates import Gates
from phalanx.model.groups import GroupForest
from phalanx.model.objects import Node

if TYPE_CHECKING:
    from phalanx.engine.framework.diagnosis import Diagnosis

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MAX_SCORE = 100

# Names as in KubeSchedulerConfiguration `plugins`.
POINTS = (
    "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit",
    "preBind", "bind", "postBind", "placementGenerate", "placementFeasible", "placementScore", "podGroupPostFilter",
)  # fmt: skip


# Methods that a plugin may define for a point; the first one it defines is used.
METHODS: dict[str, tuple[str, ...]] = {
    "preEnqueue": ("pre_enqueue",),
    "queueSort": ("sort_key",),
    "preFilter": ("pre_filter",),
    "filter": ("track", "mask", "filter"),
    "postFilter": ("post_filter",),
    "score": ("track_score", "scores", "score"),
    "reserve": ("reserve",),
    "permit": ("permit",),
    "preBind": ("pre_bind",),
    "bind": ("bind",),
    "postBind": ("post_bind",),
    "placementGenerate": ("generate",),
    "placementFeasible": ("feasible",),
    "placementScore": ("score_placement",),
    "podGroupPostFilter": ("pod_group_post_filter",),
}
# Methods that must be defined together with these.
COMPANIONS = {"mask": "explain", "reserve": "unreserve"}


class Code(enum.IntEnum):
    SUCCESS = 0
    UNSCHEDULABLE = 1  # a change of the cluster, or preemption, may help
    UNRESOLVABLE = 2  # UnschedulableAndUnresolvable: preemption cannot help
    WAIT = 3  # Permit, PlacementFeasible
    SKIP = 4  # PreFilter: this plugin's Filter need not run
    ERROR = 5


class Status(msgspec.Struct, frozen=True):
    """The answer of a plugin. "Does not fit" is a value, never an exception."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    timeout: float = 0.0  # of WAIT, seconds
    until: float = float("inf")  # of WAIT: the time, in seconds since the epoch, at which it ends at the latest

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    @property
    def rejected(self) -> bool:
        return self.code in (Code.UNSCHEDULABLE, Code.UNRESOLVABLE)


SUCCESS = Status(Code.SUCCESS)
SKIP = Status(Code.SKIP)


class Depends(enum.IntFlag):
    """Changes of a row that can change a row-local verdict on that row."""

    NOTHING = 0
    NODE = 1  # the node object: labels, taints, allocatable, images, unschedulable
    USAGE = 2  # pods placed on or removed from the row


class Wake(enum.IntFlag):
    """Kinds of change that a rejected scheduling unit may wait for."""

    NOTHING = 0
    NODE_ADDED = 1
    NODE_CHANGED = 2  # labels, taints, allocatable, unschedulable, images
    POD_GONE = 4  # a pod left a node (deleted, finished, shrunk)
    POD_PLACED = 8  # a pod arrived on a node
    POD_LABELS = 16  # labels of a placed pod changed
    NOMINATION = 32  # a nomination that reserved resources was cleared
    STORAGE = 64  # PV, PVC, StorageClass, CSINode, CSIDriver, CSIStorageCapacity
    NAMESPACE = 128  # namespace labels
    SERVICE = 256  # Service, ReplicationController, ReplicaSet, StatefulSet
    GROUP = 512  # PodGroup, CompositePodGroup, Workload
    DEVICES = 1024  # ResourceClaim, ResourceSlice, DeviceClass, DeviceTaintRule
    NODE = NODE_ADDED | NODE_CHANGED
    ANY = 2047


class ClusterChange(NamedTuple):
    """Cluster event that may make pending pods schedulable."""

    kind: Wake
    row: int = -1  # of node and pod changes
    record: PodRecord | None = None  # of pod changes
    old: Any = None  # objects of the other kinds
    new: Any = None


class NodeView:
    """Show a node to a plain per-node plugin. Amounts: milli cpu, bytes, units."""

    __slots__ = ("_columns", "row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self.row = row

    @property
    def name(self) -> str:
        return self._columns.names[self.row]

    @property
    def node(self) -> Node:
        node = self._columns.nodes[self.row]
        assert node is not None
        return node

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels

    @property
    def pods(self) -> Sequence[PodRecord]:
        """Return the pods placed here, including assumed ones."""
        return list(self._columns.pods[self.row].values())

    def allocatable(self, resource: str) -> float:
        return self._columns.alloc_cell[self._columns.resource(resource)][self.row]

    def requested(self, resource: str) -> float:
        return self._columns.used_cell[self._columns.resource(resource)][self.row]


class Handle(msgspec.Struct):
    """What a plugin gets when it is created. The columns and objects are read-only for it."""

    columns: Columns
    objects: Objects
    interest: LabelInterest
    gates: Gates
    forest: GroupForest
    scheduler_name: str = "default-scheduler"
    emit: Callable[..., int] | None = None  # for writes that revert a plugin's earlier write; None in queries


Factory = Callable[[Mapping[str, Any], Handle], "Plugin"]
"""(pluginConfig args, handle) -> plugin; raises base.errors.ConfigProblem on bad args."""

Emit = Callable[..., int]
"""emit(decision class, namespace=…, name=…, uid=…, **fields) -> decision id."""


class Plugin(Protocol):
    @property
    def name(self) -> str: ...


def way_of(plugin: Any, point: str) -> str:
    """Return the method that a plugin implements for a point, or "" if it implements none."""
    for method in METHODS[point]:
        if callable(getattr(plugin, method, None)):
            return method
    return ""


# ---- queue


class PreEnqueue(Protocol):
    def pre_enqueue(self, record: PodRecord) -> Status | None:
        """Return None if the pod may be queued. A rejected pod is gated until its own object changes, or until a change
        in the plugin's `Traits.gate_wakes`."""
        ...


class QueueSort(Protocol):
    def sort_key(self, priority: int, asked: float, order: int) -> tuple[Any, ...]:
        """Return the sort key; smaller goes first. `asked`: time the unit first requested scheduling; `order`: arrival
        number."""
        ...


# ---- filter


class PreFilter(Protocol):
    def pre_filter(self, shape: Shape) -> Status | None:
        """Check a shape once per attempt, before any node. None: continue; SKIP: skip this plugin's filter; rejected:
        no node fits (the reason is shown once, not per node)."""
        ...


class NodeFilter(Protocol):
    """Plain filter. It may depend on everything of its own row (node and pods) and on nothing else."""

    def filter(self, shape: Shape, node: NodeView) -> Status | None: ...


class Finding(msgspec.Struct, frozen=True):
    """One reason for which rows were rejected. A row may appear in several findings of one plugin."""

    rows: Rows
    reason: str
    unresolvable: bool = False


class VectorFilter(Protocol):
    """Row-local filter: the verdict on a row depends on that row and the shape only, as `Traits.depends` says."""

    def mask(self, shape: Shape, columns: Columns) -> Bools | None:
        """Return (n,) True where the pod fits; None: on every node, whatever changes (the filter is skipped)."""
        ...

    def explain(self, shape: Shape, columns: Columns, rows: Rows) -> Sequence[Finding]:
        """Return why the given rows (all rejected by this plugin) were rejected."""
        ...

    # Optional: options.MasksRow, options.MasksRows.


class ShapeFilter(Protocol):
    """The verdicts of a tracking filter for one shape. Arrays may be longer than the number of rows."""

    mask: Bools

    def rebuild(self) -> None:
        """Compute `mask` for all rows from scratch (also after the columns grew)."""
        ...

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        """Bring `mask` up to date. Return the rows evaluated again, or None if any row may have changed. Called with no
        changes when only other objects changed."""
        ...

    def explain(self, rows: Rows) -> Sequence[Finding]: ...

    # Optional: options.AffectsOtherNodes.


class TrackingFilter(Protocol):
    """Filter that follows changes. `Traits.wakes_on`: changes that may make a rejected shape feasible."""

    def track(self, shape: Shape, columns: Columns) -> ShapeFilter | None:
        """Return a tracker for the shape, or None if this filter never applies to it."""
        ...

    # Optional: options.HasQueueingHint, options.LimitsPodsPerNode.


# ---- score


class Normaliser(Protocol):
    """Normalise raw scores to 0..100 with bounds over the feasible rows."""

    def bounds(self, raw: Floats) -> tuple[float, float]:
        """Return the bounds of the raw scores of the feasible rows (never empty)."""
        ...

    def scale(self, raw: Any, low: float, high: float) -> Any:
        """Return whole numbers 0..100; must accept a float and an array."""
        ...


class NodeScore(Protocol):
    """Plain score: 0..100 unless the plugin also has `normaliser`."""

    def score(self, shape: Shape, node: NodeView) -> float: ...


class VectorScore(Protocol):
    def scores(self, shape: Shape, columns: Columns) -> Floats | None:
        """Return (n,) raw scores; None: equal for all nodes, whatever changes."""
        ...

    # Optional: options.ScoresRow, options.ScoresRows, options.HasNormaliser.


class ShapeScore(Protocol):
    raw: Floats

    def rebuild(self) -> None: ...

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None: ...

    # Optional: options.DependsOnFeasible, options.HasNormaliser.


class TrackingScore(Protocol):
    def track_score(self, shape: Shape, columns: Columns) -> ShapeScore | None: ...

    # Optional: options.HasNormaliser.


# ---- after a node was chosen


class Reserve(Protocol):
    def reserve(self, record: PodRecord, row: int) -> Status | None: ...

    def unreserve(self, record: PodRecord, row: int) -> None:
        """Undo `reserve`; must tolerate a call without it."""
        ...


class Permit(Protocol):
    def permit(self, record: PodRecord, row: int) -> Status | None:
        """Return WAIT to keep the pod assumed for at most `timeout` seconds. The plugin is called again after every
        change of the cluster. A rejected pod goes back to the queue."""
        ...


class PreBind(Protocol):
    def pre_bind(self, record: PodRecord, row: int, emit: Emit) -> Status | None:
        """Run before Bind, and again after every event while the answer is WAIT. Emit each write once."""
        ...


class Binder(Protocol):
    def bind(self, record: PodRecord, node: str, emit: Emit) -> int:
        """Emit the decision whose outcome is the outcome of binding; return 0 to leave it to the next plugin."""
        ...


class PostBind(Protocol):
    def post_bind(self, record: PodRecord, node: str) -> None: ...


# ---- when no node fits


class PostFilterResult(msgspec.Struct, frozen=True):
    status: Status
    nominate: str | None = None  # node to nominate; "" clears; None keeps
    message: str = ""  # appended to the message for users, e.g. "preemption: 0/3 nodes are available: …"
    hopeless: bool = False  # a retry for a pod of the same shape and priority is useless until the cluster changes
    # decisions to perform, such as Evict; they get ids when the answer is committed
    decisions: tuple[Decision, ...] = ()


class PostFilter(Protocol):
    def post_filter(self, record: PodRecord, diagnosis: Diagnosis) -> PostFilterResult:
        """Run when no node fits. The first plugin that returns SUCCESS ends the round. Queries call it too, but perform
        nothing."""
        ...

    # Optional: helps(shape, priority, change: ClusterChange) -> bool, called after changes in `Traits.helps_after`:
    # whether the plugin may help a waiting pod although no node has room for it (a pod of lower priority arrived).


# ---- groups: used by the group cycle


class Placement(msgspec.Struct, frozen=True):
    """A set of nodes in which a whole group may be placed."""

    name: str
    mask: Bools  # (capacity,)


class GroupView(Protocol):
    """A PodGroup or CompositePodGroup of a tree under evaluation."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def topology_key(self) -> str: ...


class PlacementGenerate(Protocol):
    def generate(self, group: GroupView, parent: Placement) -> Sequence[Placement] | Status: ...


class PlacementFeasible(Protocol):
    def feasible(self, group: GroupView, scheduled: int, remaining: int) -> Status:
        """Return SUCCESS, WAIT (not yet), UNSCHEDULABLE (preemption may help) or UNRESOLVABLE (nothing can help)."""
        ...


class PlacementScore(Protocol):
    def score_placement(
        self, group: GroupView, placement: Placement, assignments: Sequence[tuple[PodRecord, int]]
    ) -> float:
        """Return the raw score; `assignments` are (pod, row). Normalised to 100 * raw / max by default."""
        ...


class PodGroupPostFilter(Protocol):
    def pod_group_post_filter(
        self, group: GroupView, pods: Sequence[PodRecord], diagnosis: Any
    ) -> PostFilterResult: ...
