"""Access to the diagnostics of a scheduler: the API server reviews the caller's token and rights."""

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
from phalanx.serve.callers import REMEMBERED, Callers, Guarded
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.paths import AUDIENCE, PATHS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serving(routes: dict[str, Handler]) -> tuple[web.AppRunner, str]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


USERS = {("boss", ""): "boss", ("guest", ""): "guest", ("for the scheduler", AUDIENCE): "boss"}


class Authority:
    """What a kube-apiserver with RBAC answers: it knows tokens by their audience, and lets one user use the path."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.callers: set[str] = set()

    async def who(self, request: web.Request) -> web.StreamResponse:
        self.callers.add(request.headers["Authorization"])
        spec = (await request.json())["spec"]
        user = USERS.get((spec["token"], *spec.get("audiences", [""])))
        status = {"authenticated": True, "user": {"username": user, "groups": ["g"]}} if user else {}
        return web.json_response({"kind": "TokenReview", "status": status}, status=201)

    async def may(self, request: web.Request) -> web.StreamResponse:
        spec = (await request.json())["spec"]
        self.seen.append((spec["user"], spec.get("nonResourceAttributes") or spec["resourceAttributes"]))
        allowed = spec["user"] == "boss" or spec.get("resourceAttributes", {}).get("namespace") == "theirs"
        return web.json_response({"kind": "SubjectAccessReview", "status": {"allowed": allowed}}, status=201)


def test_the_api_server_reviews_the_callers_token_and_rights() -> None:
    now = 1000.0

    async def play() -> None:
        nonlocal now
        authority = Authority()
        server, url = await serving(
            {
                "/apis/authentication.k8s.io/v1/tokenreviews": authority.who,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews": authority.may,
            }
        )
        ours = Connection(url, None, token="the scheduler's own")
        async with HttpClient(ours) as client:
            callers = Callers(client, monotonic=lambda: now)
            guarded = Guarded(Diagnostics(Engine(), client, Gates(), lambda: True), callers)
            scheduler, here = await serving(dict.fromkeys(PATHS, guarded.handle))
            async with aiohttp.ClientSession() as session:

                async def ask(namespace: str = "default", **headers: str) -> int:
                    question = f"{here}/phalanx/v1/why?kind=pod&name=x&namespace={namespace}"
                    sent = {name.replace("_", "-"): value for name, value in headers.items()}
                    async with session.get(question, headers=sent) as answer:
                        return answer.status

                assert await ask() == 401
                assert await ask(Authorization="Basic boss") == 401
                assert await ask(Authorization="Bearer unrelated") == 401
                assert await ask(Authorization="Bearer boss") == 404  # let in: the engine knows no such pod
                assert authority.seen == [("boss", {"path": "/phalanx/v1/why", "verb": "get"})]
                # Who may not use the path may still ask about what it may read.
                assert await ask(Authorization="Bearer guest") == 403
                asked = {"verb": "get", "resource": "pods", "namespace": "default", "name": "x"}
                assert authority.seen[-1] == ("guest", asked)
                assert await ask("theirs", Authorization="Bearer guest") == 404
                # Through the service proxy: a token of another audience, in a header that the API server leaves.
                assert await ask(Phalanx_Token="for the scheduler") == 404
                assert await ask(Authorization="Bearer for the scheduler") == 401
                assert authority.callers == {"Bearer the scheduler's own"}
                await server.cleanup()
                assert await ask(Authorization="Bearer boss") == 404  # remembered for some seconds
                now += REMEMBERED + 1
                assert await ask(Authorization="Bearer boss") == 503
            await scheduler.cleanup()

    asyncio.run(play())
