"""The controllers of a local cluster (workloads, budgets, volumes, nodes), over one set of caches."""

from __future__ import annotations

import asyncio

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.controllers.claim_protection import ClaimProtection
from phalanx.controllers.cronjob import CronJobController
from phalanx.controllers.daemonset import DaemonSetController
from phalanx.controllers.deployment import DeploymentController
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.ephemeral_volumes import EphemeralVolumesController
from phalanx.controllers.events import Events
from phalanx.controllers.groups import Groups
from phalanx.controllers.job import JobController
from phalanx.controllers.jobset import JobSetController
from phalanx.controllers.leaderworkerset import LeaderWorkerSetController
from phalanx.controllers.leaving import LeavingPods
from phalanx.controllers.nodelife import NodeLifecycleController
from phalanx.controllers.replicaset import ReplicaSetController
from phalanx.controllers.runtime import Caches, Controller
from phalanx.controllers.set_groups import SetGroups
from phalanx.controllers.statefulset import StatefulSetController
from phalanx.controllers.volumes import VolumesController
from phalanx.model.gates import Gates


class ControllersService:
    def __init__(self, client: Client, clock: Clock, gates: Gates | None = None) -> None:
        gates = gates or Gates()
        self._caches = Caches(client)
        self.events = Events(client, clock)
        groups = Groups(self._caches, self.events) if gates("GenericWorkload") else None
        job_groups = groups if gates("WorkloadWithJob") else None
        leader_worker_sets = LeaderWorkerSetController(self._caches, clock, self.events, groups)
        sets = SetGroups(self._caches, self.events, groups) if groups is not None else None
        admission = [sets.admit] if sets is not None else []
        self.ready = asyncio.Event()
        self.controllers: list[Controller] = [
            DisruptionController(self._caches, clock),
            ReplicaSetController(self._caches, clock, admission),
            DeploymentController(self._caches, clock),
            StatefulSetController(self._caches, clock, [leader_worker_sets.admit, *admission]),
            leader_worker_sets,
            *(sets.controllers.values() if sets is not None else ()),
            DaemonSetController(self._caches, clock),
            JobController(self._caches, clock, self.events, job_groups),
            JobSetController(self._caches, clock, self.events, groups),
            CronJobController(self._caches, clock),
            VolumesController(self._caches, clock, self.events),
            ClaimProtection(self._caches, clock),
            EphemeralVolumesController(self._caches, self.events),
            NodeLifecycleController(self._caches, clock),
            LeavingPods(self._caches, clock, self.events),
        ]

    async def run(self) -> None:
        """Until cancelled."""
        await self._caches.run(self._work)

    async def _work(self) -> None:
        self.ready.set()
        async with asyncio.TaskGroup() as group:
            for controller in self.controllers:
                group.create_task(controller.run())
            group.create_task(self.events.run())
