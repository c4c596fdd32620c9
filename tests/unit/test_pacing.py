"""How fast a client may call: limits of its own, and what a busy server asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from aiohttp import web

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.kube.observed_client import PacedClient
from support.virtual_time import VirtualLoop, run
from support.waiting import eventually_async

PODS = Resource("", "v1", "pods", "Pod")


class Recorder(Client):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.calls: list[tuple[float, str]] = []

    async def call(self, call: Call) -> bytes:
        self.calls.append((round(self._loop.time(), 3), call.name))
        return b"{}"

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return
        yield


def test_calls_beyond_the_burst_wait_and_stay_in_order() -> None:
    async def main(loop: VirtualLoop) -> None:
        recorder = Recorder(loop)
        client = PacedClient(recorder, qps=10, burst=3, monotonic=loop.time)
        began = loop.time()
        await asyncio.gather(*(client.get(PODS, f"p{number}", "default") for number in range(8)))
        assert [name for _, name in recorder.calls] == [f"p{number}" for number in range(8)]
        assert [round(at - began, 2) for at, _ in recorder.calls] == [0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5]

    run(main)


def test_calls_wait_for_retry_after_and_refused_calls_are_repeated_first() -> None:
    """As kube-apiserver's flow control answers: 429, a header, and plain text."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, int]] = []
        refused_at = 0.0

        async def answer(request: web.Request) -> web.Response:
            nonlocal refused_at
            name = request.path.rpartition("/")[2]
            if not refused_at:
                refused_at = loop.time()
                seen.append((name, 429))
                return web.Response(status=429, text="Too many requests", headers={"Retry-After": "1"})
            assert loop.time() - refused_at >= 0.9, "called although the server asked for a second of rest"
            seen.append((name, 200))
            return web.json_response({"kind": "Pod", "metadata": {"name": name}})

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with HttpClient(Connection(f"http://127.0.0.1:{port}", None)) as client:
            first = asyncio.create_task(client.get(PODS, "first", "default"))
            await eventually_async(lambda: client._busy_until > 0, "the client has read that the server is busy")
            second = asyncio.create_task(client.get(PODS, "second", "default"))
            assert json.loads(await first)["metadata"]["name"] == "first"
            await second
        await runner.cleanup()
        assert seen == [("first", 429), ("first", 200), ("second", 200)]

    asyncio.run(main())


def test_compressed_answers_are_read() -> None:
    """kube-apiserver compresses large answers for clients that accept it."""

    async def main() -> None:
        accepted = ""

        async def answer(request: web.Request) -> web.Response:
            nonlocal accepted
            accepted = request.headers.get("Accept-Encoding", "")
            response = web.json_response({"kind": "Pod", "metadata": {"name": "x" * 100_000}})
            response.enable_compression(web.ContentCoding.gzip)
            return response

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with HttpClient(Connection(f"http://127.0.0.1:{runner.addresses[0][1]}", None)) as client:
            found = json.loads(await client.get(PODS, "a", "default"))
        await runner.cleanup()
        assert "gzip" in accepted
        assert len(found["metadata"]["name"]) == 100_000

    asyncio.run(main())
