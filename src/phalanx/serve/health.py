"""/livez, /readyz, /healthz and /metrics of a component that has no API of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Check = Callable[[], str]  # "" = fine, otherwise what is wrong
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HealthServer:
    """Loopback by default; `readyz` answers 500 with the failing checks named, as kube-scheduler's does."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        live: Mapping[str, Check] | None = None,
        ready: Mapping[str, Check] | None = None,
        before_scrape: Callable[[], None] | None = None,
        extensions: Mapping[str, Handler] | None = None,
    ) -> None:
        """`extensions`: further paths, which must decide themselves who may ask."""
        self._registry = registry
        self._live, self._ready = dict(live or {}), dict(ready or {})
        self._before_scrape = before_scrape
        self._extensions = dict(extensions or {})
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_get("/livez", self._handler(self._live))
        app.router.add_get("/healthz", self._handler(self._live))
        app.router.add_get("/readyz", self._handler({**self._live, **self._ready}))
        app.router.add_get("/metrics", self._metrics)
        for path, handler in self._extensions.items():
            app.router.add_route("*", path, handler)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

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
        if self._before_scrape is not None:
            self._before_scrape()
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
