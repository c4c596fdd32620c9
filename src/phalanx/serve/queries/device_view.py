"""Devices for the dashboard: a column of node rows per device class, and the devices of one node.

A class is named by the extended resource for its devices (KEP-5004), so that every view of resources shows devices.
Counts equal those of `phalanx top`: both use `device_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from phalanx.engine.devices.facts import ruled_out
from phalanx.engine.devices.inventory import Device, DeviceKey
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.state import ALL_ROWS, DeviceState, extended_key
from phalanx.engine.explain.device_table import any_of, asked_devices, device_table
from phalanx.engine.state.claims import ClaimKey
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.kinds import Json
from phalanx.model.objects import DeviceClass
from phalanx.model.objects.devices import IMPLICIT_RESOURCE_PREFIX
from phalanx.model.quantity import Quantity

MOST_DEVICES = 256  # listed devices per node


class ClassCount(NamedTuple):
    """Devices of one class that only one node can use."""

    usable: int = 0  # not tainted
    in_use: int = 0


class DeviceView:
    """Device counts of one engine by node, updated after changes."""

    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self._position = -1
        self._counts: dict[int, dict[str, ClassCount]] = {}  # row -> class -> counts
        self._classes: dict[str, AllocationRequest] = {}  # class -> a request for one of its devices
        self._shown: tuple[str, ...] = ()

    # ---- columns

    def changed(self) -> set[int] | None:
        """Return the rows whose devices may have changed since the last call; None: all rows."""
        self._sync()
        log = self._state.log
        rows = log.since(self._position) if self._position >= 0 else None
        self._position = log.position
        again = None if rows is None or ALL_ROWS in rows else set(rows)
        if again is None:
            self._counts.clear()
        else:
            for row in again:
                self._counts.pop(row, None)
        shown = self._shown
        self._shown = self.resources()
        return again if self._shown == shown else None

    def resources(self) -> tuple[str, ...]:
        """Return the column names: every class of which a node has devices."""
        self._sync()
        rows = self._state.columns.row_of.values() if self._classes else ()
        has = {name for row in rows for name in self._row(row)}
        return tuple(IMPLICIT_RESOURCE_PREFIX + name for name in sorted(has))

    def cells(self, row: int, resources: Iterable[str]) -> list[ClassCount]:
        """Return the counts of a node, one per column."""
        found = self._row(row)
        return [found.get(name.removeprefix(IMPLICIT_RESOURCE_PREFIX), ClassCount()) for name in resources]

    def shares(self, resource: str) -> tuple[float, float]:
        """Return the used share of a column's devices, and the share of free devices on nodes with used ones."""
        counts = [self.cells(row, [resource])[0] for row in self._state.columns.row_of.values()]
        total, used = sum(each.usable for each in counts), sum(each.in_use for each in counts)
        beside = sum(each.usable - each.in_use for each in counts if each.in_use)
        return round(used / total, 4) if total else 0.0, round(beside / (total - used), 4) if total > used else 0.0

    def held(self, records: Iterable[PodRecord], resource: str) -> dict[str, int]:
        """Return the number of devices of a column per pod, for pods of one node, by pod key.

        A claim, or a device, shared by several pods counts for the first one.
        """
        request = self._classes.get(resource.removeprefix(IMPLICIT_RESOURCE_PREFIX))
        seen: set[ClaimKey] = set()
        counted: set[DeviceKey] = set()
        found: dict[str, int] = {}
        for record in records if request is not None else ():
            for key in (*record.claims, extended_key(record)):
                held = self._state.holdings.claims.get(key)
                if held is None or key in seen:
                    continue
                seen.add(key)
                devices = {device for device, _ in held.devices} - counted
                counted |= devices
                known = (self._state.inventory.devices.get(device) for device in devices)
                count = sum(1 for device in known if device is not None and self._selects(request, device))
                if count:
                    found[record.key] = found.get(record.key, 0) + count
        return found

    def _selects(self, request: AllocationRequest | None, device: Device) -> bool:
        return request is not None and request.selects(device, self._state.selectors) is True

    def _sync(self) -> None:
        self._state.sync()
        names = (each.metadata.name for each in self._state.objects.all(DeviceClass))
        found = ((name, any_of(self._state, name)) for name in names)
        self._classes = {name: request for name, request in found if request is not None}

    def _row(self, row: int) -> dict[str, ClassCount]:
        known = self._counts.get(row)
        if known is None:
            known = self._counts[row] = {}
            own = [device for device in self._state.view(row).devices if device.reach.node]
            for name, request in self._classes.items() if own else ():
                mine = [device for device in own if self._selects(request, device)]
                if mine:
                    usable = [device for device in mine if not device.taints or request.tolerates(device)]
                    used = sum(1 for device in usable if ruled_out(self._state, request, device))
                    known[name] = ClassCount(len(usable), used)
        return known

    # ---- requests of pods

    def asked(self, shape: Shape) -> dict[str, int]:
        """Return the number of devices of each column that a pod requests; of alternatives, the first."""
        asked = asked_devices(self._state, shape)
        return {IMPLICIT_RESOURCE_PREFIX + name: count for name, count in asked.items()}

    def free(self, keys: Sequence[str], shapes: Iterable[Shape]) -> list[Json]:
        """Return the `device_table` rows of the classes in the claims of these shapes."""
        wanted: set[str] = set()
        for shape in shapes:
            for claim in self._state.specs_of(shape):
                for request in claim.requests:
                    options = [*([request.exactly] if request.exactly else ()), *request.first_available]
                    wanted.update(each.device_class_name for each in options)
        table = device_table(self._state, keys) if wanted else []
        return [msgspec.to_builtins(each) for each in table if each.device_class in wanted]

    # ---- one node

    def on(self, row: int) -> list[Json]:
        """Return the devices that a node can use, with their claims and pods."""
        self._sync()
        state = self._state
        devices = state.view(row).devices[:MOST_DEVICES]
        wanted = {device.key for device in devices}
        claims: dict[tuple[str, str, str], list[ClaimKey]] = {}
        for key, held in state.holdings.claims.items():
            for device_key, _ in held.devices:
                if device_key in wanted:
                    claims.setdefault(device_key, []).append(key)
        pods: dict[ClaimKey, list[str]] = {}
        for record in state.columns.pods[row].values():
            for key in (*record.claims, extended_key(record)):
                pods.setdefault(key, []).append(record.key)
        return [self._device(device, claims.get(device.key, []), pods) for device in devices]

    def _device(self, device: Device, claims: list[ClaimKey], pods: dict[ClaimKey, list[str]]) -> Json:
        """Return a device for the dashboard. `pods`: by claim."""
        holdings = self._state.holdings
        selected = [name for name, request in self._classes.items() if self._selects(request, device)]
        reasons = [ruled_out(self._state, self._classes[name], device) for name in selected]
        taints = [f"{t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in device.taints]
        state = "free" if not claims else "shared" if holdings.shared(device) else "in use"
        if state == "free" and taints:
            state = "tainted"
        elif state == "free" and reasons and all(reasons):
            state = "blocked"  # its shared counters are used up by other devices
        shares = [
            [name, str(Quantity(holdings.consumed(device, name), rule.format)), str(Quantity(rule.value, rule.format))]
            for name, rule in device.capacity.items()
            if device.multiple
        ]
        users = dict.fromkeys(pod for key in claims for pod in pods.get(key, ()))
        return {
            "driver": device.driver,
            "pool": device.pool.key[1],
            "name": device.name,
            "classes": sorted(selected),
            "state": state,
            "why": next((reason for reason in reasons if reason), "") if state in ("blocked", "tainted") else "",
            "claims": ["/".join(key) if key[0] else "of extended resources" for key in claims],
            "pods": list(users),
            "taints": taints,
            "shares": shares,
            "local": bool(device.reach.node),
            "attributes": {name: str(value) for name, (_, value) in device.attributes.items()},
        }
