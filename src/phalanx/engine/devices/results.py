"""Convert the picks of the allocator to the allocation in a claim's status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from uuid import NAMESPACE_OID, uuid5

import msgspec

from phalanx.engine.devices.allocator import Pick
from phalanx.engine.devices.capacity import written
from phalanx.engine.devices.holdings import MOST_NODES
from phalanx.engine.devices.requests import AllocationRequest, ClaimSpec
from phalanx.model.objects.devices import AllocatedDevice, AllocationConfiguration, AllocationResult, DeviceAllocation
from phalanx.model.objects.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm


def allocation_of(spec: ClaimSpec, picks: Sequence[Pick], node: str, owner: str) -> AllocationResult:
    """Return the allocation of a claim. `owner`: uid of the claim or pod, used to make unique ids of shares."""
    results = [_result(pick, f"{owner}/{number}") for number, pick in enumerate(picks)]
    return AllocationResult(
        devices=DeviceAllocation(results=results, config=_config(spec, picks)),
        node_selector=_selector(picks, node),
    )


def _result(pick: Pick, owner: str) -> AllocatedDevice:
    request, device = pick.request, pick.device
    share: str | None = None
    consumed: dict[str, str | int | float] = {}
    if pick.takes is not None:
        share = str(uuid5(NAMESPACE_OID, f"{owner}/{'/'.join(device.key)}"))
        consumed = {name: written(amount, device.capacity[name]) for name, amount in pick.takes.items()}
    return AllocatedDevice(
        request=request.name,
        driver=device.driver,
        pool=device.pool.key[1],
        device=device.name,
        admin_access=True if request.admin else None,
        tolerations=list(request.tolerations),
        binding_conditions=list(device.source.binding_conditions),
        binding_failure_conditions=list(device.source.binding_failure_conditions),
        share_id=share,
        consumed_capacity=consumed,
    )


def _config(spec: ClaimSpec, picks: Iterable[Pick]) -> list[AllocationConfiguration]:
    """Return the configuration: that of each class once, then the claim's own, which takes precedence.

    `requests` is omitted if a configuration applies to every request.
    """
    picked = {pick.request.name for pick in picks}
    chosen = [request for alternatives in spec.requests for request in alternatives if request.name in picked]
    if not spec.config and not any(request.config for request in chosen):
        return []
    by_class: dict[str, list[AllocationRequest]] = {}
    for request in chosen:
        by_class.setdefault(request.class_name, []).append(request)
    found = [
        AllocationConfiguration(source="FromClass", requests=[each.name for each in same], opaque=config.opaque)
        for same in by_class.values()
        for config in same[0].config
    ]
    for own in spec.config:
        if not own.requests or any(name in own.requests for each in chosen for name in (each.main, each.name)):
            found.append(AllocationConfiguration(source="FromClaim", requests=list(own.requests), opaque=own.opaque))
    return [
        msgspec.structs.replace(each, requests=[])
        if all(request.main in each.requests or request.name in each.requests for request in chosen)
        else each
        for each in found
    ]


@lru_cache(maxsize=MOST_NODES)
def _only(node: str) -> NodeSelector:
    """Return the selector of one node, shared by all allocations there."""
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node])
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[field])])


def _selector(picks: Iterable[Pick], node: str) -> NodeSelector | None:
    """Return the conjunction of the devices' node selectors; one node if a device is local to it."""
    expressions: list[NodeSelectorRequirement] = []
    fields: list[NodeSelectorRequirement] = []
    for pick in picks:
        reach = pick.device.reach
        if reach.node or pick.device.source.binds_to_node:
            return _only(node)
        if reach.selector is not None:
            for term in reach.selector.node_selector_terms[:1]:
                expressions += [each for each in term.match_expressions or () if each not in expressions]
                fields += [each for each in term.match_fields or () if each not in fields]
    if not expressions and not fields:
        return None
    term = NodeSelectorTerm(match_expressions=expressions or None, match_fields=fields or None)
    return NodeSelector(node_selector_terms=[term])
