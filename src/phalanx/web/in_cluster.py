"""The dashboard of a scheduler in a cluster: below /dashboard/ at its health address, for users of the API server.

A login needs a bearer token. The API server authenticates it and authorizes its user: `get` on /phalanx/v1/dashboard
allows viewing, `post` on /phalanx/v1/whatif allows queries. Both are checked again every minute, and the login ends
after an hour.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.errors import Forbidden
from phalanx.serve.callers import Guarded
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.queries.paths import BASE
from phalanx.serve.scheduler_parts import SchedulerParts
from phalanx.web.feed import Feed
from phalanx.web.history import UsageHistory
from phalanx.web.login import ASK, LOOK, Login
from phalanx.web.questions import Questions
from phalanx.web.site import Site
from phalanx.web.tokens import LoginTokens

PREFIX = "/dashboard"
SESSION_SECONDS = 3600.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class InClusterDashboard:
    def __init__(
        self,
        parts: SchedulerParts,
        guarded: Guarded,
        client: Client,
        clock: Clock,
        leader: Callable[[], str | None],
        *,
        name: str = "",
    ) -> None:
        """name: of the cluster, for the header of the page"""
        service = parts.service
        reader = EngineReader(service.engine, clock.now)
        history = UsageHistory(reader, clock.now)
        self._feed = feed = Feed(reader, history, clock, leader, name=name)
        service.on_decisions.append(history.decided)
        service.on_step.append(feed.touch)
        login = Login(secrets.token_bytes(32), clock.now, SESSION_SECONDS)

        async def rights(token: str) -> str:
            await guarded.check(token, f"{BASE}/dashboard", "get")
            try:
                await guarded.check(token, f"{BASE}/whatif", "post")
            except Forbidden:
                return LOOK
            return ASK

        self._site = Site(
            feed,
            Questions(reader, parts.diagnostics, client, history, objects=False),
            login,
            prefix=PREFIX,
            tokens=LoginTokens(rights, clock.now),
        )

    def routes(self) -> dict[str, Handler]:
        return {f"{PREFIX}/{{path:.*}}": self._site.handle, PREFIX: self._to_page}

    async def _to_page(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"{PREFIX}/")

    async def run(self) -> None:
        await self._feed.run()

    async def close(self) -> None:
        await self._feed.close()
        await asyncio.sleep(0)
