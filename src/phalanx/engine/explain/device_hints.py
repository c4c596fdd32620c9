"""Explain why claims of a pod get no devices: how many are ruled out by selectors, tainted or in use. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.engine.devices.facts import counted, most_alike, ruled_out
from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.requests import AllocationRequest, AttributeConstraint
from phalanx.engine.devices.state import DeviceState, extended_key
from phalanx.engine.state.claims import EXTENDED, MISSING, NAMED, ClaimUse, claim_names
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape

MOST_POOLS = 3  # maximum number of pools that are named because none of their devices may be used
MOST_DEVICES = 8  # maximum number of devices that are named
MOST_SHAPES = 4  # maximum number of shapes that are explained


def for_devices(state: DeviceState, records: Iterable[PodRecord]) -> list[str]:
    """Return one line per request of these pods that has no devices yet. Of pods with equal requests, one is named."""
    state.sync()
    found: dict[str, None] = {}
    one_each: dict[Shape, PodRecord] = {}
    for record in records:
        if record.shape.claims:
            one_each.setdefault(record.shape, record)
    for shape, record in list(one_each.items())[:MOST_SHAPES]:
        names = claim_names(record.pod) if record.pod is not None else []
        for number, use in enumerate(shape.claims):
            if use.kind == MISSING:
                found[use.problem] = None
                continue
            name = _name_of(use, record, names[number][1] if number < len(names) else None)
            if use.kind == NAMED:
                claim = state.claim(use.claim)
                held = state.holdings.claims.get(use.claim)
                if claim is None or held is not None:
                    if held is not None:
                        found[f"claim {name} is allocated: the pod must go where its devices are"] = None
                    continue
                spec = state.specs.of(claim)
            else:
                spec = state.specs.of_spec(use.spec, use.key, shape.namespace)
            if spec.problem or spec.error:
                found[f"claim {name}: {spec.problem or spec.error}"] = None
                continue
            for alternatives in spec.requests:
                for request in alternatives:
                    text = _request(state, request, spec.constraints)
                    found[f"claim {name}, request {request.name}: {text}"] = None
    return [*found, *(_unusable_pools(state) if found else ())]


def _name_of(use: ClaimUse, record: PodRecord, own: str | None) -> str:
    """Return how messages name a claim. `own`: its name in the pod's namespace, if the pod names it."""
    if use.kind == NAMED:
        return "/".join(use.claim)
    return "of its extended resources" if use.kind == EXTENDED or own is None else f"{record.namespace}/{own}"


def _unusable_pools(state: DeviceState) -> list[str]:
    """Return one line per pool of which no device may be used, because slices are missing or contradict each other."""
    broken = [f"pool {'/'.join(pool.key)} {pool.problem}" for pool in state.inventory.pools.values() if pool.problem]
    left = len(broken) - MOST_POOLS
    more = [f"{left} more pool{'s' if left > 1 else ''} cannot be used"] if left > 0 else []
    return [*sorted(broken)[:MOST_POOLS], *more]


def devices_of(state: DeviceState, records: Iterable[PodRecord]) -> list[str]:
    """Return the devices ("driver/pool/device") that the claims of these pods hold, assumed allocations included."""
    state.sync()
    found: dict[str, None] = {}
    keys = [(*record.claims, extended_key(record), state.made_for(record.uid)) for record in records]
    for key in dict.fromkeys(key for some in keys for key in some):
        if (held := state.holdings.claims.get(key)) is not None:
            found.update(dict.fromkeys("/".join(device) for device, _ in held.devices))
    return sorted(found)


def with_devices(state: DeviceState, record: PodRecord) -> str:
    """Return the devices of a placed pod as the end of a sentence; "" if it has none."""
    found = devices_of(state, [record]) if record.shape.claims or record.claims else []
    more = f" and {len(found) - MOST_DEVICES} more" if len(found) > MOST_DEVICES else ""
    return f", with {', '.join(found[:MOST_DEVICES])}{more}" if found else ""


def freed_by(state: DeviceState, pods: Iterable[PodRecord], leaving: Iterable[PodRecord]) -> list[str]:
    """Return the devices of these pods that are free once all pods of `leaving` are gone. A claim that others use
    keeps its devices. Read from the objects, so that a trial without the pods does not change the answer."""
    gone = {record.uid for record in leaving}
    found: dict[str, None] = {}
    for key in dict.fromkeys(key for record in pods for key in (*record.claims, state.made_for(record.uid))):
        claim = state.claim(key)
        allocation = claim.status.allocation if claim is not None else None
        if claim is None or allocation is None or any(each.uid not in gone for each in claim.status.reserved_for):
            continue
        for result in allocation.devices.results:
            found[f"{result.driver}/{result.pool}/{result.device}"] = None
    return sorted(found)


def _request(state: DeviceState, request: AllocationRequest, limits: Sequence[AttributeConstraint] = ()) -> str:
    devices = list(state.inventory.devices.values())
    out: dict[str, int] = {}
    free: dict[str, int] = {}  # by the node of a device; "": several nodes
    usable: list[Device] = []
    for device in devices:
        gone = device.reach.node and device.reach.node not in state.columns.row_of
        reason = "belong to nodes that do not exist" if gone else ruled_out(state, request, device)
        if reason:
            out[reason] = out.get(reason, 0) + 1
        else:
            free[device.reach.node] = free.get(device.reach.node, 0) + 1
            usable.append(device)
    wanted = "all devices" if request.everything else f"{request.count} device{'s' if request.count > 1 else ''}"
    parts = [counted(count, reason) for reason, count in out.items()]
    most = max((count for node, count in free.items() if node), default=0)
    text = f"needs {wanted}; of {len(devices)} published "
    left = f"{sum(free.values())} can be used now"
    if most and not request.everything:
        left += f", at most {most} on one node"
    for limit in limits:
        if not limit.distinct and limit.concerns(request) and usable and request.count > 1:
            left += f", at most {most_alike(usable, limit.attribute)} of them with the same {limit.attribute}"
    return text + ", ".join([*parts, left])
