"""Hold everything an attempt reads: the cluster's tables and the evaluations by plugins.

An attempt, a preemption plan and a query get this value and nothing else; they change rows only inside a mark of the
journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol

from phalanx.engine.devices.state import DeviceState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.evaluations import Evaluations
from phalanx.engine.framework.profile import Profile
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.label_interest import LabelInterest
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import Nominations, PodRecord
from phalanx.engine.state.shapes import ShapeTable
from phalanx.model.gates import Gates
from phalanx.model.groups import GroupForest, GroupKey

FIRST_ASKED = 1 << 40  # first shape id for queries: never an id of the engine, never used twice


class KeepsPromises(Protocol):
    """Reports which promised starts a placement would delay."""

    @property
    def any_promised(self) -> bool:
        """Return False if no start is promised: then none can be delayed."""

    def nominate_delayed(
        self, records: Sequence[PodRecord], assignment: Sequence[tuple[PodRecord, int]]
    ) -> Sequence[tuple[PodRecord, str]]:
        """Return False if no start is promised."""

    def withdraw_planned_starts(self, temporary_nominations: Iterable[tuple[PodRecord, str]]) -> None:
        """Take the nominations back."""


class ClusterState:
    def __init__(self, settings: EngineSettings, gates: Gates) -> None:
        self.settings = settings
        self.gates = gates
        self.now = 0.0
        self.columns = Columns()
        self.objects = Objects()
        self.devices: DeviceState | None = None  # None until the built-in plugins have made it
        self.interest = LabelInterest()
        self.shapes = ShapeTable(self.columns, self.interest)
        self.asked_ids = count(FIRST_ASKED)
        self.evaluations = Evaluations(self.columns, self.objects)
        self.shapes.on_evict.append(self.evaluations.forget)
        self.interest.sources.append(self.shapes.mentions)
        self.nominations = Nominations()
        self.records: dict[str, PodRecord] = {}  # every pod that is pending for this scheduler or has a node, by key
        self.reported_starts = 0  # start times of pods on nodes that became known since
        self.profiles: dict[str, Profile] = {}  # by scheduler name
        # If off, the forest stays empty: pods that name a group are scheduled as if they named none.
        self.grouping = gates("GenericWorkload") and gates("GangScheduling")
        # Returns True if a waiting unit of that priority or higher, other than the group's own, could use free
        # resources.
        self.contested: Callable[[GroupKey, int], bool] = lambda group, priority: False
        self.promises: KeepsPromises | None = None  # where starts are promised
        self.forest = self.new_forest()

    def evicting_taints(self, name: str) -> list[str] | None:
        """Return the keys of a node's NoExecute taints; None if the node does not exist."""
        row = self.columns.row_of.get(name, -1)
        node = self.columns.nodes[row] if row >= 0 else None
        return [taint.key for taint in node.spec.taints or () if taint.effect == "NoExecute"] if node else None

    def new_forest(self) -> GroupForest:
        """Return an empty forest configured for this scheduler. This is the only place that sets these options."""
        return GroupForest(
            lambda name: name in self.profiles,
            group_preemption_policy=self.gates("PodGroupPreemptionPolicy"),
            topology=self.gates("TopologyAwareWorkloadScheduling"),
            composites=self.gates("CompositePodGroup"),
            policy_defaults=self.settings.policy_defaults,
        )

    def evaluation(self, record: PodRecord) -> Evaluation:
        """Return an up-to-date evaluation of a pending pod's shape. Raises PluginFailure."""
        evaluation = self.evaluations.of(record.shape, self.profiles[record.scheduler_name])
        evaluation.refresh()
        return evaluation

    def outgrown(self) -> bool:
        """Return True if tables are so large that some entries may belong to deleted objects."""
        return self.columns.outgrown() or self.interest.outgrown()

    def remove_unused(self, requested: Iterable[int]) -> None:
        """Remove unused entries, between attempts only. `requested`: ids of resources that waiting units request."""
        if self.columns.journal.recording:
            return
        if self.interest.outgrown():
            self.interest.relearn()
        if self.columns.outgrown():
            self.columns.remove_unused(self.shapes.requested().union(requested))
