"""Name what rules out every node for the claims of a pod, and why single devices cannot serve a request. Only reads.

The facts of a claim do not depend on which devices are in use, so they are kept until a device or a class changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.requests import AllocationRequest, AttributeConstraint, ClaimSpec
from phalanx.engine.devices.selectors import SelectorFailure
from phalanx.engine.devices.state import DeviceState
from phalanx.engine.state.claims import EXTENDED, MISSING, NAMED, ClaimUse, claim_names
from phalanx.engine.state.shapes import Shape


def claim_words(use: ClaimUse, shape: Shape) -> str:
    """Return how users know a claim. Pods of one shape may have claims of different names: those are not named."""
    if use.kind == EXTENDED:
        return "its extended resources"
    if use.kind == NAMED:
        return f"ResourceClaim {use.claim[1]}"
    entry = next((entry for entry, name in claim_names(shape.pod) if name == use.claim[1]), "")
    return f"its claim {entry}" if entry and len(shape.claims) > 1 else "its ResourceClaim"


def device_facts(state: DeviceState, shape: Shape) -> Iterator[str]:
    """Yield a sentence for each request of a shape that the published devices can never serve."""
    state.sync()
    for use in shape.claims:
        if use.kind == MISSING or (spec := _spec(state, shape, use)) is None or spec.problem or spec.error:
            continue
        version = state.inventory.version
        if spec.facts[0] != version:
            spec.facts = version, tuple(_facts(state, spec))
        yield from (f"request {name} of {claim_words(use, shape)} {text}" for name, text in spec.facts[1])


def _spec(state: DeviceState, shape: Shape, use: ClaimUse) -> ClaimSpec | None:
    """Return the requests of a claim without devices; None if it has some, or a node may offer what it asks for."""
    if use.kind == NAMED:
        claim = state.claim(use.claim)
        return None if claim is None or use.claim in state.holdings.claims else state.specs.of(claim)
    columns = state.columns
    if use.kind == EXTENDED and any(columns.alloc[rid, : columns.n].any() for rid, _, _ in use.resources):
        return None
    return state.specs.of_spec(use.spec, use.key, shape.namespace)


def _facts(state: DeviceState, spec: ClaimSpec) -> Iterator[tuple[str, str]]:
    """Yield (request, why no node can ever serve it); of a request with alternatives, what rules out the last one."""
    broken = sum(bool(pool.problem) for pool in state.inventory.pools.values())
    pools = "1 pool of devices" if broken == 1 else f"{broken} pools of devices"
    rest = f"; {pools} cannot be used now" if broken else ": this can never fit on the nodes there are"
    for alternatives in spec.requests:
        found = [_fact(state, request, spec.constraints) for request in alternatives]
        if found and all(found):
            yield alternatives[-1].name, found[-1] + rest


def _fact(state: DeviceState, request: AllocationRequest, limits: Sequence[AttributeConstraint]) -> str:
    devices = list(state.inventory.devices.values())
    if not devices:
        return "needs devices, and no driver has published any"
    reasons: Counter[str] = Counter()
    usable = []
    for device in devices:
        if reason := never(state, request, device):
            reasons[reason] += 1
        else:
            usable.append(device)
    if not usable:
        each = ", ".join(counted(count, reason) for reason, count in reasons.most_common())
        return f"can use none of the {len(devices)} published devices: {each}"
    if request.everything or any(not device.reach.node or device.multiple for device in usable):
        return ""
    alike = [limit for limit in limits if not limit.distinct and limit.concerns(request)] if request.count > 1 else []
    for limit in alike:
        if (most := most_alike(usable, limit.attribute)) < request.count:
            return f"asks for {request.count} devices with the same {limit.attribute}, and no node has more than {most}"
    most = max(Counter(device.reach.node for device in usable).values())
    return (
        f"asks for {request.count} devices, and no node has more than {most} that it can use"
        if most < request.count
        else ""
    )


_OF_ONE = {"are": "is", "have": "has", "lack": "lacks", "make": "makes", "exceed": "exceeds", "belong": "belongs"}


def most_alike(devices: Iterable[Device], attribute: str) -> int:
    """Return how many devices of one node have the same value of an attribute, at most."""
    counts: dict[object, int] = {}
    for device in devices:
        value = device.attributes.get(attribute)
        if value is not None:
            counts[device.reach.node, value] = counts.get((device.reach.node, value), 0) + 1
    return max(counts.values(), default=0)


def counted(count: int, reason: str) -> str:
    """Return how many devices have a reason that is worded for several of them."""
    verb, _, rest = reason.partition(" ")
    return f"{count} {_OF_ONE[verb] if count == 1 else verb} {rest}"


def never(state: DeviceState, request: AllocationRequest, device: Device) -> str:
    """Return why a device cannot serve a request even if nothing is in use; "" if it can."""
    for expression, where in request.selectors:
        verdict = state.selectors.verdict(expression, device)
        if isinstance(verdict, SelectorFailure):
            return f"make {_place(where)} fail ({verdict})"
        if not verdict:
            return f"are ruled out by {_place(where)}"
    if (request.capacity or device.multiple) and request.takes(device) is None:
        return "lack the capacity"
    return "are tainted" if device.taints and not request.tolerates(device) else ""


def ruled_out(state: DeviceState, request: AllocationRequest, device: Device) -> str:
    """Return why a device cannot serve a request now; "" if it can."""
    if reason := never(state, request, device):
        return reason
    if not request.admin and state.holdings.in_use(device):
        return "are in use"
    if device.multiple and _full(state, request, device):
        return "have too little capacity left"
    limits = device.pool.counters
    if not request.admin and any(state.holdings.counted(key) + amount > limits[key] for key, amount in device.counters):
        return "exceed what is left of shared counters"
    return ""


def _place(where: str) -> str:
    """Describe where a selector comes from. Claims with equal requests share their selectors; the name is that of the
    first claim."""
    owner, _, selector = where.rpartition(": ")
    return where if owner.startswith("class ") else f"{selector} of the request"


def _full(state: DeviceState, request: AllocationRequest, device: Device) -> bool:
    takes = request.takes(device) or {}
    return any(
        state.holdings.consumed(device, name) + amount > device.capacity[name].value for name, amount in takes.items()
    )
