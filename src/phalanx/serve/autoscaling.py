"""Connect autoscalers to the scheduler's demand for nodes: ProvisioningRequests, and that of a local cluster."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.base.errors import ApiProblem
from phalanx.controllers.cluster_mode.provisioning_requests import LackingGroup, PodSet
from phalanx.engine.explain.demand import unused
from phalanx.engine.explain.node_pools import DeclaredPool
from phalanx.engine.explain.values import NodeDemand
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.shapes import Shape
from phalanx.local.nodes.autoscaler import Needs
from phalanx.local.nodes.devices import SimulatedDriver
from phalanx.local.nodes.node_groups import NodeGroup
from phalanx.model.objects import Node, ResourceSlice
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.scheduler import SchedulerService


class LackingGroups:
    """Return the groups that lack nodes from the engine.

    An autoscaler may have node shapes that no existing node has, so groups that no known shape helps are included.
    """

    def __init__(self, service: SchedulerService, diagnostics: Diagnostics) -> None:
        self._service = service
        self._diagnostics = diagnostics

    async def ask(self) -> Sequence[LackingGroup] | None:
        """Return the groups that lack nodes; None while this is not known."""
        if not self._service.synced:
            return None
        if not self._service.engine.queue.units:
            return ()
        try:
            found = msgspec.json.decode(await self._diagnostics.demand(), type=NodeDemand)
        except ApiProblem:
            return None
        units = self._service.engine.queue.units
        keys = (f"{group.kind}/{group.namespace}/{group.name}" for group in found.groups if group.kind != "pod")
        return [
            made for key in keys if (unit := units.get(key)) is not None and (made := self._group(unit)) is not None
        ]

    def _group(self, unit: SchedulingUnit) -> LackingGroup | None:
        group = self._service.engine.groups.members.group_of(unit)
        if group is None or group.source is None:
            return None
        alike: dict[Shape, list[str]] = {}
        for record in unit.records.values():
            alike.setdefault(record.shape, []).append(record.name)
        sets = [PodSet(len(names), min(names)) for names in alike.values()]
        kind, namespace, name = unit.key.split("/", 2)
        names = sorted(record.name for record in unit.records.values())
        return LackingGroup(kind, namespace, name, group.source.metadata.uid, sets, names)


def pools(groups: Sequence[NodeGroup], drivers: Sequence[SimulatedDriver] = ()) -> list[DeclaredPool]:
    """Return every node that the groups may have, with its devices, as the scheduler would see it."""
    return [
        DeclaredPool(
            group.name,
            [msgspec.convert(group.body(n, 0.0), Node) for n in range(group.high)],
            {name: _slices(drivers, name, n) for n, name in enumerate(group.names)} if drivers else {},
        )
        for group in groups
    ]


def _slices(drivers: Sequence[SimulatedDriver], node: str, index: int) -> list[ResourceSlice]:
    return [msgspec.convert(body, ResourceSlice) for driver in drivers for body in driver.slices(node, index)]


class DemandSource:
    """Queries of the autoscaler to the scheduler, which may be replaced."""

    def __init__(self, groups: Sequence[NodeGroup], drivers: Sequence[SimulatedDriver] = ()) -> None:
        self.pools = pools(groups, drivers)
        self._scheduler: tuple[SchedulerService, Diagnostics] | None = None

    def follow(self, service: SchedulerService, diagnostics: Diagnostics) -> None:
        self._scheduler = service, diagnostics

    async def ask(self) -> Needs | None:
        """Return missing and unused nodes; None if the scheduler cannot answer now."""
        if self._scheduler is None or not self._scheduler[0].synced:
            return None
        service, diagnostics = self._scheduler
        if not service.engine.queue.units:  # nothing is pending: no query needed
            idle, cordoned = unused(service.engine.scheduler, self.pools)
            return Needs((), idle, cordoned)
        try:
            found = msgspec.json.decode(await diagnostics.demand(), type=NodeDemand)
        except ApiProblem:
            return None
        missing = [name for group in found.groups for nodes in group.nodes for name in nodes.nodes]
        return Needs(missing, found.idle, found.cordoned)
