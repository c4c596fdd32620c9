"""`phalanx controllers --mode cluster`: groups and links for the workloads of a real cluster, in one process.

All replicas watch the cluster and serve the webhook; the holder of the lease writes groups and labels.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from phalanx.base.client import Client
from phalanx.base.clock import Clock, SystemClock
from phalanx.base.errors import ApiProblem
from phalanx.base.tasks import cause_of_end, end
from phalanx.controllers.cluster_mode.controllers import ClusterControllers
from phalanx.controllers.cluster_mode.linking import Abilities
from phalanx.kube.client import HttpClient
from phalanx.kube.config import in_cluster, load
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import LeaseSettings
from phalanx.local.api.tls import Identity
from phalanx.serve.callers import Callers
from phalanx.serve.certificate_files import CertificateFiles
from phalanx.serve.health import HealthServer, Secure, made_at_start
from phalanx.serve.leadership import Leadership
from phalanx.serve.metrics.at_scrape import AtScrape, counter
from phalanx.serve.metrics.process import FAILURES, ProcessMetrics
from phalanx.serve.remote import answered, connected, wait_for_server
from phalanx.serve.settings import Listen
from phalanx.serve.start_checks import report_lacking
from phalanx.serve.watchdog import Watchdog
from phalanx.serve.webhook import WebhookServer
from phalanx.serve.webhook_tls import from_secret, publish

log = logging.getLogger(__name__)

Ask = Callable[[str], Awaitable[bytes]]  # GET of any path
PODS_OPENAPI = "/openapi/v3/api/v1"
TRUST_AGAIN = 30.0  # seconds between checks of the webhook configuration
POD_SPEC = "io.k8s.api.core.v1.PodSpec"


@dataclass(frozen=True, slots=True)
class ClusterModeSettings:
    kubeconfig: str = ""  # "" = in-cluster
    context: str = ""
    scheduler_name: str = ""  # scheduler of grouped pods; "": not changed
    webhook: Listen | None = None
    tls_dir: Path | None = None
    webhook_hosts: tuple[str, ...] = ()  # names in the generated certificate
    configuration: str = "phalanx"  # MutatingWebhookConfiguration
    secret: str = "phalanx-webhook-tls"
    namespace: str = "phalanx-system"  # namespace of the lease and the Secret
    leader_elect: bool = True
    lease: LeaseSettings = field(default_factory=lambda: LeaseSettings("phalanx-controllers", "phalanx-system"))
    health: Listen | None = None
    secure: Listen | None = None  # address with TLS, for authenticated callers
    gang_budgets: bool = False  # create PodDisruptionBudgets for gangs that are disrupted as a whole


async def probe(api: GroupApi, ask: Ask) -> Abilities:
    """Return which links the API server stores.

    It drops the fields of a pod while the gate of the kinds is off, whatever its OpenAPI document says. So both the
    kinds and the fields must exist.
    """
    if await api.decide() != "scheduling.k8s.io":
        return Abilities()
    try:
        document = msgspec.json.decode(await ask(PODS_OPENAPI))
    except ApiProblem as problem:
        log.warning("reading %s: %s; pods are linked by label", PODS_OPENAPI, problem)
        return Abilities()
    schemas = (document.get("components") or {}).get("schemas") or {}
    fields = (schemas.get(POD_SPEC) or {}).get("properties") or {}
    return Abilities("schedulingGroup" in fields, "workloadRef" in fields)


class ClusterMode:
    """The process; `until_failure` raises its failure, also a lost lease."""

    def __init__(
        self, settings: ClusterModeSettings, *, clock: Clock | None = None, before: Leadership | None = None
    ) -> None:
        """before: that of an earlier instance, which lost the lease."""
        self._settings, self._clock = settings, clock or SystemClock()
        self._leadership = Leadership(settings.lease if settings.leader_elect else None, self._clock, before)
        self._http: HttpClient | None = None
        self.controllers: ClusterControllers | None = None
        self.webhook: WebhookServer | None = None
        self.health: HealthServer | None = None
        self.authority = b""  # CA bundle in PEM for the API server
        self._tls: ssl.SSLContext | None = None  # context of the webhook
        self._tasks: list[asyncio.Task[None]] = []
        self._checks: asyncio.Task[None] | None = None
        self._trusted = False  # whether the webhook configuration is known to contain our CA

    async def start(self) -> None:
        settings = self._settings
        connection = load(settings.kubeconfig, settings.context) if settings.kubeconfig else in_cluster()
        http = self._http = await connected(connection, "phalanx-controllers")
        await self._serve_health()
        await wait_for_server(http)
        checks = report_lacking(http, GroupApi(http), "controllers", self._leadership.lease, self._clock, "--namespace")
        self._checks = asyncio.create_task(checks, name="checks")
        await self.start_with(http, lambda path: http.request("GET", path), Callers(http))

    async def start_with(self, client: Client, ask: Ask, callers: Callers | None = None) -> None:
        """Start with a given client. `callers`: authorises callers of the address with TLS."""
        settings = self._settings
        api = GroupApi(client)
        controllers = self.controllers = ClusterControllers(api, self._clock, gang_budgets=self._settings.gang_budgets)
        abilities = await answered("asking for scheduling objects", lambda: probe(api, ask))
        log.info("pods are linked by %s", "spec.schedulingGroup" if abilities.scheduling_group else "label")
        controllers.directory.abilities = abilities
        controllers.directory.scheduler = settings.scheduler_name
        controllers.writer.fill_priority = controllers.workloads_have_status = not api.native
        self._tasks.append(asyncio.create_task(controllers.follow(), name="follow"))
        if settings.webhook is not None:
            await self._serve_webhook(client, controllers, settings.webhook)
        await self._serve_health()
        if settings.secure is not None and callers is not None and self.health is not None:
            tls = self._tls or made_at_start(self._clock.now())
            await self.health.start_secure(Secure(settings.secure, tls, callers))
        self._tasks.append(asyncio.create_task(self._leadership.run(client, controllers.work), name="work"))
        ready = asyncio.create_task(controllers.ready.wait())
        done, _ = await asyncio.wait({ready, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        if ready not in done:
            ready.cancel()
        for task in done - {ready}:
            task.result()

    async def _serve_webhook(self, client: Client, controllers: ClusterControllers, listen: Listen) -> None:
        settings = self._settings
        if settings.tls_dir is not None:
            files = CertificateFiles(settings.tls_dir, "--tls-dir", self._clock)
            identity, self._tls = files.identity, files.context
            renewals = files.follow(lambda renewed: self._trust(client, renewed))
            self._tasks.append(asyncio.create_task(renewals, name="certificate"))
        else:
            now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
            hosts = settings.webhook_hosts
            identity = await answered(
                f"reading Secret {settings.namespace}/{settings.secret}",
                lambda: from_secret(client, settings.secret, settings.namespace, hosts, now),
            )
            self._tls = identity.context()
        self.webhook = WebhookServer(controllers.directory, controllers.ready)
        await self.webhook.start(listen.host, listen.port, self._tls)
        await self._trust(client, identity)
        self._tasks.append(asyncio.create_task(self._keep_trusted(client), name="trust in the webhook"))

    async def _trust(self, client: Client, identity: Identity) -> None:
        self.authority = identity.ca
        if identity.ca and self._settings.configuration:
            self._trusted = await publish(client, self._settings.configuration, identity.ca)

    async def _keep_trusted(self, client: Client) -> NoReturn:
        """Write our CA into the webhook configuration whenever it is missing: it may be applied again."""
        while True:
            await asyncio.sleep(TRUST_AGAIN)
            if self.authority and self._settings.configuration:
                self._trusted = await publish(
                    client, self._settings.configuration, self.authority, quiet=not self._trusted
                )

    async def _serve_health(self) -> None:
        """Serve probes from the start: a process that waits for the API server is alive but not ready."""
        settings = self._settings
        if self.health is not None or (settings.health is None and settings.secure is None):
            return
        listen = settings.health or Listen("127.0.0.1", 0)
        registry = CollectorRegistry()
        AtScrape(registry, self._counts)
        if self._http is not None:
            ProcessMetrics(registry, self._http, self._leadership)
        watchdog = Watchdog(
            lambda: self.controllers.informers if self.controllers is not None else [],
            lambda: self._leadership.overdue,
        )
        self._tasks.append(asyncio.create_task(watchdog.run(), name="watchdog"))
        self.health = HealthServer(
            registry,
            live=watchdog.checks,
            ready={"informer-sync": self._unready},
        )
        await self.health.start(listen.host, listen.port)

    def _counts(self) -> Iterable[Metric]:
        counts = self.webhook.counts if self.webhook is not None else {}
        yield counter("phalanx_webhook_answers", "Answers of the webhook.", ["outcome"], counts)
        failures = self.controllers.failures() if self.controllers is not None else {}
        yield counter("phalanx_controller_failures", FAILURES, ["controller"], failures)

    def _unready(self) -> str:
        if self.controllers is None:
            return "the API server has not answered yet"
        return "" if self.controllers.ready.is_set() else "caches are being filled"

    def new_standby(self) -> ClusterMode:
        """Return a standby with the same addresses, after the lease was lost."""
        settings = self._settings
        if settings.webhook is not None and self.webhook is not None:
            settings = replace(settings, webhook=replace(settings.webhook, port=self.webhook.port))
        if settings.health is not None and self.health is not None:
            settings = replace(settings, health=replace(settings.health, port=self.health.port))
        if settings.secure is not None and self.health is not None:
            settings = replace(settings, secure=replace(settings.secure, port=self.health.secure_port))
        return ClusterMode(settings, clock=self._clock, before=self._leadership)

    async def until_failure(self) -> None:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        raise cause_of_end(done)

    async def stop(self) -> None:
        if self.webhook is not None:
            await self.webhook.stop()
        for task in reversed(self._tasks):  # release the lease before the caches end
            await end((task,))
        if self._checks is not None:
            await end((self._checks,))
        if self.health is not None:
            await self.health.stop()
        if self._http is not None:
            await self._http.__aexit__()
