"""Hold the cluster as numpy columns: a node is a row; a resource or label key is a column created on first use.

This module makes no decisions. All changes go through `set_node`, `remove_node`, `place` and `unplace`; each logs its
change and can be undone by the journal. Rows keep the order in which nodes arrived (a freed row is reused): the row
number is the stable tie-break of every choice.

`remove_unused` removes columns, values and taints that are no longer used. Code may keep a column or an id only as long
as `generation` stays the same.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from copy import copy
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from phalanx.engine.state.journal import Change, ChangeLog, Journal
from phalanx.engine.state.labels import FEW, LabelColumn
from phalanx.engine.state.requests import is_device, offered
from phalanx.model.objects import Node
from phalanx.model.objects.cluster import ContainerImage, Taint

if TYPE_CHECKING:
    from phalanx.engine.state.records import PodRecord
    from phalanx.engine.state.shapes import Shape


HostPort = tuple[str, str, int]  # (host ip, protocol, port)
ANY = "0.0.0.0"


class PortIndex:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        # (protocol, port) -> row -> host ip -> number of pods
        self._rows: dict[tuple[str, int], dict[int, dict[str, int]]] = {}

    def add(self, row: int, ports: Iterable[HostPort]) -> None:
        for ip, protocol, port in ports:
            ips = self._rows.setdefault((protocol, port), {}).setdefault(row, {})
            ips[ip] = ips.get(ip, 0) + 1

    def remove(self, row: int, ports: Iterable[HostPort]) -> None:
        for ip, protocol, port in ports:
            rows = self._rows[protocol, port]
            ips = rows[row]
            if ips[ip] > 1:
                ips[ip] -= 1
                continue
            del ips[ip]
            if not ips:
                del rows[row]
                if not rows:
                    del self._rows[protocol, port]

    def conflict(self, row: int, ports: Iterable[HostPort]) -> bool:
        return any(
            row in rows and _clash(ip, rows[row])
            for ip, protocol, port in ports
            if (rows := self._rows.get((protocol, port)))
        )

    def conflicts(self, ports: Iterable[HostPort]) -> set[int]:
        """Return the rows on which at least one of the ports is in use."""
        return {
            row
            for ip, protocol, port in ports
            for row, ips in self._rows.get((protocol, port), {}).items()
            if _clash(ip, ips)
        }


def _clash(ip: str, taken: dict[str, int]) -> bool:
    """Return True if an address conflicts. The wildcard address conflicts with every address."""
    return ip == ANY or ip in taken or ANY in taken


class ImageIndex:
    __slots__ = ("_rows", "version")

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, int]] = {}  # image name -> row -> size in bytes
        self.version = 0  # +1 with every change: a score depends on how many nodes have the image

    def set(self, row: int, images: Iterable[ContainerImage], old: Iterable[ContainerImage]) -> None:
        """Replace the images of a row."""
        if images == old:
            return
        for image in old:
            for name in image.names or ():
                rows = self._rows.get(name)
                if rows is not None:
                    rows.pop(row, None)
                    if not rows:
                        del self._rows[name]
        for image in images:
            for name in image.names or ():
                self._rows.setdefault(name, {})[row] = max(image.size_bytes, 0)
        self.version += 1

    def holders(self, name: str) -> dict[int, int]:
        """Return row -> size in bytes for every node that has the image."""
        return self._rows.get(name, {})


Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Cells = list[MutableSequence[float]]

# Resource ids that always exist. "pods" is a resource of which every pod requests 1.
CPU, MEMORY, STORAGE, PODS = range(4)
_FIRST = ("cpu", "memory", "ephemeral-storage", "pods")
FEW_ROWS = 16  # below this number of cells, a loop is faster than numpy
# maximum number of extended resources that get a column because a node offers them, before any pod requests them
MAX_DEVICES = 16
# Columns of resources. Pods may name any number of resources; beyond this number those that no node offers share one.
MOST_RESOURCES = 512
NOT_OFFERED = "resources/that-no-node-offers"  # the shared column
FEWEST_CHANGES, CHANGES_PER_ROW, MOST_CHANGES = 2_048, 16, 16_384  # in the log


def _changes_kept(rows: int) -> int:
    """Return how many changes the log keeps: a reader that missed more per row had better start over.

    Changes refer to the records of pods that are gone, so they bound the memory of a small cluster with much churn.
    """
    return min(MOST_CHANGES, max(FEWEST_CHANGES, CHANGES_PER_ROW * rows))


class Columns:
    def __init__(self, capacity: int = 64) -> None:
        self.journal = Journal()
        self.log = ChangeLog[Change](keep=_changes_kept(capacity))
        self.capacity = capacity
        self.n = 0  # rows ever used; rows with alive False in between are free
        self.count = 0  # nodes
        self.generation = 0  # +1 whenever the arrays are replaced by larger ones or the meaning of ids changes
        self.row_of: dict[str, int] = {}
        self.names: list[str] = []  # "" on a free row
        self.nodes: list[Node | None] = []
        self.pods: list[dict[str, PodRecord]] = []  # per row, by pod key
        self._free: list[int] = []
        self.resources: dict[str, int] = {name: rid for rid, name in enumerate(_FIRST)}
        self.resource_names: list[str] = list(_FIRST)  # "" for an id that is free
        self._devices: list[int] = []
        self._offered: dict[str, int] = {}  # resource -> number of nodes that offer it
        self.offers_shared = 0  # +1 when a node offers a resource that may have shared a column
        self.alive: Bools = np.zeros(capacity, dtype=np.bool_)
        self.alloc: Floats = np.zeros((8, capacity))  # (R, N) float64: milli cpu, bytes, units
        self.used: Floats = np.zeros((8, capacity))  # (R, N) float64, sum of requests of pods placed here
        self.nonzero: Floats = np.zeros((2, capacity))  # (2, N) milli cpu, bytes incl. defaults
        self.unschedulable: Bools = np.zeros(capacity, dtype=np.bool_)
        self.taint_set: Ints = np.zeros(capacity, dtype=np.int32)  # index into taint_sets
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_ids: dict[tuple[Taint, ...], int] = {(): 0}
        self.labels: dict[str, LabelColumn] = {}
        self._lasting: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset(_FIRST))  # labels, resources
        self._round = 0  # number of tidy rounds
        # `remove_unused` runs above these numbers of entries. `_writes` counts node writes since its last run.
        self._most_labels = self._most_resources = self._most_taints = FEW
        self._writes = 0
        self.ports = PortIndex()
        self.images = ImageIndex()
        self._view()

    def _view(self) -> None:
        """Create memoryviews of the arrays, which return Python floats: three times faster for single cells."""
        self.alloc_cell = _cells(self.alloc)
        self.used_cell = _cells(self.used)
        self.nonzero_cell = _cells(self.nonzero)
        self.generation += 1

    # ---- columns on demand

    def resource(self, name: str, *, own: bool = False) -> int:
        """Return the id of a resource; create and fill its columns on first use.

        `own`: also beyond `MOST_RESOURCES`, for a name that no user of a namespace can choose.
        """
        rid = self.resources.get(name)
        if rid is not None:
            return rid
        if len(self.resources) >= MOST_RESOURCES and not own and name not in self._offered:
            return self.resource(NOT_OFFERED, own=True)
        if len(self.resources) < len(self.resource_names):
            rid = self.resource_names.index("")
            self.resource_names[rid] = name
        else:
            rid = len(self.resource_names)
            self.resource_names.append(name)
        self.resources[name] = rid
        if is_device(name):
            insort(self._devices, rid)
        if rid >= len(self.alloc):
            self.alloc = np.concatenate([self.alloc, np.zeros_like(self.alloc)])
            self.used = np.concatenate([self.used, np.zeros_like(self.used)])
            self._view()
        cells = self.alloc_cell[rid]
        for row, node in enumerate(self.nodes) if name in self._offered else ():
            if node is not None:
                cells[row] = offered(name, node.status.allocatable.get(name))
        return rid

    def devices(self) -> Sequence[int]:
        """Return the ids of the extended resources that nodes offer or pods requested."""
        return self._devices

    def forget_resources(self, names: Collection[str]) -> None:
        """Remove resources that no pod and no plugin requests. No code may still hold their ids."""
        for name in names:
            rid = self.resources.pop(name)
            self.alloc[rid, :] = 0.0
            self.resource_names[rid] = ""
        while not self.resource_names[-1]:
            self.resource_names.pop()
        self._devices = [rid for rid, name in enumerate(self.resource_names) if is_device(name)]

    def label(self, key: str) -> LabelColumn:
        """Return the column of a node label key; create and fill it on first use."""
        column = self.labels.get(key)
        if column is None:
            column = self.labels[key] = LabelColumn(key, self.capacity, self._round)
            for row, node in enumerate(self.nodes):
                if node is not None:
                    column.set(row, node.metadata.labels.get(key))
        column.asked = self._round
        return column

    # ---- removal of unused columns

    def keep_all(self) -> None:
        """Keep all columns known so far for ever, because plugins requested them when they were created."""
        self._lasting = (frozenset(self.labels), frozenset(self.resources))

    def outgrown(self) -> bool:
        """Return True if there are so many entries that some may belong to deleted nodes and pods."""
        return (
            len(self.labels) > self._most_labels
            or len(self.resources) > self._most_resources
            or len(self.taint_sets) > self._most_taints
            or self._writes > self.n + FEW
        )

    def remove_unused(self, requested: Collection[int]) -> None:
        """Remove unused label columns, label values, taints and resources. Must not be called inside a trial.

        A label column is unused if it was not requested since the last run, a value or taint if no node has it, a
        resource if it is neither `requested` (ids) nor offered. Remaining entries keep their order, so no choice
        changes.
        """
        again = False
        if len(self.labels) > self._most_labels:
            lasting = self._lasting[0]
            self.labels = {k: c for k, c in self.labels.items() if c.asked == self._round or k in lasting}
            used = sum(column.asked > column.made for column in self.labels.values())  # in more than one round
            self._most_labels = len(self.labels) + max(used, FEW)
            self._round += 1  # the generation changes too, so code that still uses a column requests it again
            again = True
        if len(self.resources) > self._most_resources:
            offered_now = self.alloc[:, : self.n].max(axis=1, initial=0.0)
            wanted = set(requested)
            self.forget_resources(
                [
                    n
                    for n, r in self.resources.items()
                    if r not in wanted and not offered_now[r] and n not in self._lasting[1]
                ]
            )
            self._most_resources = 2 * len(self.resources) + FEW
            again = True
        again = self._tidy_values() or again
        self.generation += again

    def _tidy_values(self) -> bool:
        self._writes = 0
        again = False
        for key, column in list(self.labels.items()):
            if key not in self._lasting[0]:
                column = copy(column)  # a suspended search continues with the column it holds
            if column.compact():
                self.labels[key] = column
                again = True
        if len(self.taint_sets) > self._most_taints:
            live = np.unique(self.taint_set[: self.n])
            live = live if live[:1].tolist() == [0] else np.concatenate([[0], live])  # free rows have taint set 0
            ids = np.zeros(len(self.taint_sets), dtype=np.int32)
            ids[live] = np.arange(len(live))
            self.taint_set = ids[self.taint_set]
            self.taint_sets = [self.taint_sets[taint_id] for taint_id in live]
            self._taint_ids = {taints: taint_id for taint_id, taints in enumerate(self.taint_sets)}
            self._most_taints = 2 * len(self.taint_sets) + FEW
            again = True
        return again

    # ---- nodes

    def set_node(self, node: Node) -> int:
        """Add or update a node; return its row."""
        name = node.metadata.name
        self._writes += 1
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
        self._count_offers(allocatable, old.status.allocatable if old is not None else {})
        for resource in allocatable:
            if resource in self.resources:
                continue
            if NOT_OFFERED in self.resources:
                self.resource(resource)
                self.offers_shared += 1
            elif is_device(resource) and len(self.devices()) < MAX_DEVICES:
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

    def _count_offers(self, new: Iterable[str], old: Iterable[str]) -> None:
        for resource in new:
            self._offered[resource] = self._offered.get(resource, 0) + 1
        for resource in old:
            self._offered[resource] -= 1
            if not self._offered[resource]:
                del self._offered[resource]

    def remove_node(self, name: str) -> list[PodRecord]:
        """Remove a node; unplace and return the pods that were on it."""
        row = self.row_of[name]
        node = self.nodes[row]
        assert node is not None
        stranded = list(self.pods[row].values())
        for record in stranded:
            self.unplace(record)
        self.images.set(row, [], node.status.images or [])
        self._count_offers((), node.status.allocatable)
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
        self.log.keep = _changes_kept(self.capacity)
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
        """Remove a pod from its row."""
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

    def place_all(self, assignment: Sequence[tuple[PodRecord, int]]) -> None:
        """Place many pods at once: half the cost of `place`, and one operation of the journal."""
        pods, shapes = self.pods, cast("dict[Shape, list[int]]", {})
        for record, row in assignment:
            pods[row][record.key] = record
            record.row = row
            shapes.setdefault(record.shape, []).append(row)
        self._add(shapes, 1)
        self.journal.push(self.unplace_all, [record for record, _ in assignment])
        self.log.extend([(row, record, 1) for record, row in assignment])

    def unplace_all(self, records: Sequence[PodRecord]) -> None:
        """Unplace many pods at once, like `place_all`."""
        assignment = [(record, record.row) for record in records]
        pods, shapes = self.pods, cast("dict[Shape, list[int]]", {})
        for record, row in assignment:
            del pods[row][record.key]
            record.row = -1
            shapes.setdefault(record.shape, []).append(row)
        self._add(shapes, -1)
        self.journal.push(self.place_all, assignment)
        self.log.extend([(row, record, -1) for record, row in assignment])

    def _add(self, shapes: Mapping[Shape, list[int]], sign: int) -> None:
        """Add the requests of pods of these shapes to these rows, or subtract them if `sign` is -1."""
        for shape, rows in shapes.items():
            count = self.ports.add if sign > 0 else self.ports.remove
            for row in rows if shape.host_ports else ():
                count(row, shape.host_ports)
            if len(rows) < FEW_ROWS:
                for rid, amount in shape.requests:
                    cells = self.used_cell[rid]
                    for row in rows:
                        cells[row] += sign * amount
                for cells, amount in zip(self.nonzero_cell, shape.nonzero, strict=True):
                    for row in rows:
                        cells[row] += sign * amount
                continue
            at = np.array(rows)
            for rid, amount in shape.requests:
                np.add.at(self.used[rid], at, sign * amount)
            for values, amount in zip(self.nonzero, shape.nonzero, strict=True):
                np.add.at(values, at, sign * amount)


def _cells(array: Floats) -> Cells:
    return cast("Cells", [memoryview(row) for row in array])
