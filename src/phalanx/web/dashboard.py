"""The dashboard of a local cluster: a component on a loopback port of its own.

Plain HTTP on purpose: browsers refuse the cluster's own certificate authority, and what never leaves the machine needs
no TLS. Data needs the cookie that a one-time link is exchanged for.
"""

from __future__ import annotations

import asyncio
import errno

import msgspec
from aiohttp import web

from phalanx.base.errors import ConfigProblem
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.component import Loop
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.queries.paths import BASE
from phalanx.serve.scheduler import SchedulerService
from phalanx.serve.settings import Listen, cannot_listen
from phalanx.web.feed import Feed
from phalanx.web.history import UsageHistory
from phalanx.web.login import Login
from phalanx.web.logouts import FILE
from phalanx.web.questions import MOST_TEXT, Questions
from phalanx.web.site import Site

LINK = f"{BASE}/dashboard"  # behind the API server's token: a fresh login link
DEFAULT = "127.0.0.1:7480"


class Dashboard:
    """`follow` gets the scheduler, `part` creates the component, `link` works once it has started."""

    name = "dashboard"

    def __init__(self, listen: str = "") -> None:
        """`listen` "": the usual port, or any free one if that is taken. Raises ConfigProblem."""
        self._chosen = bool(listen)
        self._listen = Listen.parse(listen or DEFAULT, "--dashboard")
        if not self._listen.loopback:
            raise ConfigProblem("--dashboard", f"{self._listen.host} is not a loopback address; use 127.0.0.1:PORT")
        self._reader: EngineReader | None = None
        self._runner: web.AppRunner | None = None
        self._loop: Loop | None = None
        self.url = ""

    def follow(self, server: ApiServer, service: SchedulerService, diagnostics: Diagnostics) -> None:
        """Show this scheduler, which was just started; open pages continue with it."""
        clock = server.context.clock
        if self._reader is None:
            self._reader = reader = EngineReader(service.engine, clock.now)
            self._history = UsageHistory(reader, clock.now)
            self._feed = Feed(reader, self._history, clock, name=server.settings.shown_name)
            data = server.settings.data
            self._login = Login.keyed(server.token, clock.now, data / FILE if data else None)
            self._questions = Questions(reader, diagnostics, server.client("phalanx-dashboard"), self._history)
            self._site = Site(self._feed, self._questions, self._login)
            server.extend(LINK, self._answer_link)
        else:
            self._reader.read_engine(service.engine)
            self._questions.diagnostics = diagnostics
            self._feed.start_over()
        service.on_decisions.append(self._history.decided)
        service.on_step.append(self._feed.touch)

    def part(self, server: ApiServer) -> Dashboard:
        return self

    def link(self) -> str:
        """Return a URL that logs in one browser.

        The secret is in the fragment (after #), which browsers do not send, so it cannot be logged.
        """
        return f"{self.url}#login={self._login.link()}"

    async def _answer_link(self, method: str, path: str, query: object, body: bytes) -> bytes:
        return msgspec.json.encode({"url": self.link()})

    @property
    def failed(self) -> asyncio.Future[None] | None:
        return self._loop.failed if self._loop is not None else None

    async def start(self) -> None:
        app = web.Application(client_max_size=2 * MOST_TEXT)
        app.router.add_route("*", "/{path:.*}", self._site.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        host, port = self._listen.host, self._listen.port
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as problem:
            if self._chosen or problem.errno != errno.EADDRINUSE:
                raise cannot_listen("--dashboard", host, port, problem) from None
            await web.TCPSite(self._runner, host, 0).start()
        port = self._runner.addresses[0][1]
        self._listen, self._chosen = Listen(host, port), True  # a restart keeps the address, which open pages know
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        self._loop = Loop("dashboard", self._feed.run)
        await self._loop.start()

    async def stop(self) -> None:
        if self._loop is not None:
            await self._loop.stop()
            await self._feed.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
