"""The cluster as numpy columns: a node is a row, a resource or label key is a column made when somebody asks for it.

Nothing here decides anything. All changes go through `set_node`, `remove_node`, `place` and `unplace`; each of them
logs what it changed and can be undone by the journal. Rows keep the order in which nodes arrived (a freed row is
reused): the row number is the stable tie-break of every choice.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from phalanx.engine.state.images import ImageIndex
from phalanx.engine.state.journal import Change, ChangeLog, Journal
from phalanx.engine.state.labels import LabelColumn
from phalanx.engine.state.ports import PortIndex
from phalanx.engine.state.requests import is_device, offered
from phalanx.model.objects import Node
from phalanx.model.objects.node import Taint

if TYPE_CHECKING:
    from phalanx.engine.state.records import PodRecord

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Cells = list[MutableSequence[float]]

# Resource ids that always exist. "pods" is a resource of which every pod asks 1.
CPU, MEMORY, STORAGE, PODS = range(4)
_FIRST = ("cpu", "memory", "ephemeral-storage", "pods")
MAX_DEVICES = 16  # kinds of device that get a column because a node offers them, before any pod asks


class Columns:
    def __init__(self, capacity: int = 64) -> None:
        self.journal = Journal()
        self.log = ChangeLog[Change]()
        self.capacity = capacity
        self.n = 0  # rows ever used; rows with alive False in between are free
        self.count = 0  # nodes
        self.generation = 0  # +1 whenever the arrays are replaced by larger ones
        self.row_of: dict[str, int] = {}
        self.names: list[str] = []  # "" on a free row
        self.nodes: list[Node | None] = []
        self.pods: list[dict[str, PodRecord]] = []  # per row, by pod key
        self._free: list[int] = []
        self.resources: dict[str, int] = {name: rid for rid, name in enumerate(_FIRST)}
        self.resource_names: list[str] = list(_FIRST)
        self.alive: Bools = np.zeros(capacity, dtype=np.bool_)
        self.alloc: Floats = np.zeros((8, capacity))  # (R, N) float64: milli cpu, bytes, units
        self.used: Floats = np.zeros((8, capacity))  # (R, N) float64, sum of requests of pods placed here
        self.nonzero: Floats = np.zeros((2, capacity))  # (2, N) milli cpu, bytes incl. defaults
        self.unschedulable: Bools = np.zeros(capacity, dtype=np.bool_)
        self.taint_set: Ints = np.zeros(capacity, dtype=np.int32)  # index into taint_sets
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_ids: dict[tuple[Taint, ...], int] = {(): 0}
        self.labels: dict[str, LabelColumn] = {}
        self.ports = PortIndex()
        self.images = ImageIndex()
        self.shared: dict[type[Any], Any] = {}  # what plugins share about these columns, one instance per class
        self._view()

    def _view(self) -> None:
        """Memoryviews share the arrays' memory and give Python floats: three times quicker for single cells."""
        self.alloc_cell = _cells(self.alloc)
        self.used_cell = _cells(self.used)
        self.nonzero_cell = _cells(self.nonzero)
        self.generation += 1

    # ---- columns on demand

    def resource(self, name: str) -> int:
        """Id of a resource; its columns are made and filled the first time somebody asks."""
        rid = self.resources.get(name)
        if rid is not None:
            return rid
        rid = len(self.resource_names)
        self.resources[name] = rid
        self.resource_names.append(name)
        if rid >= len(self.alloc):
            self.alloc = np.concatenate([self.alloc, np.zeros_like(self.alloc)])
            self.used = np.concatenate([self.used, np.zeros_like(self.used)])
            self._view()
        cells = self.alloc_cell[rid]
        for row, node in enumerate(self.nodes):
            if node is not None:
                cells[row] = offered(name, node.status.allocatable.get(name))
        return rid

    def devices(self) -> list[int]:
        """Ids of the devices that nodes offer, or that pods asked for."""
        return [rid for rid, name in enumerate(self.resource_names) if is_device(name)]

    def forget_resources(self, keep: int) -> None:
        """Forget the youngest resources, all but the first `keep`: only a trial asked for them, and nobody may since
        have learned their ids."""
        for name in self.resource_names[keep:]:
            rid = self.resources.pop(name)
            self.alloc[rid, :] = 0.0
        del self.resource_names[keep:]

    def label(self, key: str) -> LabelColumn:
        """The column of a node label key, made and filled the first time somebody asks."""
        column = self.labels.get(key)
        if column is None:
            column = self.labels[key] = LabelColumn(key, self.capacity)
            for row, node in enumerate(self.nodes):
                if node is not None:
                    column.set(row, node.metadata.labels.get(key))
        return column

    # ---- nodes

    def set_node(self, node: Node) -> int:
        """Add a node or replace what is known of it; returns its row."""
        name = node.metadata.name
        row = self.row_of.get(name, -1)
        old: Node | None = None
        if row < 0:
            row = self._new_row()
            self.row_of[name] = row
            self.names[row] = name
            self.alive[row] = True
            self.count += 1
            self.journal.push(self.remove_node, name)
        else:
            old = self.nodes[row]
            self.journal.push(self.set_node, old)
        self.nodes[row] = node
        allocatable = node.status.allocatable
        for resource in allocatable:
            if is_device(resource) and resource not in self.resources and len(self.devices()) < MAX_DEVICES:
                self.resource(resource)
        for resource, rid in self.resources.items():
            self.alloc_cell[rid][row] = offered(resource, allocatable.get(resource))
        for key, column in self.labels.items():
            column.set(row, node.metadata.labels.get(key))
        taints = tuple(node.spec.taints or ())
        taint_id = self._taint_ids.get(taints)
        if taint_id is None:
            taint_id = self._taint_ids[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        self.taint_set[row] = taint_id
        self.unschedulable[row] = node.spec.unschedulable
        self.images.set(row, node.status.images or [], (old.status.images if old else None) or [])
        self.log.append((row, None, 0))
        return row

    def remove_node(self, name: str) -> list[PodRecord]:
        """Forget a node; the pods that were on it are unplaced and returned."""
        row = self.row_of[name]
        node = self.nodes[row]
        assert node is not None
        stranded = list(self.pods[row].values())
        for record in stranded:
            self.unplace(record)
        self.images.set(row, [], node.status.images or [])
        for column in self.labels.values():
            column.set(row, None)
        for rid in range(len(self.resource_names)):
            self.alloc_cell[rid][row] = 0.0
        self.alive[row] = False
        self.nodes[row] = None
        self.names[row] = ""
        self.taint_set[row] = 0
        self.unschedulable[row] = False
        del self.row_of[name]
        self._free.append(row)
        self.count -= 1
        self.journal.push(self.set_node, node)
        self.log.append((row, None, 0))
        return stranded

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self.n == self.capacity:
            self._grow()
        row = self.n
        self.n += 1
        self.names.append("")
        self.nodes.append(None)
        self.pods.append({})
        return row

    def _grow(self) -> None:
        more = self.capacity
        self.alive = np.concatenate([self.alive, np.zeros(more, dtype=np.bool_)])
        self.unschedulable = np.concatenate([self.unschedulable, np.zeros(more, dtype=np.bool_)])
        self.taint_set = np.concatenate([self.taint_set, np.zeros(more, dtype=np.int32)])
        self.alloc = np.concatenate([self.alloc, np.zeros((len(self.alloc), more))], axis=1)
        self.used = np.concatenate([self.used, np.zeros((len(self.used), more))], axis=1)
        self.nonzero = np.concatenate([self.nonzero, np.zeros((2, more))], axis=1)
        for column in self.labels.values():
            column.grow(more)
        self.capacity += more
        self._view()

    # ---- pods

    def place(self, record: PodRecord, row: int) -> None:
        """Count a pod on a row. The caller has decided that it belongs there; nothing is checked."""
        shape = record.shape
        cells = self.used_cell
        for rid, amount in shape.requests:
            cells[rid][row] += amount
        nonzero = self.nonzero_cell
        nonzero[0][row] += shape.nonzero[0]
        nonzero[1][row] += shape.nonzero[1]
        if shape.host_ports:
            self.ports.add(row, shape.host_ports)
        self.pods[row][record.key] = record
        record.row = row
        if self.journal.recording:
            self.journal.push(self.unplace, record)
        self.log.append((row, record, 1))

    def unplace(self, record: PodRecord) -> None:
        """Take a pod off its row."""
        row = record.row
        shape = record.shape
        cells = self.used_cell
        for rid, amount in shape.requests:
            cells[rid][row] -= amount
        nonzero = self.nonzero_cell
        nonzero[0][row] -= shape.nonzero[0]
        nonzero[1][row] -= shape.nonzero[1]
        if shape.host_ports:
            self.ports.remove(row, shape.host_ports)
        del self.pods[row][record.key]
        record.row = -1
        if self.journal.recording:
            self.journal.push(self.place, record, row)
        self.log.append((row, record, -1))


def _cells(array: Floats) -> Cells:
    return cast("Cells", [memoryview(row) for row in array])
