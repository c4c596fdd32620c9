"""`phalanx scheduler`: the scheduler as a process, against any API server: connection, lease, health, signals."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web

from phalanx.base.clock import Clock, SystemClock
from phalanx.base.tasks import cause_of_end, end, run_restarting
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection, in_cluster, load
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import LeaseSettings
from phalanx.kube.observed_client import PacedClient
from phalanx.model.gates import Gates
from phalanx.serve.callers import Callers, Guarded
from phalanx.serve.certificate_files import CertificateFiles
from phalanx.serve.health import HealthServer, Secure, made_at_start
from phalanx.serve.leadership import Leadership
from phalanx.serve.metrics.process import ProcessMetrics
from phalanx.serve.queries.paths import PATHS
from phalanx.serve.recording import next_recording
from phalanx.serve.remote import connected, wait_for_server
from phalanx.serve.scheduler import SchedulerService
from phalanx.serve.scheduler_parts import SchedulerParts, SchedulingSettings
from phalanx.serve.settings import Listen
from phalanx.serve.start_checks import report_lacking
from phalanx.serve.watchdog import Watchdog


class SchedulerSettings(SchedulingSettings, frozen=True, kw_only=True):
    kubeconfig: str = ""  # "" = in-cluster
    context: str = ""
    gates: Gates = msgspec.field(default_factory=Gates)
    leader_elect: bool = True
    lease_name: str = ""  # "": as in the configuration
    lease_namespace: str = ""
    health_host: str = "127.0.0.1"
    health_port: int = 0
    secure: Listen | None = None  # address with TLS, for authenticated callers
    secure_tls_dir: Path | None = None


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class InCluster(Protocol):
    """A view of the scheduler at its health address, such as the dashboard."""

    def routes(self) -> dict[str, Handler]:
        """Return its paths; it checks callers itself."""
        ...

    async def run(self) -> None: ...

    async def close(self) -> None:
        """End the responses that are still open."""
        ...


Leader = Callable[[], str | None]  # None: this process leads; "": no leader is known
MakeInCluster = Callable[[SchedulerParts, Guarded, HttpClient, Clock, Leader], InCluster]


class SchedulerProcess:
    """The process; `until_failure` raises its failure, also a lost lease."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        clock: Clock | None = None,
        dashboard: MakeInCluster | None = None,
        before: Leadership | None = None,
    ) -> None:
        """before: that of an earlier instance, which lost the lease."""
        self._settings = settings
        self._make_dashboard = dashboard
        self._dashboard: InCluster | None = None
        self._showing: asyncio.Task[None] | None = None
        self._clock = clock or SystemClock()
        self._leadership = Leadership(self._lease() if settings.leader_elect else None, self._clock, before)
        self._client: HttpClient | None = None
        self.parts: SchedulerParts | None = None
        self.health: HealthServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._checks: asyncio.Task[None] | None = None

    def _connection(self) -> Connection:
        settings = self._settings
        path = settings.kubeconfig or settings.config.client_connection.kubeconfig
        return load(path, settings.context) if path else in_cluster()

    async def start(self) -> None:
        settings = self._settings
        connection = self._connection()
        client = self._client = await connected(connection, "phalanx-scheduler", connections=128)
        limits = settings.config.client_connection
        paced = PacedClient(client, limits.qps, limits.burst, self._clock.monotonic) if limits.qps > 0 else client
        groups = GroupApi(paced)
        parts = self.parts = SchedulerParts(
            client,
            settings,
            settings.gates,
            self._clock,
            writer=groups,
            may_act=lambda: self._leadership.may_act,
        )
        service = parts.service
        ProcessMetrics(parts.metrics.registry, client, self._leadership, settings.gates)
        watchdog = Watchdog(lambda: service.informers, lambda: self._leadership.overdue)
        self._watching.append(asyncio.create_task(watchdog.run(), name="watchdog"))
        callers = Callers(client)
        self.health = HealthServer(
            parts.metrics.registry,
            live=watchdog.checks,
            ready={"informer-sync": lambda: ", ".join(service.unsynced)},
            extensions=self._queries(callers, client, parts),
            guarded=PATHS,
        )
        await self.health.start(settings.health_host, settings.health_port)
        if settings.secure is not None:
            await self.health.start_secure(Secure(settings.secure, self._certificate(), callers))
        await wait_for_server(client)
        lease = self._leadership.lease
        checks = report_lacking(
            client, groups, "scheduler", lease, self._clock, "--lease-namespace", settings.placement_lease
        )
        self._checks = asyncio.create_task(checks, name="checks")
        if self._dashboard is not None:
            self._showing = asyncio.create_task(run_restarting("the dashboard", self._dashboard.run), name="dashboard")
        work = self._leadership.run(client, parts.run, lambda: parts.service.settled)
        self._task = asyncio.create_task(work, name="the scheduler")
        ready = asyncio.create_task(self._ready(service))
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            ready.cancel()
            self._task.result()

    def _certificate(self) -> ssl.SSLContext:
        if self._settings.secure_tls_dir is None:
            return made_at_start(self._clock.now())
        files = CertificateFiles(self._settings.secure_tls_dir, "--secure-tls-dir", self._clock)
        self._watching.append(asyncio.create_task(files.follow(), name="certificate"))
        return files.context

    def _queries(self, callers: Callers, client: HttpClient, parts: SchedulerParts) -> dict[str, Handler]:
        guarded = Guarded(parts.diagnostics, callers)
        routes: dict[str, Handler] = dict.fromkeys(PATHS, guarded.handle)
        if self._make_dashboard is not None:
            self._dashboard = self._make_dashboard(parts, guarded, client, self._clock, lambda: self._leadership.leader)
            routes |= self._dashboard.routes()
        return routes

    async def _ready(self, service: SchedulerService) -> None:
        """Wait until ready; a standby is ready, too."""
        if not self._settings.leader_elect:
            await service.wait_synced()

    def _lease(self) -> LeaseSettings:
        settings, election = self._settings, self._settings.config.leader_election
        return LeaseSettings(
            settings.lease_name or election.lease_name,
            settings.lease_namespace or election.lease_namespace,
            election.lease_duration,
            election.renew_deadline,
            election.retry_period,
        )

    def new_standby(self) -> SchedulerProcess:
        """Return a standby at the same address with new caches and a new engine."""
        settings, health = self._settings, self.health
        if health is not None:
            settings = msgspec.structs.replace(settings, health_port=health.port)
            if settings.secure is not None:
                settings = msgspec.structs.replace(settings, secure=replace(settings.secure, port=health.secure_port))
        if settings.record is not None:
            settings = msgspec.structs.replace(settings, record=next_recording(settings.record))
        return SchedulerProcess(settings, clock=self._clock, dashboard=self._make_dashboard, before=self._leadership)

    async def until_failure(self) -> None:
        tasks = [task for task in (self._task, *self._watching) if task is not None]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        raise cause_of_end(done)

    @property
    def _acting(self) -> bool:
        """Return True if it may have begun to write: its caches are filled, and it has the lease if needed."""
        return self._leadership.leads and self.parts is not None and self.parts.service.synced

    async def stop(self) -> None:
        if self.parts is not None:
            await self.parts.service.stop()
        if self._task is not None:
            if self._acting:
                await asyncio.wait({self._task}, timeout=25)  # running writes finish
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._showing is not None and self._dashboard is not None:
            await end((self._showing,))
            await self._dashboard.close()
        await end([*self._watching, *([self._checks] if self._checks is not None else [])])
        if self.health is not None:
            await self.health.stop()
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
