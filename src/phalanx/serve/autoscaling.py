"""Connect the simulated autoscaler of a local cluster to the scheduler's demand for nodes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.base.errors import ApiProblem
from phalanx.controllers.cluster_mode.provisioning_requests import LackingGroup
from phalanx.engine.explain.demand import unused
from phalanx.engine.explain.node_pools import DeclaredPool
from phalanx.engine.explain.values import NodeDemand
from phalanx.local.nodes.autoscaler import Needs
from phalanx.local.nodes.devices import SimulatedDriver
from phalanx.local.nodes.node_groups import NodeGroup
from phalanx.model.objects import Node, ResourceSlice
from phalanx.serve.demand_metrics import LackingGroups
from phalanx.serve.diagnostics import Diagnostics
from phalanx.serve.scheduler import SchedulerService


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
    """Queries of the autoscaler and the ProvisioningRequest controller to the scheduler, which may be replaced."""

    def __init__(self, groups: Sequence[NodeGroup], drivers: Sequence[SimulatedDriver] = ()) -> None:
        self.pools = pools(groups, drivers)
        self._scheduler: tuple[SchedulerService, Diagnostics] | None = None

    def follow(self, service: SchedulerService, diagnostics: Diagnostics) -> None:
        self._scheduler = service, diagnostics

    async def lacking(self) -> Sequence[LackingGroup] | None:
        """Return the groups that lack nodes, with their pods."""
        return await LackingGroups(*self._scheduler).ask() if self._scheduler is not None else None

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
