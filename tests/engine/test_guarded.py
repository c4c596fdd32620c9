"""Who may ask a scheduler directly: the API server decides, by the caller's own token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from phalanx.engine.engine import Engine
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.model.gates import Gates
from phalanx.serve.authenticated_diagnostics import Guarded
from phalanx.serve.callers import REMEMBERED, Callers
from phalanx.serve.diagnostics import PATHS, Diagnostics

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serving(routes: dict[str, Handler]) -> tuple[web.AppRunner, str]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


class Authority:
    """What a kube-apiserver with RBAC answers: it knows two tokens, and lets one of them ask."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def who(self, request: web.Request) -> web.StreamResponse:
        known = request.headers.get("Authorization") in ("Bearer boss", "Bearer guest")
        return web.json_response({"kind": "Status", "code": 401} if not known else {}, status=201 if known else 401)

    async def may(self, request: web.Request) -> web.StreamResponse:
        token = request.headers["Authorization"]
        self.seen.append((token, (await request.json())["spec"]["nonResourceAttributes"]))
        return web.json_response({"status": {"allowed": token == "Bearer boss"}}, status=201)


def test_the_api_server_decides_by_the_callers_own_token() -> None:
    now = 1000.0

    async def play() -> None:
        nonlocal now
        authority = Authority()
        server, url = await serving(
            {
                "/apis/authentication.k8s.io/v1/selfsubjectreviews": authority.who,
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": authority.may,
            }
        )
        ours = Connection(url, None, token="the scheduler's own")
        async with HttpClient(ours) as client:
            callers = Callers(ours, monotonic=lambda: now)
            guarded = Guarded(Diagnostics(Engine(), client, Gates(), lambda: True), callers)
            scheduler, here = await serving(dict.fromkeys(PATHS, guarded.handle))
            async with aiohttp.ClientSession() as session:

                async def ask(**headers: str) -> int:
                    question = f"{here}/phalanx/v1/why?kind=pod&name=x"
                    async with session.get(question, headers=headers) as answer:
                        return answer.status

                assert await ask() == 401
                assert await ask(Authorization="Basic boss") == 401
                assert await ask(Authorization="Bearer stranger") == 401
                assert await ask(Authorization="Bearer guest") == 403
                assert await ask(Authorization="Bearer boss") == 404  # let in: the engine knows no such pod
                assert authority.seen[-1] == ("Bearer boss", {"path": "/phalanx/v1/why", "verb": "get"})
                assert not any("own" in token for token, _ in authority.seen)
                await server.cleanup()
                assert await ask(Authorization="Bearer boss") == 404  # remembered for some seconds
                now += REMEMBERED + 1
                assert await ask(Authorization="Bearer boss") == 503
            await scheduler.cleanup()

    asyncio.run(play())
