"""Count the devices of every class by topology domain: how many there are, in use, tainted and free. Only reads."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.engine.devices.facts import ruled_out
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.state import DeviceState
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import DeviceClass
from phalanx.model.objects.devices import DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaimSpec

EVERYWHERE = "several nodes"  # the domain of devices that more than one node can use
NOWHERE = "no node"  # the domain of devices of a node that does not exist


class DeviceCounts(msgspec.Struct, rename="camel"):
    """Devices of one class in one domain, the outermost name of the domain first."""

    device_class: str
    path: list[str]
    devices: int = 0
    in_use: int = 0
    tainted: int = 0
    free: int = 0
    most_on_node: int = 0  # free devices on the node that has most of them


def device_table(state: DeviceState, keys: Sequence[str]) -> list[DeviceCounts]:
    """Return the counts by class and by the domain that the labels `keys` name; without keys, by class alone."""
    state.sync()
    found: list[DeviceCounts] = []
    names = sorted(each.metadata.name for each in state.objects.all(DeviceClass))
    for name in names:
        request = any_of(state, name)
        if request is not None:
            found += _counts(state, name, request, keys)
    return found


def asked_devices(state: DeviceState, shape: Shape) -> dict[str, int]:
    """Return the number of devices of each class that a pod requests; of alternatives, the first."""
    found: dict[str, int] = {}
    for claim in state.specs_of(shape):
        for request in claim.requests:
            first = next((each for each in (request.exactly, *request.first_available) if each is not None), None)
            if first is not None:
                found[first.device_class_name] = found.get(first.device_class_name, 0) + max(1, first.count)
    return found


def any_of(state: DeviceState, name: str) -> AllocationRequest | None:
    """Return a request for one device of a class; None if the class cannot be compiled."""
    exactly = ExactDeviceRequest(device_class_name=name, allocation_mode="ExactCount", count=1)
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=[DeviceRequest(name="any", exactly=exactly)]))
    compiled = state.specs.of_spec(spec, ("table", name), f"class {name}")
    return None if compiled.problem or compiled.error else compiled.requests[0][0]


def _counts(state: DeviceState, name: str, request: AllocationRequest, keys: Sequence[str]) -> list[DeviceCounts]:
    columns = state.columns
    by_domain: dict[tuple[str, ...], DeviceCounts] = {}
    on_node: dict[tuple[tuple[str, ...], str], int] = {}
    for device in state.inventory.devices.values():
        if request.selects(device, state.selectors) is not True:
            continue
        node = device.reach.node
        row = columns.row_of.get(node, -1)
        at: tuple[str, ...] = () if row >= 0 else (NOWHERE if node else EVERYWHERE,)
        if row >= 0 and (known := columns.nodes[row]) is not None:
            at = tuple(known.metadata.labels.get(key, "") for key in keys)
        counts = by_domain.get(at)
        if counts is None:
            counts = by_domain[at] = DeviceCounts(name, list(at))
        counts.devices += 1
        if device.taints and not request.tolerates(device):
            counts.tainted += 1
        elif ruled_out(state, request, device):
            counts.in_use += 1
        elif at != (NOWHERE,):
            counts.free += 1
            on_node[at, node] = on_node.get((at, node), 0) + 1
            counts.most_on_node = max(counts.most_on_node, on_node[at, node])
    return [by_domain[at] for at in sorted(by_domain)]
