"""Probes tell the truth, and an address that other machines reach gives away nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from phalanx.base.errors import ConfigProblem
from phalanx.serve import watchdog as module
from phalanx.serve.health import HealthServer
from phalanx.serve.watchdog import Watchdog
from support.waiting import eventually_async

Ask = Callable[[str], Awaitable[tuple[int, str]]]


@dataclass
class Still:
    last_activity: float
    what: str


async def _asked(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


def test_a_taken_port_is_a_setting_to_change_and_not_a_crash() -> None:
    async def main() -> None:
        first, second = HealthServer(CollectorRegistry()), HealthServer(CollectorRegistry())
        await first.start()
        try:
            with pytest.raises(ConfigProblem, match=rf"--health: cannot listen on 127.0.0.1:{first.port}: Address alr"):
                await second.start(port=first.port)
            await second.stop()
        finally:
            await first.stop()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_other_machines_reach_probes_and_neither_metrics_nor_questions(host: str) -> None:
    async def question(_: web.Request) -> web.Response:
        return web.Response(text="answer")

    async def main() -> None:
        health = HealthServer(CollectorRegistry(), extensions={"/phalanx/v1/why": question})
        await health.start(host, 0)
        try:
            reached = {path: (await _asked(health.port, path))[0] for path in ("/livez", "/readyz", "/healthz")}
            assert set(reached.values()) == {200}
            closed = 404 if host == "0.0.0.0" else 200
            for path in ("/metrics", "/phalanx/v1/why"):
                assert (await _asked(health.port, path))[0] == closed
                assert (await _asked(health.private_port, path))[0] == 200
            runner = health._runner
            assert runner is not None and runner.addresses[0][0] == "127.0.0.1"
        finally:
            await health.stop()

    asyncio.run(main())


def test_livez_names_what_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        informers = [Still(loop.time(), "pods"), Still(0.0, "not begun")]
        overdue = 0.0
        watchdog = Watchdog(lambda: informers, lambda: overdue)
        health = HealthServer(CollectorRegistry(), live=watchdog.checks)
        await health.start()
        running = asyncio.create_task(watchdog.run())
        try:
            assert await _asked(health.port, "/livez") == (200, "ok")
            informers[0].last_activity = loop.time() - module.INFORMER_STILL - 5
            code, text = await _asked(health.port, "/livez")
            assert code == 500 and "[-]informers failed: pods has sent and received nothing for" in text
            informers[0].last_activity = loop.time()
            overdue = 60.0
            code, text = await _asked(health.port, "/livez")
            assert code == 500 and "[-]lease failed: leads 60 s beyond the renew deadline" in text
        finally:
            running.cancel()
            await health.stop()

    asyncio.run(main())


def test_a_loop_that_stands_still_is_noticed_and_the_log_says_where(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.01)
    monkeypatch.setattr(module, "LOOP_STILL", 0.05)
    noticed = threading.Event()

    def stand_still(watchdog: Watchdog) -> str:
        while "has been blocked" not in caplog.text:
            noticed.wait(0.01)
        return watchdog.checks["event-loop"]()

    async def main() -> None:
        watchdog = Watchdog()
        running = asyncio.create_task(watchdog.run())
        await asyncio.sleep(0)
        said = stand_still(watchdog)
        assert said.startswith("has been blocked for")
        await eventually_async(lambda: not watchdog.checks["event-loop"](), "the loop counts as alive again")
        running.cancel()

    asyncio.run(main())
    assert "stand_still" in caplog.text
