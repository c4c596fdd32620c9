"""Controllers of a local cluster (workloads, budgets, volumes, nodes) with shared caches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.tasks import run_all
from phalanx.controllers.devices.claims import ResourceClaimsController
from phalanx.controllers.devices.taint_rules import DeviceTaintRuleStatus
from phalanx.controllers.devices.taints import DeviceTaintEviction
from phalanx.controllers.devices.templates import TemplateClaimsController
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.endpoints.controller import EndpointsController
from phalanx.controllers.endpoints.mirroring import MirroringController
from phalanx.controllers.nodes.lifecycle import NodeLifecycleController
from phalanx.controllers.nodes.taint_eviction import TaintEviction
from phalanx.controllers.pod_sets import PodSetsController
from phalanx.controllers.runtime.controller import Caches, Controller
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.volumes.controller import VolumesController
from phalanx.controllers.volumes.ephemeral import ClaimProtection, EphemeralVolumesController
from phalanx.controllers.workloads.kind import Local, WorkloadKind
from phalanx.controllers.workloads.registry import KINDS, report_unknown_annotations
from phalanx.controllers.workloads.without_effect import IgnoredWorkloadsController, report_groups_off
from phalanx.model.gates import Gates


class ControllersService:
    def __init__(self, client: Client, clock: Clock, gates: Gates | None = None) -> None:
        gates = gates or Gates()
        self._caches = Caches(client)
        self.events = Events(client, clock)
        self._caches.client.refused = self.events.written_too_often
        groups = Groups(self._caches, self.events) if gates("GenericWorkload") else None
        local = Local(self._caches, clock, self.events, groups, gates)
        evictions = DeviceTaintEviction(self._caches, clock, self.events)
        self.ready = asyncio.Event()
        run_here = [kind for kind in KINDS if kind.run is not None]
        self.controllers: list[Controller] = [
            DisruptionController(self._caches, clock),
            *(controller for kind in run_here if kind.run is not None for controller in kind.run(local)),
            *(self._of_groups(groups, run_here) if groups is not None else []),
            EndpointsController(self._caches),
            MirroringController(self._caches),
            VolumesController(self._caches, clock, self.events),
            ClaimProtection(self._caches, clock),
            EphemeralVolumesController(self._caches, self.events),
            NodeLifecycleController(self._caches, clock),
            TaintEviction(self._caches, clock, self.events),
            ResourceClaimsController(self._caches),
            TemplateClaimsController(self._caches, self.events),
            evictions,
            DeviceTaintRuleStatus(self._caches, clock, evictions),
        ]
        report_unknown_annotations(local)  # last, so that every reconciler has declared its kinds
        report_groups_off(local, run_here)

    def _of_groups(self, groups: Groups, kinds: Sequence[WorkloadKind]) -> list[Controller]:
        ignored = IgnoredWorkloadsController(self._caches, groups, self.events, kinds)
        return [PodSetsController(self._caches, groups, kinds), ignored]

    def failures(self) -> dict[str, int]:
        """Return the number of reconciles that raised, by controller."""
        counts: dict[str, int] = {}
        for controller in self.controllers:
            counts[controller.name] = counts.get(controller.name, 0) + controller.queue.failed
        return counts

    async def run(self) -> None:
        """Run until cancelled."""
        await self._caches.run(self._work)

    async def _work(self) -> None:
        self.ready.set()
        works = [(controller.name, controller.run()) for controller in self.controllers]
        await run_all([*works, ("events", self.events.run())])
