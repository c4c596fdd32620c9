"""The life of a pod: its state, the transitions there are, and the only place that makes them.

Assuming, confirming, forgetting and rolling back happen here and nowhere else; columns, queue, members and the promise
of a node are kept in step with the state. Who decides is elsewhere; what happened is told to the pod's story.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.evictions import Evictions
from phalanx.engine.scheduling.lifecycle.history import History
from phalanx.engine.scheduling.lifecycle.members import Members
from phalanx.engine.scheduling.lifecycle.reserve_permit import unreserve
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.queue import Queue
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.scheduling.queue.waiting import Waiting
from phalanx.engine.state.records import PodRecord, PodState

PENDING, ASSUMED, BINDING = PodState.PENDING, PodState.ASSUMED, PodState.BINDING
CONFIRMED, BOUND, GONE = PodState.CONFIRMED, PodState.BOUND, PodState.GONE
PLACED, LEFT, NOMINATION = Wake.POD_PLACED, Wake.POD_GONE, Wake.NOMINATION  # by name: see `roots`

TRANSITIONS: dict[PodState, frozenset[PodState]] = {
    PENDING: frozenset({ASSUMED, BOUND, GONE}),
    ASSUMED: frozenset({BINDING, PENDING, BOUND}),
    BINDING: frozenset({CONFIRMED, PENDING, BOUND}),
    # Acknowledged, and yet shown elsewhere or without a node: what the informer shows is true.
    CONFIRMED: frozenset({BOUND, PENDING}),
    BOUND: frozenset({GONE}),
    GONE: frozenset(),
}


TURN = "turn"  # the stage of a pod for which nobody is waited

_ALLOWED = [sum(1 << after for after in TRANSITIONS[before]) for before in PodState]  # hashing an enum is slow


class OnHold(msgspec.Struct):
    """An assumed pod that is not bound yet: a plugin says wait, or its gang is so large that its turn has not come."""

    unit: SchedulingUnit
    record: PodRecord
    stage: str  # "permit", "preBind" or TURN
    deadline: float


class PodLifecycle:
    def __init__(
        self,
        state: ClusterState,
        queue: Queue,
        waiting: Waiting,
        members: Members,
        history: History,
        unit_lifecycle: UnitLifecycle,
        evictions: Evictions,
    ) -> None:
        self._cluster = state
        self._columns = state.columns
        self._queue = queue
        self._waiting = waiting
        self._members = members
        self._unit_lifecycle = unit_lifecycle
        self._evictions = evictions
        self._note, self._told = history.note, history.told  # most pods are bound at once and need no story
        self.records = state.records
        self.holding: dict[str, OnHold] = {}  # pods that wait for Permit, PreBind or their turn
        self.pods_on_unknown_nodes: dict[
            str, dict[str, PodRecord]
        ] = {}  # node name -> pods assumed or bound on a node not known
        self.root_of: dict[str, SchedulingUnit] = {}  # pod key -> root, of assumed pods: to come back after a failure
        self.externally_filled_rows: set[int] = (
            set()
        )  # rows that others filled or that shrank: over-commit there is not our doing
        self.impossible: deque[str] = deque(maxlen=100)  # transitions that are not in the table: our own mistakes

    def _to(self, record: PodRecord, state: PodState) -> None:
        if not _ALLOWED[record.state] >> state & 1:
            self.impossible.append(f"{record.key}: {record.state.name} to {state.name}")
        record.state = state

    # ---- coming

    def keep(self, record: PodRecord, old: PodRecord | None = None) -> None:
        """A pod is known, or a later version of it."""
        self._cluster.shapes.keep(record.shape)
        if old is not None:
            self._cluster.shapes.drop(old.shape)
            old.state = GONE
        self.records[record.key] = record

    def found_on(self, record: PodRecord, node: str) -> None:
        """The informer shows a pod on a node that is not one we chose for it."""
        record.node_name = node
        record.pod = None
        self._to(record, BOUND)
        if record.key in self._told:
            self._note(record.key, "found on", node)
        self._house(record)
        if self._members.claims(record):
            self._members.found(record)

    def _house(self, record: PodRecord) -> None:
        """Count a bound pod on its node, now or when the node appears."""
        row = self._columns.row_of.get(record.node_name, -1)
        if row < 0:
            self.pods_on_unknown_nodes.setdefault(record.node_name, {})[record.key] = record
            return
        self._columns.place(record, row)
        self.externally_filled_rows.add(row)
        self._waiting.placed(record.priority)
        self._queue.wake(ClusterChange(PLACED, row, record))

    # ---- to a node

    def assume(self, unit: SchedulingUnit, assignment: Sequence[tuple[PodRecord, int]]) -> None:
        """Count pods on rows although the API server does not know yet: all of them, or nobody is. Those of a gang are
        counted there already, since plugins were asked about all of them (`reservations.rehearse`)."""
        columns, nominations, queue = self._columns, self._cluster.nominations, self._queue
        listens = queue.listens(PLACED)
        for record, row in assignment:
            if record.row < 0:
                columns.place(record, row)
            record.node_name = columns.names[row]
            self._to(record, ASSUMED)
            reserved = nominations.clear(record)
            if reserved and reserved != record.node_name:
                queue.wake(ClusterChange(NOMINATION, columns.row_of.get(reserved, -1), record))
            self._waiting.placed(record.priority)
            if listens:
                queue.wake(ClusterChange(PLACED, row, record))
            self.root_of[record.key] = unit
            unit.records.pop(record.key, None)
        if not unit.records:
            self._unit_lifecycle.leave(unit)
        self._members.assumed(assignment)

    def hold(self, unit: SchedulingUnit, record: PodRecord, stage: str, deadline: float) -> None:
        """A plugin says wait."""
        self._note(record.key, f"assumed, waiting for {stage} on", record.node_name)
        self.holding[record.key] = OnHold(unit, record, stage, deadline)

    def line_up(self, unit: SchedulingUnit, record: PodRecord) -> None:
        """Nobody has a say any more but whoever is asked before its Bind, and its Bind is decided in a later step."""
        self.holding[record.key] = OnHold(unit, record, TURN, 0.0)

    def binding(self, record: PodRecord, decision: int) -> None:
        """Nobody has a say any more: the Bind is decided."""
        if self.holding:
            self.holding.pop(record.key, None)
        record.bind = decision
        self._to(record, BINDING)
        if record.key in self._told:
            self._note(record.key, "binding to", record.node_name)

    def confirm(self, record: PodRecord) -> None:
        """The API server acknowledged the Bind; the informer may have been quicker."""
        record.bind = 0
        if record.state is BINDING:
            self._to(record, CONFIRMED)
        self._members.bound(record)

    def shown(self, record: PodRecord) -> None:
        """The informer shows a pod on the node we chose."""
        if self.holding:
            self.holding.pop(record.key, None)
        self.root_of.pop(record.key, None)
        self._to(record, BOUND)
        if record.key in self._told:
            self._note(record.key, "shown on", record.node_name)

    # ---- and back

    def roll_back(self, record: PodRecord, why: str) -> SchedulingUnit | None:
        """Undo an assumption: the pod is pending, but in no place of the queue yet. Answers the root it was in."""
        row = record.row
        self.holding.pop(record.key, None)
        unreserve(self._cluster, record, row)
        self._unhouse(record)
        self._to(record, PENDING)
        self._note(record.key, "taken back", why)
        record.bind = 0
        record.node_name = ""
        if row >= 0:
            self._columns.unplace(record)
            self._queue.wake(ClusterChange(LEFT, row, record))
        return self.root_of.pop(record.key, None)

    def _unhouse(self, record: PodRecord) -> None:
        """A pod no longer waits for its node to appear."""
        pods = self.pods_on_unknown_nodes.get(record.node_name)
        if pods is not None and pods.get(record.key) is record:
            del pods[record.key]
            if not pods:
                del self.pods_on_unknown_nodes[record.node_name]

    # ---- changing and going

    def replace(self, old: PodRecord, record: PodRecord) -> None:
        """A bound pod changed in a way others can see: labels, requests, terminating."""
        record.node_name = old.node_name
        record.bind = old.bind
        record.pod = None
        record.state = BOUND
        row = old.row
        if row >= 0:
            self._columns.unplace(old)
        self._unhouse(old)
        self.keep(record, old)
        if row < 0:
            self._house(record)
            return
        self._columns.place(record, row)
        self.externally_filled_rows.add(row)
        self._queue.wake(ClusterChange(Wake.POD_LABELS, row, record))
        self._queue.wake(ClusterChange(LEFT, row, old))

    def withdraw(self, record: PodRecord) -> None:
        """Undo whatever was done for a pod that is gone, or turned out to be elsewhere."""
        if record.assumed:
            self.roll_back(record, "it is elsewhere or gone")
        elif record.node_name:
            self._unhouse(record)
            if record.row >= 0:
                row = record.row
                self._columns.unplace(record)
                self._queue.wake(ClusterChange(LEFT, row, record))
        else:
            self.unqueue(record)
        node = self._cluster.nominations.clear(record)
        if node:
            self._queue.wake(ClusterChange(NOMINATION, self._columns.row_of.get(node, -1), record))

    def unqueue(self, record: PodRecord) -> None:
        unit = self._queue.units.get(f"pod/{record.key}")
        if unit is not None:
            self._unit_lifecycle.leave(unit)

    def remove(self, record: PodRecord, *, finished: bool) -> None:
        """A pod is gone, or has `finished` (Succeeded, Failed)."""
        self.withdraw(record)
        self._to(record, GONE)
        if record.key in self._told:
            self._note(record.key, "finished" if finished else "deleted")
        del self.records[record.key]
        self._cluster.shapes.drop(record.shape)
        self._evictions.gone(record)
        if self._members.claims(record):
            self._members.gone(record, finished=finished)

    # ---- nodes

    def node_appeared(self, name: str, row: int) -> None:
        """Count the pods that were bound to a node before we knew it."""
        for record in self.pods_on_unknown_nodes.pop(name, {}).values():
            self._columns.place(record, row)
            self.externally_filled_rows.add(row)
            self._waiting.placed(record.priority)

    def node_vanished(self, name: str, stranded: list[PodRecord]) -> None:
        if stranded:
            self.pods_on_unknown_nodes[name] = {record.key: record for record in stranded}
