"""/livez, /readyz, /healthz and /metrics of a component without an API.

If other machines can reach the plain address, it serves only probes. Metrics and queries, which need bearer tokens, are
then on the loopback address with the next port: `kubectl port-forward` reaches it through the API server's TLS, so no
token is sent in plain text. A second address may use TLS: it serves metrics and queries to callers that the API server
authorises, and probes to all.
"""

from __future__ import annotations

import datetime
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from phalanx.base.errors import ApiProblem
from phalanx.local.api.tls import load_identity
from phalanx.serve.callers import Callers, refused
from phalanx.serve.settings import Listen, cannot_listen

log = logging.getLogger(__name__)

Check = Callable[[], str]  # returns the problem; "": none
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Secure(msgspec.Struct, frozen=True):
    """The address with TLS, its certificate, and the authorisation of callers."""

    listen: Listen
    tls: ssl.SSLContext
    callers: Callers


def made_at_start(now: float) -> ssl.SSLContext:
    """Create a self-signed certificate that is valid for ten years."""
    when = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return load_identity(None, (socket.gethostname(),), when).context()


class HealthServer:
    """Serves probes, by default on loopback; `readyz` answers 500 with the failed checks, like kube-scheduler."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        live: Mapping[str, Check] | None = None,
        ready: Mapping[str, Check] | None = None,
        extensions: Mapping[str, Handler] | None = None,
        guarded: tuple[str, ...] = (),
    ) -> None:
        """`extensions`: further paths, which check callers themselves. `guarded`: those that need a token with
        every request; they are also on the address with TLS."""
        self._guarded = guarded
        self._registry = registry
        self._live, self._ready = dict(live or {}), dict(ready or {})
        self._extensions = dict(extensions or {})
        self._runner: web.AppRunner | None = None
        self._probes: web.AppRunner | None = None
        self._secure: web.AppRunner | None = None
        self.port = 0
        self.secure_port = 0
        self.private_port = 0  # port of metrics and queries, on loopback

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        if Listen(host, port).loopback:
            self._runner = await self._serve(self._everything(), host, port)
            self.port = self.private_port = self._runner.addresses[0][1]
            return
        probes = web.Application(client_max_size=1024)
        self._add_probes(probes)
        self._probes = await self._serve(probes, host, port)
        self.port = self._probes.addresses[0][1]
        self._runner = await self._serve(self._everything(), "127.0.0.1", self.port + 1 if port else 0)
        self.private_port = self._runner.addresses[0][1]
        log.info("probes on %s:%d; metrics and questions on 127.0.0.1:%d", host, self.port, self.private_port)

    async def start_secure(self, secure: Secure) -> None:
        app = web.Application(client_max_size=8 << 20)
        self._add_probes(app)

        async def metrics(request: web.Request) -> web.StreamResponse:
            try:
                await secure.callers.check_request(request)
            except ApiProblem as problem:
                return refused(problem)
            return await self._metrics(request)

        app.router.add_get("/metrics", metrics)
        for path in self._guarded:
            app.router.add_route("*", path, self._extensions[path])
        where = secure.listen
        self._secure = await self._serve(app, where.host, where.port, secure.tls, "--secure")
        self.secure_port = self._secure.addresses[0][1]
        log.info("probes, metrics and questions with TLS on %s:%d", where.host, self.secure_port)

    def _add_probes(self, app: web.Application) -> None:
        app.router.add_get("/livez", self._handler(self._live))
        app.router.add_get("/healthz", self._handler(self._live))
        app.router.add_get("/readyz", self._handler({**self._live, **self._ready}))

    def _everything(self) -> web.Application:
        app = web.Application(client_max_size=8 << 20)
        self._add_probes(app)
        app.router.add_get("/metrics", self._metrics)
        for path, handler in self._extensions.items():
            app.router.add_route("*", path, handler)
        return app

    @staticmethod
    async def _serve(
        app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None, option: str = "--health"
    ) -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except OSError as problem:
            await runner.cleanup()
            raise cannot_listen(option, host, port, problem) from None
        return runner

    async def stop(self) -> None:
        for runner in (self._secure, self._probes, self._runner):
            if runner is not None:
                await runner.cleanup()
        self._secure = self._probes = self._runner = None

    @staticmethod
    def _handler(checks: Mapping[str, Check]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            results = {name: check() for name, check in checks.items()}
            failed = any(results.values())
            if not failed and "verbose" not in request.query:
                return web.Response(text="ok")
            lines = [f"[-]{name} failed: {text}" if text else f"[+]{name} ok" for name, text in results.items()]
            lines.append("check failed" if failed else "check passed")
            return web.Response(text="\n".join(lines) + "\n", status=500 if failed else 200)

        return answer

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
