"""The lifecycle of a pod: its states, the table of transitions, and the only code that changes a state.

Columns, queue, group members and nominations are changed together with the state. Decisions are made elsewhere.
Transitions are written to the pod's history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.framework import ClusterChange, Emit, Wake
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.scheduling.lifecycle.reserve_permit import unreserve
from phalanx.engine.scheduling.lifecycle.transitions import Transition
from phalanx.engine.scheduling.lifecycle.unit_lifecycle import UnitLifecycle
from phalanx.engine.scheduling.queue.units import SchedulingUnit, UnitQueue
from phalanx.engine.state.records import PodRecord, PodState

PENDING, ASSUMED, BINDING = PodState.PENDING, PodState.ASSUMED, PodState.BINDING
CONFIRMED, BOUND, GONE = PodState.CONFIRMED, PodState.BOUND, PodState.GONE
PLACED, LEFT, NOMINATION = Wake.POD_PLACED, Wake.POD_GONE, Wake.NOMINATION  # globals are faster than enum members

LATER = "a later step"  # stage of a pod of a large gang whose Bind is decided in a later step


class OnHold(msgspec.Struct):
    """An assumed pod without a Bind: a plugin waits, or the pod is in a large gang that is bound in several steps."""

    unit: SchedulingUnit
    record: PodRecord
    stage: str  # "permit", "preBind" or LATER
    deadline: float
    since: float = 0.0  # start of this wait
    reason: str = ""  # the plugin's message

    @property
    def words(self) -> str:
        """Return what the pod waits for: "waiting for …"."""
        if self.reason.startswith("waiting for "):
            return self.reason
        return f"waiting for {self.stage}" + (f" ({self.reason})" if self.reason else "")


class GroupMembership(Protocol):
    """The methods of `Members` that the lifecycle of a pod needs."""

    def claims(self, record: PodRecord) -> bool: ...
    def found(self, record: PodRecord) -> None: ...
    def assumed(self, assignment: Iterable[tuple[PodRecord, int]]) -> None: ...
    def bound(self, record: PodRecord) -> None: ...
    def gone(self, record: PodRecord, *, finished: bool) -> None: ...


class PodLifecycle:
    def __init__(
        self,
        state: ClusterState,
        queue: UnitQueue,
        members: GroupMembership,
        units: UnitLifecycle,
        placed: Callable[[int], None],
        emit: Emit,
    ) -> None:
        """`placed`: called with the priority of every pod counted on a node."""
        self._cluster = state
        self._columns = state.columns
        self.queue = queue
        self._placed = placed
        self._members = members
        self.units = units
        self._emit = emit
        # Most pods are bound at once and have no history.
        self._note, self._noted = units.history.note, units.history.notes_of
        self.illegal = units.illegal
        self.records = state.records
        self.holding: dict[str, OnHold] = {}  # pods waiting for Permit, PreBind or a later step
        # Node name -> pods assumed or bound there, while the node is not known.
        self.pods_on_unknown_nodes: dict[str, dict[str, PodRecord]] = {}
        self.unit_of: dict[str, SchedulingUnit] = {}  # pod key -> unit to return to after a failure, of assumed pods
        # Rows that shrank or were filled by other schedulers: over-commitment there is not caused by this engine.
        self.externally_filled_rows: set[int] = set()
        self.announced: set[str] = set()  # keys of pods without a Bind whose node is written to their status
        self.reserved: dict[str, None] = {}  # keys of pending pods whose nomination belongs to a reservation
        self.nominating: dict[str, int] = {}  # pod key -> Nominate decision without an outcome yet

    def _transition(self, record: PodRecord, state: PodState, *how: object) -> None:
        """Make a transition of the table. No other code changes the state, bind id or nomination of a pod."""
        function = _TABLE[record.state][state]
        if function is None:
            self.illegal.add(record.key, record.state, state)
            return
        record.state = state
        function(self, record, *how)

    # ---- operations

    def keep(self, record: PodRecord) -> None:
        """Add a pending pod. A node nominated in its object stays nominated."""
        self._cluster.shapes.keep(record.shape)
        self.records[record.key] = record
        if record.nominated:
            self._transition(record, PENDING, record.nominated)

    def update(self, old: PodRecord, record: PodRecord) -> None:
        """Replace the record of a pending pod by a later version; its nomination is kept."""
        record.last_condition = old.last_condition
        self._transition(old, GONE, record, False)

    def found_on(self, record: PodRecord, node: str, old: PodRecord | None = None) -> None:
        """Handle a pod that the informer shows on another node than chosen here. `old`: its record after `withdraw`."""
        if old is not None:
            self._transition(old, GONE, record, False)
        else:
            self._cluster.shapes.keep(record.shape)
            self.records[record.key] = record
        self._transition(record, BOUND, node)

    def replace(self, old: PodRecord, record: PodRecord) -> None:
        """Replace the record of a bound pod whose labels, requests or termination changed."""
        row = old.row
        if row >= 0:
            self._columns.unplace(old)
        self._off_unknown_node(old)
        self._transition(old, GONE, record, False)
        self._transition(record, BOUND, old.node_name, old, row)

    def assume(self, unit: SchedulingUnit, assignment: Sequence[tuple[PodRecord, int]]) -> None:
        """Count pods on rows before the API server knows: all or none.

        The pods of a gang are counted already, because Reserve and Permit were called (`reserve_and_permit`).
        """
        listens = self.queue.listens(PLACED)
        for record, row in assignment:
            self._transition(record, ASSUMED, unit, row, listens)
        if not unit.records:
            self.units.leave(unit)
        self._members.assumed(assignment)

    def hold(self, unit: SchedulingUnit, record: PodRecord, stage: str, deadline: float, reason: str = "") -> None:
        """Let an assumed pod wait for a plugin."""
        self._note(record.key, f"assumed, waiting for {stage} on", record.node_name)
        before = self.holding.get(record.key)
        since = before.since if before is not None and before.stage == stage else self._cluster.now
        self._transition(record, ASSUMED, OnHold(unit, record, stage, deadline, since, reason))

    def announce(self, record: PodRecord) -> None:
        """Write the node of a waiting pod to its status, so that other schedulers do not use its room."""
        self.announced.add(record.key)
        self._write_nomination(record, record.node_name)

    def retract(self, record: PodRecord) -> None:
        """Clear the node written by `announce`."""
        if record.key in self.announced:
            self.announced.discard(record.key)
            self._write_nomination(record, "")

    def _write_nomination(self, record: PodRecord, node: str) -> None:
        self._emit(d.Nominate, namespace=record.namespace, name=record.name, uid=record.uid, node=node)

    def queue_bind(self, unit: SchedulingUnit, record: PodRecord) -> None:
        """Queue a pod for PreBind and Bind in a later step; Permit has passed."""
        self._transition(record, ASSUMED, OnHold(unit, record, LATER, 0.0))

    def binding(self, record: PodRecord, decision: int) -> None:
        self._transition(record, BINDING, decision)

    def confirm(self, record: PodRecord) -> None:
        """Handle an acknowledged Bind; the informer may have shown the pod before."""
        self._transition(record, CONFIRMED if record.state is BINDING else BOUND)
        self._members.bound(record)

    def bind_unanswered(self, record: PodRecord) -> None:
        """Handle a failed outcome of a Bind that the informer shows as done."""
        self._transition(record, BOUND)

    def shown(self, record: PodRecord) -> None:
        """Handle a pod that the informer shows on its chosen node."""
        self._transition(record, BOUND)

    def roll_back(self, record: PodRecord, why: str) -> SchedulingUnit | None:
        """Undo an assumption: the pod is pending, but not queued yet. Return its former unit."""
        unit = self.unit_of.pop(record.key, None)
        self._transition(record, PENDING, why)
        return unit

    def nominate(self, record: PodRecord, node: str, *, write: bool = True, wake: bool = True) -> None:
        """Nominate a node for a pending or expected pod; "" clears the nomination.

        `write`: also to the pod's status. `wake`: wake units that may use the room of the old node.
        """
        if (record.nominated == node and write) or (not node and record.key in self.reserved):
            return
        self._transition(record, PENDING, node, write, wake)

    def drop_placeholder(self, record: PodRecord, *, wake: bool = True) -> None:
        """End the reservation that a placeholder (a record without an object) stands for."""
        self.nominate(record, "", write=False, wake=wake)
        self._cluster.shapes.drop(record.shape)

    def withdraw(self, record: PodRecord) -> None:
        """Undo everything done for a pod that is gone or placed elsewhere."""
        self.reserved.pop(record.key, None)
        if record.assumed:
            self.roll_back(record, "it is elsewhere or gone")
        elif record.node_name:
            self._off_unknown_node(record)
            if record.row >= 0:
                row = record.row
                self._columns.unplace(record)
                self.queue.wake(ClusterChange(LEFT, row, record))
            return
        else:
            self.unqueue(record)
        self.nominate(record, "", write=False)

    def unqueue(self, record: PodRecord) -> None:
        unit = self.queue.units.get(f"pod/{record.key}")
        if unit is not None:
            self.units.leave(unit)

    def remove(self, record: PodRecord, *, finished: bool) -> None:
        """Remove a pod that is deleted or `finished` (Succeeded or Failed)."""
        self.nominating.pop(record.key, None)
        self.withdraw(record)
        self._transition(record, GONE, None, finished)

    # ---- transitions of the table below

    def _nominate(self, record: PodRecord, node: str, write: bool = False, wake: bool = False) -> None:
        """Set the nomination, or clear it if `node` is empty."""
        old = self._cluster.nominations.clear(record)
        if node:
            self._cluster.nominations.set(record, node)
        if write and record.key in self.records:  # an expected pod has no object
            self._note(record.key, "nominated to" if node else "nomination withdrawn", node or old)
            self._write_nomination(record, node)
        if old and wake:
            self._wake_nomination(old, record)

    def _wake_nomination(self, node: str, record: PodRecord) -> None:
        self.queue.wake(ClusterChange(NOMINATION, self._columns.row_of.get(node, -1), record))

    def _assume(self, record: PodRecord, unit: SchedulingUnit, row: int, listens: bool) -> None:
        """Count the pod on a row, and clear its nomination."""
        columns, queue = self._columns, self.queue
        if record.row < 0:
            columns.place(record, row)
        record.node_name = columns.names[row]
        nominated = self._cluster.nominations.clear(record)
        if nominated and nominated != record.node_name:
            self._wake_nomination(nominated, record)
        self._placed(record.priority)
        if listens:
            queue.wake(ClusterChange(PLACED, row, record))
        self.unit_of[record.key] = unit
        unit.records.pop(record.key, None)

    def _hold(self, record: PodRecord, held: OnHold) -> None:
        """Store what the pod waits for before its Bind."""
        self.holding[record.key] = held

    def _bind(self, record: PodRecord, decision: int) -> None:
        """Store the id of the Bind decision."""
        if self.holding:
            self.holding.pop(record.key, None)
        record.bind = decision
        if record.key in self._noted:
            self._note(record.key, "binding to", record.node_name)

    def _confirm(self, record: PodRecord) -> None:
        """Clear the id of the Bind decision: it has its outcome."""
        record.bind = 0

    def _shown(self, record: PodRecord) -> None:
        """End a wait: the informer shows the pod on its chosen node."""
        self.announced.discard(record.key)
        if self.holding:
            self.holding.pop(record.key, None)
        self.unit_of.pop(record.key, None)
        if record.key in self._noted:
            self._note(record.key, "shown on", record.node_name)

    def _found(self, record: PodRecord, node: str, old: PodRecord | None = None, row: int = -1) -> None:
        """Count the pod on the node that the informer shows. `old`: its former record, counted on `row`."""
        record.node_name = node
        record.pod = None
        if old is None:
            if record.key in self._noted:
                self._note(record.key, "found on", node)
            self._count_on_node(record)
            if self._members.claims(record):
                self._members.found(record)
            return
        record.bind = old.bind  # a later version of a bound pod
        if row < 0:
            self._count_on_node(record)
            return
        self._columns.place(record, row)
        self.externally_filled_rows.add(row)
        self.queue.wake(ClusterChange(Wake.POD_LABELS, row, record))
        self.queue.wake(ClusterChange(LEFT, row, old))

    def _roll_back(self, record: PodRecord, why: str) -> None:
        """Remove the pod from its row and undo Reserve."""
        row = record.row
        self.holding.pop(record.key, None)
        unreserve(self._cluster, record, row)
        self._off_unknown_node(record)
        self._note(record.key, "taken back", why)
        record.bind = 0
        record.node_name = ""
        if row >= 0:
            self._columns.unplace(record)
            self.queue.wake(ClusterChange(LEFT, row, record))

    def _forget(self, record: PodRecord, successor: PodRecord | None, finished: bool) -> None:
        """Drop the record; `successor`: a later version of the pod, which keeps its nomination."""
        if successor is not None:
            node = self._cluster.nominations.clear(record)
            self._cluster.nominations.clear(successor)  # its object may name a node that was given up since
            self._cluster.shapes.keep(successor.shape)
            self._cluster.shapes.drop(record.shape)
            self.records[record.key] = successor
            if node:
                self._cluster.nominations.set(successor, node)
            return
        self.announced.discard(record.key)
        if record.key in self._noted:
            self._note(record.key, "finished" if finished else "deleted")
        del self.records[record.key]
        self._cluster.shapes.drop(record.shape)
        self.units.pod_gone(record)
        if self._members.claims(record):
            self._members.gone(record, finished=finished)

    # ---- nodes

    def _count_on_node(self, record: PodRecord) -> None:
        """Count a bound pod on its node, or wait until the node appears."""
        row = self._columns.row_of.get(record.node_name, -1)
        if row < 0:
            self.pods_on_unknown_nodes.setdefault(record.node_name, {})[record.key] = record
            return
        self._columns.place(record, row)
        self.externally_filled_rows.add(row)
        self._placed(record.priority)
        self.queue.wake(ClusterChange(PLACED, row, record))

    def _off_unknown_node(self, record: PodRecord) -> None:
        """Stop waiting for the node of a pod."""
        pods = self.pods_on_unknown_nodes.get(record.node_name)
        if pods is not None and pods.get(record.key) is record:
            del pods[record.key]
            if not pods:
                del self.pods_on_unknown_nodes[record.node_name]

    def node_appeared(self, name: str, row: int) -> None:
        """Count the pods that were bound to a node before it was known."""
        for record in self.pods_on_unknown_nodes.pop(name, {}).values():
            self._columns.place(record, row)
            self.externally_filled_rows.add(row)
            self._placed(record.priority)

    def node_vanished(self, name: str, pods: list[PodRecord]) -> None:
        if pods:
            self.pods_on_unknown_nodes[name] = {record.key: record for record in pods}


_L = PodLifecycle
TRANSITIONS: dict[tuple[PodState, PodState], Transition] = {
    (PENDING, PENDING): Transition(_L._nominate, "nominated, or nomination cleared"),
    (PENDING, ASSUMED): Transition(_L._assume, "placed by an attempt"),
    (PENDING, BOUND): Transition(_L._found, "bound by another scheduler"),
    (PENDING, GONE): Transition(_L._forget, "deleted or updated"),
    (ASSUMED, ASSUMED): Transition(_L._hold, "waits for Permit, PreBind or a later step"),
    (ASSUMED, BINDING): Transition(_L._bind, "Bind decided"),
    (ASSUMED, PENDING): Transition(_L._roll_back, "refused by a plugin"),
    (ASSUMED, BOUND): Transition(_L._shown, "seen on its node"),
    (BINDING, CONFIRMED): Transition(_L._confirm, "Bind acknowledged"),
    (BINDING, PENDING): Transition(_L._roll_back, "Bind failed"),
    (BINDING, BOUND): Transition(_L._shown, "seen on its node"),
    # Acknowledged, but shown elsewhere or unbound: the informer is right.
    (CONFIRMED, PENDING): Transition(_L._roll_back, "seen elsewhere or deleted"),
    (CONFIRMED, BOUND): Transition(_L._shown, "seen on its node"),
    (BOUND, BOUND): Transition(_L._confirm, "Bind answered late"),
    (BOUND, GONE): Transition(_L._forget, "deleted, finished or updated"),
}
# Rows: state before; columns: state after. A list, because hashing an enum for every transition is slow.
_TABLE = [
    [found.function if (found := TRANSITIONS.get((before, after))) is not None else None for after in PodState]
    for before in PodState
]
