"""The groups that lack nodes, for the controller that makes ProvisioningRequests for them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.base.errors import ApiProblem
from phalanx.controllers.cluster_mode.provisioning_requests import LackingGroup, PodSet
from phalanx.engine.explain.values import NodeDemand
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.shapes import Shape
from phalanx.serve.diagnostics import Diagnostics
from phalanx.serve.scheduler import SchedulerService


class LackingGroups:
    """Ask the engine. An autoscaler may have shapes of nodes that no node here has: also groups that no known shape
    helps are named."""

    def __init__(self, service: SchedulerService, diagnostics: Diagnostics) -> None:
        self._service = service
        self._diagnostics = diagnostics

    async def ask(self) -> Sequence[LackingGroup] | None:
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
