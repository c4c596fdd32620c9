"""Allocate claims with one request by counting, without a search.

A request for a number of devices, with or without one common attribute, needs no backtracking if no other claim is
decided together with it. Other claims raise `NotSimple` and need the allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.engine.devices.holdings import Holdings
from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.requests import AllocationRequest, ClaimSpec
from phalanx.engine.devices.selectors import DeviceSelectors
from phalanx.model.objects.devices import MAX_RESULTS


class NotSimple(Exception):
    """Counting cannot decide."""


class Simple(NamedTuple):
    """The only request of a claim, and the attribute that its devices must share."""

    request: AllocationRequest
    attribute: str = ""


def simple(spec: ClaimSpec) -> Simple | None:
    """Return the claim in simple form; None if it needs the allocator."""
    request = spec.only_request
    if request is None or request.everything or request.admin or request.capacity or request.count > MAX_RESULTS:
        return None
    limits = spec.constraints
    if not limits:
        return Simple(request)
    if len(limits) == 1 and not limits[0].distinct and limits[0].concerns(request):
        return Simple(request, limits[0].attribute)
    return None


def free(
    claim: Simple, devices: Sequence[Device], holdings: Holdings, selectors: DeviceSelectors
) -> list[list[Device]]:
    """Return candidate devices by common value, in the order of devices. Raises NotSimple."""
    request, attribute = claim
    answers, whole, parts = request.answers, holdings.whole, holdings.parts
    groups: dict[object, list[Device]] = {}
    for device in devices:
        if device.multiple or device.counters:
            raise NotSimple
        if device.key in whole or device.key in parts:
            continue
        verdict = answers.get(device)
        if verdict is None:
            verdict = request.selects(device, selectors)
        if verdict is False:
            continue
        if verdict is not True:
            raise NotSimple  # a selector fails: the allocator decides
        if device.taints and not request.tolerates(device):
            continue
        value = device.attributes.get(attribute) if attribute else True
        if value is not None:
            groups.setdefault(value, []).append(device)
    return list(groups.values())


def picks(claim: Simple, groups: Sequence[list[Device]]) -> list[Device] | None:
    """Return the first devices that serve the claim; None if there are not enough."""
    need = claim.request.count
    return next((group[:need] for group in groups if len(group) >= need), None)


def slots(claim: Simple, groups: Sequence[list[Device]]) -> int:
    """Return how many equal claims these devices can serve."""
    need = claim.request.count
    return sum(len(group) // need for group in groups)
