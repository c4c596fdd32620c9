"""The free GPUs of all nodes: extended resources, devices, and shares of devices, brought up to date row by row.

Devices that several nodes can use do not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.state import ALL_ROWS, DeviceState
from phalanx.engine.framework import Bools, Floats, Rows
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import ChangeLog

MOST_EXPRESSIONS = 1024  # of device selectors
MOST_DEVICES = 64  # devices of one node that count


class FreeGPUs:
    def __init__(self, state: DeviceState, columns: Columns) -> None:
        self.state = state
        self.columns = columns
        self.idle: Floats = np.zeros(0)  # (capacity,) free GPUs
        self.offers: Bools = np.zeros(0, dtype=np.bool_)  # (capacity,) the node has GPUs, free or not
        self.devices: Floats = np.zeros((0, 1))  # (capacity, devices) free share of each device, 0..1
        self.kinds: Rows = np.zeros((0, 1), dtype=np.int64)  # (capacity, devices) kind of each device; 0: no device
        self.examples: list[Device] = []  # of each kind, from 1
        self.log = ChangeLog[int]()  # rows that changed, or ALL_ROWS
        self._kinds: dict[Any, int] = {}
        self._expressions: dict[str, None] = {}  # of the device selectors of pods
        self._mentioned: dict[str, bool] = {}  # attribute -> some expression contains its name
        self._seen = (-1, -1, -1)  # generation and position of the columns, position of the devices
        self._published = (-1, -1)  # versions of the devices and of their classes

    def sync(self) -> None:
        columns, state = self.columns, self.state
        state.sync()
        now = (columns.generation, columns.log.position, state.log.position)
        if now == self._seen:
            return
        known = self._seen[0] == now[0] and len(self.idle) == columns.capacity
        changes = columns.log.since(self._seen[1]) if known else None
        touched = state.log.since(self._seen[2]) if known else None
        published, self._published = self._published, (state.inventory.version, state.specs.version)
        self._seen = now
        # ALL_ROWS without another version: a device that several nodes can use was allocated or released.
        if changes is None or touched is None or (ALL_ROWS in touched and published != self._published):
            self._start_over()
            return
        rows = {row: None for row in touched if ALL_ROWS < row < columns.capacity}
        extended = frozenset(columns.devices())
        for row, record, _ in changes:
            if record is None or any(rid in extended for rid, _ in record.shape.requests):
                rows[row] = None
        for row in rows:
            self._read(row)
        self.log.extend(list(rows))

    def _start_over(self) -> None:
        capacity = self.columns.capacity
        self._kinds, self.examples = {}, []
        self.idle = np.zeros(capacity)
        self.offers = np.zeros(capacity, dtype=np.bool_)
        self.devices = np.zeros((capacity, 1))
        self.kinds = np.zeros((capacity, 1), dtype=np.int64)
        for row in range(self.columns.n):
            self._read(row)
        self.log.append(ALL_ROWS)

    def _read(self, row: int) -> None:
        columns = self.columns
        view = self.state.view(row)
        devices = [each for each in view.devices if each.reach.node] if view.shared else view.devices
        devices = devices[:MOST_DEVICES]
        if (more := len(devices) - self.devices.shape[1]) > 0:
            self.devices = np.pad(self.devices, ((0, 0), (0, more)))
            self.kinds = np.pad(self.kinds, ((0, 0), (0, more)))
        self.devices[row], self.kinds[row] = 0.0, 0
        idle = float(sum(columns.alloc_cell[rid][row] - columns.used_cell[rid][row] for rid in columns.devices()))
        for at, device in enumerate(devices):
            share = self._free_share(device)
            idle += share
            self.devices[row, at], self.kinds[row, at] = share, self._kind(device)
        alive = bool(columns.alive[row])
        self.idle[row] = idle if alive else 0.0
        self.offers[row] = alive and (bool(devices) or any(columns.alloc_cell[rid][row] for rid in columns.devices()))

    def _free_share(self, device: Device) -> float:
        """Return the free share of a device, 0 to 1."""
        holdings = self.state.holdings
        if holdings.in_use(device):
            return 0.0
        limits = [(name, rule.value) for name, rule in device.capacity.items() if rule.value] if device.multiple else ()
        return min((1.0 - holdings.consumed(device, name) / limit for name, limit in limits), default=1.0)

    def _kind(self, device: Device) -> int:
        """Return a number that is equal for devices which requests do not distinguish. An attribute that no selector
        names does not count: each device may have a serial number."""
        taints = tuple((taint.key, taint.value, taint.effect) for taint in device.taints)
        attributes = tuple((name, value) for name, value in sorted(device.attributes.items()) if self._matters(name))
        key = (device.driver, device.multiple, attributes, tuple(sorted(device.capacity.items())), taints)
        kind = self._kinds.get(key)
        if kind is None:
            self.examples.append(device)
            kind = self._kinds[key] = len(self.examples)
        return kind

    def _matters(self, attribute: str) -> bool:
        name = attribute.rpartition("/")[2]
        known = self._mentioned.get(name)
        if known is None:
            known = self._mentioned[name] = any(name in expression for expression in self._expressions)
        return known

    def learn(self, request: AllocationRequest) -> None:
        """Let kinds of devices differ in the attributes that a request names. The next `sync` reads all devices."""
        for expression, _ in request.selectors:
            if expression in self._expressions or len(self._expressions) >= MOST_EXPRESSIONS:
                continue
            self._expressions[expression] = None
            for name, known in self._mentioned.items():
                if not known and name in expression:
                    self._mentioned[name] = True
                    self._seen = (-1, -1, -1)
