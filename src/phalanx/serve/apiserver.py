"""The API server: store, handlers, certificates, socket, kubeconfig and background controllers."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from phalanx.base.clock import Clock, SystemClock
from phalanx.base.errors import ConfigProblem
from phalanx.local.api.app import App, Auth, Extension, Question
from phalanx.local.api.audit import Audit
from phalanx.local.api.auth import Anonymous, Authenticator, load_token
from phalanx.local.api.context import Context
from phalanx.local.api.event_expiry import EventExpiry
from phalanx.local.api.handler import Api
from phalanx.local.api.index import index_of
from phalanx.local.api.limits import Limits
from phalanx.local.api.request import Answer
from phalanx.local.api.rights import Rights
from phalanx.local.api.server import Server, bind
from phalanx.local.api.tls import load_identity
from phalanx.local.api.users import FILE as USERS
from phalanx.local.api.write import Writer
from phalanx.local.client import LocalClient
from phalanx.local.store.backup import write_snapshot
from phalanx.local.store.store import Store
from phalanx.local.system_controllers import ServiceAddress, SystemControllers
from phalanx.local.system_controllers.quota_status import QuotaStatus
from phalanx.model import builtin
from phalanx.serve.clusters import context_name, write_kubeconfig
from phalanx.serve.component import Loop, Supervised
from phalanx.serve.settings import MEMORY, RBAC, ServerSettings

log = logging.getLogger("phalanx.serve")


class ApiServer:
    """The API server of a local cluster. Parts in this process use `client()`, others connect to `url`."""

    name = "apiserver"

    def __init__(self, settings: ServerSettings, *, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._store: Store | None = None
        self._duties: Supervised | None = None
        self._expiry: Supervised | None = None
        self._quotas: Supervised | None = None
        self._server: Server | None = None
        self._app: App | None = None
        self._api: Api | None = None
        self._writer: Writer | None = None
        self._measures: dict[str, Callable[[], bytes]] = {}
        self.url = ""
        self.token = ""
        self.ca: bytes | None = None
        self._place = ServiceAddress()
        self._audit: Audit | None = None

    @property
    def ready(self) -> bool:
        """Return True if /readyz reports success."""
        return self._app is not None and self._app.ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        if self._app is not None:
            self._app.ready = ready

    @property
    def failed(self) -> asyncio.Future[None] | None:
        """Return None: system controllers are restarted, and other failures concern one request."""
        return None

    @property
    def api(self) -> Api:
        assert self._api is not None, "not started"
        return self._api

    @property
    def context(self) -> Context:
        return self.api.ctx

    def client(self, name: str) -> LocalClient:
        """Return a client for a component of this process; `name` is its field manager."""
        return LocalClient(self.api, user_agent=name)

    def extend(self, path: str, answer: Extension) -> None:
        """Serve a path for another part of the process, behind the same TLS and token."""
        assert self._app is not None, "not started"
        self._app.extensions[path] = answer

    def answer_questions(self, path: str, answer: Question) -> None:
        """Serve a path for another part, which decides what each authenticated caller may read."""
        assert self._app is not None, "not started"
        self._app.questions[path] = answer

    def measure(self, name: str, text: Callable[[], bytes]) -> None:
        """Add metrics of another part to /metrics; a restarted part replaces its earlier entry."""
        self._measures[name] = text

    async def start(self) -> None:
        """Start to serve. Raises ConfigProblem for an invalid setting."""
        settings = self.settings
        sock = bind(settings.listen.host, settings.listen.port)
        try:
            path = settings.data / "store.db" if settings.data is not None else MEMORY
            store = self._store = await asyncio.to_thread(Store.open, path, indexer=index_of, clock=self._clock)
            if not store.count and (alarm := store.alarm()):
                raise ConfigProblem("--data", f"{alarm}: free space there, or choose another place with --data DIR")
            ctx = Context(store, builtin.registry(settings.gates), settings.gates, self._clock)
            ctx.rights = Rights(store) if settings.authorization == RBAC else None
            if settings.audit_log is not None:
                self._audit = Audit(settings.audit_log, self._clock, ctx.rng)
                self._audit.open()
            writer = self._writer = Writer(ctx)
            self._api = Api(ctx, writer)
            auth, tls = self._secure(ctx)
            self._place = ServiceAddress(*sock.getsockname()[:2])
            self._duties = Supervised(self._make_duties)
            await self._duties.start()
            self._expiry = Supervised(lambda: Loop("events", EventExpiry(ctx, settings.event_ttl).run))
            await self._expiry.start()
            quotas = writer.changes.quotas
            self._quotas = Supervised(lambda: Loop("quotas", QuotaStatus(quotas, self.client("phalanx-apiserver")).run))
            await self._quotas.start()
            await self._listen(sock, auth, tls)
        except BaseException:
            sock.close()
            await self.stop()
            raise

    def _make_duties(self) -> Loop:
        duties = SystemControllers(
            self.client("phalanx-apiserver"),
            self.context.registry,
            self._clock,
            ca=self.ca,
            place=self._place,
            roles=self.context.rights is not None,
        )
        return Loop("duties", duties.run, ready=duties.ready.wait)

    def _secure(self, ctx: Context) -> tuple[Auth, ssl.SSLContext | None]:
        """Create the token and certificates; neither with --plain-http."""
        settings, data = self.settings, self.settings.data
        if settings.plain_http:
            return Anonymous(), None
        self.token = load_token(data / "token" if data else None)
        ctx.tokens.accept(self.token)
        ctx.tokens.users.path = data / USERS if data else None
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC)
        identity = load_identity(data / "pki" if data else None, (settings.listen.host,), now)
        self.ca = identity.ca
        return Authenticator(ctx.tokens), identity.context(clients=True)

    async def _listen(self, sock: socket.socket, auth: Auth, tls: ssl.SSLContext | None) -> None:
        settings = self.settings
        app = self._app = App(self.api, auth, limits=self._limits)
        assert self._store is not None
        app.audit = self._audit
        app.health.checks["store-space"] = self._store.alarm
        app.health.checks["store-integrity"] = self._store.integrity
        app.metrics.measure_store(self._store)
        app.downloads["/phalanx/v1/backup"] = self._backup
        self._server = Server(app, sock, tls, self._limits)
        await self._server.start()
        # Clients cannot connect to a wildcard address.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._server.host, self._server.host)
        app.address = f"[{host}]:{self._server.port}" if ":" in host else f"{host}:{self._server.port}"
        self.url = f"{'http' if settings.plain_http else 'https'}://{app.address}"
        if settings.kubeconfig_path is not None:
            context = context_name(settings.name)
            write_kubeconfig(settings.kubeconfig_path, self.url, self.ca, self.token or None, context)
        app.metrics.others.append(lambda: b"".join(text() for text in self._measures.values()))
        app.ready = True
        log.info("serving on %s", self.url)

    async def _backup(self) -> Answer:
        """Return the present store as one file; commits continue."""
        assert self._store is not None
        entries, revision = self._store.snapshot()

        def made() -> BinaryIO:
            with tempfile.TemporaryDirectory(prefix="phalanx-backup-", dir=self.settings.data) as directory:
                path = Path(directory) / "snapshot"
                write_snapshot(path, entries, revision)
                return path.open("rb")

        file = await asyncio.to_thread(made)
        return Answer(stream=_pieces(file), content_type="application/octet-stream")

    async def stop(self) -> None:
        """Finish running requests, then close the store."""
        if self._server is not None:
            await self._server.stop()
        if self._duties is not None:
            await self._duties.stop()
        if self._expiry is not None:
            await self._expiry.stop()
        if self._quotas is not None:
            await self._quotas.stop()
        if self._writer is not None:
            self._writer.changes.webhooks.close()
            self._writer.changes.ctx.conversions.close()
        if self._store is not None:
            await self._store.close()
        if self._audit is not None:
            self._audit.close()


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, 1 << 18):
            yield piece
