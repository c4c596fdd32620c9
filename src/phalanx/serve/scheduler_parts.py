"""The scheduler with what belongs to it: queries, metrics, and the controllers that run while it leads.

`phalanx up` and `phalanx scheduler` run the same parts; they differ in how they connect, listen and elect a leader.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.errors import ApiProblem, Forbidden, NotFound
from phalanx.base.tasks import end, run_restarting
from phalanx.controllers.cluster_mode.kueue import PlacementCheck
from phalanx.controllers.cluster_mode.provisioning_requests import ProvisioningRequests
from phalanx.engine.engine import Engine
from phalanx.engine.explain.node_pools import DeclaredPool
from phalanx.engine.plugins.config import SchedulerConfig, default_config
from phalanx.kube.placement_lease import PLACEMENT_LEASE
from phalanx.model.gates import Gates
from phalanx.serve.autoscaling import LackingGroups
from phalanx.serve.kueue_places import EnginePlaces
from phalanx.serve.metrics.demand import DemandMetrics
from phalanx.serve.metrics.plugin_times import LIMIT, PluginTimes
from phalanx.serve.metrics.scheduler import SchedulerMetrics
from phalanx.serve.queries.diagnostics import Diagnostics, QuestionSettings
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService

log = logging.getLogger(__name__)


class SchedulingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a scheduler, wherever it runs."""

    config: SchedulerConfig = msgspec.field(default_factory=default_config)
    document: dict[str, Any] = msgspec.field(default_factory=dict)  # the configuration as written, for recordings
    record: Path | None = None  # file for every event and decision
    placement_lease: str = PLACEMENT_LEASE  # shared with other Phalanx schedulers; "": ignore them
    slow_plugin: float = LIMIT  # seconds in one step after which a plugin is logged as slow
    dialects: tuple[str, ...] = ()  # other schedulers whose PodGroups are used
    kueue: bool = False  # answer admission checks of Kueue
    provisioning: str = ""  # class of ProvisioningRequests for groups that lack nodes; "": none
    pools: Sequence[DeclaredPool] = ()  # nodes that an autoscaler may create


class SchedulerParts:
    def __init__(
        self,
        client: Client,
        settings: SchedulingSettings,
        gates: Gates,
        clock: Clock,
        *,
        writer: Client | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """`writer`: client of the scheduler itself, if its calls are limited. `may_act`: checked before each bind and
        eviction."""
        self._client, self._settings, self._gates, self._clock = client, settings, gates, clock
        times = PluginTimes(clock, settings.slow_plugin)
        engine = Engine(settings.config.engine(), gates, watch=times.watch)
        options = SchedulerOptions(
            name=settings.config.profiles[0].scheduler_name,
            record=settings.record,
            record_head={"config": settings.document, "gates": gates.as_dict()},
            times=times,
            placement_lease=settings.placement_lease,
            lease_client=client,  # the lease must not wait behind limited calls
            dialects=settings.dialects,
            may_act=may_act,
        )
        rng = random.Random()  # system seed; its values, such as names of events, are not secret
        service = self.service = SchedulerService(writer or client, engine, gates, clock, rng, options)
        asked = QuestionSettings(settings.pools, settings.dialects)
        self.diagnostics = Diagnostics(engine, client, gates, lambda: service.synced, clock.now, asked)
        self.metrics = SchedulerMetrics(service)
        DemandMetrics(self.metrics.registry, service, self.diagnostics)

    async def run(self) -> None:
        """Decide, and run the controllers of a leading scheduler as long as that."""
        others = [asyncio.create_task(run_restarting(each.name, each.run), name=each.name) for each in self._periodic()]
        try:
            await self.service.run()
        finally:
            await end(others)

    def _periodic(self) -> list[PeriodicController]:
        found: list[PeriodicController] = []
        if self._settings.provisioning:
            lacking = LackingGroups(self.service, self.diagnostics).ask
            requests = ProvisioningRequests(self._client, self._settings.provisioning, lacking, self._clock)
            install = "install the definition of autoscaling.x-k8s.io"
            found.append(
                PeriodicController("ProvisioningRequests", requests.reconcile, 5.0, install, "provisioning-requests")
            )
        if self._settings.kueue:
            places = EnginePlaces(self.service, self._gates, self.diagnostics.priority_classes)
            check = PlacementCheck(self._client, places, self._clock)
            found.append(PeriodicController("admission checks", check.reconcile, 2.0, "install Kueue", "kueue"))
        return found


@dataclass(frozen=True, slots=True)
class PeriodicController:
    """A controller that lists its objects periodically instead of watching them."""

    name: str
    reconcile: Callable[[], Awaitable[None]]
    seconds: float  # between two runs
    install: str  # remedy if the server does not know its kinds
    component: str  # of deploy/components, with its rights

    async def run(self) -> None:
        """Run periodically. Missing kinds and rights are logged once."""
        known: type[ApiProblem] | None = None
        while True:
            try:
                await self.reconcile()
                known = None
            except NotFound:
                if known is not NotFound:
                    log.warning("no %s: the server does not know their kinds; %s", self.name, self.install)
                known = NotFound
            except Forbidden as problem:
                if known is not Forbidden:
                    role = f"deploy/components/{self.component}/role.yaml"
                    log.error("no %s: %s; apply %s", self.name, problem, role)
                known = Forbidden
            except ApiProblem as problem:
                log.warning("%s: %s; trying again", self.name, problem)
            await asyncio.sleep(self.seconds)
