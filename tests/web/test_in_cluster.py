"""The dashboard of a scheduler of its own: users the API server knows may look, users it allows may ask."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from phalanx.base.errors import ApiProblem, Forbidden, ServiceUnavailable, Unauthorized
from phalanx.serve.callers import Guarded
from phalanx.serve.scheduler_process import SchedulerProcess, SchedulerSettings
from phalanx.web.in_cluster import InClusterDashboard
from phalanx.web.tokens import LoginTokens
from support.dashboard import Browser
from support.local_cluster import LocalCluster, local_cluster


class AtHealth:
    """A scheduler process in a thread, with asyncio's own loop as `phalanx scheduler` has it."""

    def __init__(self, cluster: LocalCluster, *, elect: bool = False) -> None:
        self.cluster = cluster
        settings = SchedulerSettings(kubeconfig=str(cluster.kubeconfig), leader_elect=elect)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._process = SchedulerProcess(settings, dashboard=partial(InClusterDashboard, name="prod-east"))
        asyncio.run_coroutine_threadsafe(self._process.start(), self._loop).result(30)
        assert self._process.health is not None
        self.url = f"http://127.0.0.1:{self._process.health.port}"

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._process.stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def browser(self, token: str = "") -> Browser:
        browser = Browser(self.url)
        if token:
            code, announced = browser.ask("POST", "/dashboard/api/session", {"token": token})
            assert code == 200, announced
        return browser


@pytest.fixture(scope="module")
def health(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtHealth]:
    cluster = local_cluster(tmp_path_factory.mktemp("cluster"), nodes=3, run_scheduler=False)
    cluster.start()
    running = AtHealth(cluster)
    yield running
    running.stop()
    cluster.stop()


def test_the_page_has_the_name_of_the_cluster(health: AtHealth) -> None:
    assert health.browser(health.cluster.token).get("/dashboard/api/snapshot")["cluster"] == "prod-east"


def test_the_page_is_there_and_says_nothing_without_a_token(health: AtHealth) -> None:
    browser = health.browser()
    code, page = browser.ask("GET", "/dashboard/")
    assert code == 200 and b"Phalanx" in page
    assert browser.ask("GET", "/dashboard/api/snapshot")[0] == 401
    code, announced = browser.ask("POST", "/dashboard/api/session", {"token": "made-up"})
    assert code == 401, announced
    assert browser.ask("POST", "/dashboard/api/session", {"once": "made-up"})[0] == 401
    assert browser.ask("GET", "/readyz") == (200, b"ok")


def test_a_token_the_api_server_knows_lets_in(health: AtHealth) -> None:
    browser = health.browser(health.cluster.token)
    assert len(browser.get("/dashboard/api/snapshot")["nodes"]) == 3
    assert browser.get("/dashboard/api/session")["may"] == "ask"
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"
    code, answer = browser.ask("POST", "/dashboard/api/whatif", {"text": pod})
    assert code == 200 and answer["outlook"]["fits"], answer


def test_a_user_who_may_only_look_cannot_ask(health: AtHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Guarded.check

    async def check(self: Guarded, token: str, path: str, verb: str) -> None:
        await real(self, token, path, verb)
        if verb == "post":  # as RBAC with the verb get alone answers
            raise Forbidden("no permission to post")

    monkeypatch.setattr(Guarded, "check", check)
    browser = health.browser(health.cluster.token)
    assert browser.get("/dashboard/api/session")["may"] == "look"
    assert len(browser.get("/dashboard/api/snapshot")["nodes"]) == 3
    code, announced = browser.ask("POST", "/dashboard/api/whatif", {"text": "a: 1"})
    assert code == 403 and "verb post" in announced["message"]


def test_a_lost_right_and_a_logout_end_a_login_at_once(health: AtHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, other = health.browser(health.cluster.token), health.browser(health.cluster.token)
    assert other.ask("DELETE", "/dashboard/api/session")[0] == 200
    code, announced = other.ask("GET", "/dashboard/api/snapshot")
    assert code == 401, announced
    stream = browser.follow(browser.get("/dashboard/api/snapshot")["id"], "/dashboard/api/feed")

    async def check(self: Guarded, token: str, path: str, verb: str) -> None:
        assert token == health.cluster.token  # the one that was shown, unlocked by the cookie
        raise Forbidden("no permission to get the non-resource URL /phalanx/v1/dashboard")

    monkeypatch.setattr(Guarded, "check", check)
    monkeypatch.setattr("phalanx.web.tokens.AGAIN_SECONDS", 0.0)  # a minute has passed
    for _ in range(2):  # and every request gets the reason, whichever of them was the first
        code, announced = browser.ask("GET", "/dashboard/api/snapshot")
        assert code == 401 and "no longer lets you in: no permission" in announced["message"], announced
    with pytest.raises(AssertionError, match="the stream ended"):
        while True:
            stream.next()
    stream.close()


def test_a_token_is_kept_locked_and_a_silent_api_server_ends_nothing() -> None:
    now = [0.0]
    says: list[ApiProblem | None] = [None]

    async def check(token: str) -> str:
        assert token == "secret-token"
        if says[0] is not None:
            raise says[0]
        return "look"

    async def story() -> None:
        tokens = LoginTokens(check, lambda: now[0])
        may, key = await tokens.enter("secret-token")
        assert may == await tokens.may(key) == "look"
        assert not any(b"secret-token" in kept.locked for kept in tokens._kept.values())
        now[0], says[0] = 61.0, ServiceUnavailable("away")
        assert await tokens.may(key) == "look"
        now[0], says[0] = 122.0, Unauthorized("expired")
        with pytest.raises(Unauthorized, match="no longer lets you in: expired"):
            await tokens.may(key)
        for wrong in ("", "made-up", "A" * 43):
            with pytest.raises(Unauthorized, match="ended"):
                await tokens.may(wrong)

    asyncio.run(story())


def test_a_standby_names_the_leader_and_continues_when_it_leads(health: AtHealth) -> None:
    first = AtHealth(health.cluster, elect=True)
    stopped = False
    try:
        until(first.browser(first.cluster.token), lambda found: found["standby"] is None and found["nodes"])
        second = AtHealth(health.cluster, elect=True)
        try:
            browser = second.browser(second.cluster.token)
            waiting = until(browser, lambda found: found["standby"])  # it has seen who holds the lease
            assert waiting["standby"] == socket.gethostname() and not waiting["nodes"]
            stream = browser.follow(waiting["id"], "/dashboard/api/feed")
            first.stop()
            stopped = True
            changed = stream.until(lambda change: change.get("standby", "") is None or change.get("event"))
            stream.close()
            assert changed.get("event") == "reset" or changed["standby"] is None
            assert len(until(browser, lambda found: found["standby"] is None and found["nodes"])["nodes"]) == 3
        finally:
            second.stop()
    finally:
        if not stopped:
            first.stop()


def until(browser: Browser, wanted: Callable[[Any], Any]) -> Any:
    """The first snapshot that is as wanted; between two of them the feed tells when to look again."""
    while True:
        found = browser.get("/dashboard/api/snapshot")
        if wanted(found):
            return found
        stream = browser.follow(found["id"], "/dashboard/api/feed")
        stream.next()
        stream.close()
