"""Callers of a port of ours: the API server is asked about them, no more often than needed; tokens are not kept."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from phalanx.base.errors import Forbidden, ServiceUnavailable, TooManyRequests, Unauthorized
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.serve import callers as module
from phalanx.serve.callers import REMEMBERED, Caller, Callers


class Asking(Callers):
    """Its API server knows `good`, does not allow `small`, and is away for `late`."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(HttpClient(Connection("https://nowhere", None)), lambda: self.now)
        self.asked: Counter[str] = Counter()
        self.reviewed: Counter[str] = Counter()
        self.slow: asyncio.Event | None = None

    async def _identify(self, token: str, audiences: tuple[str, ...]) -> Caller:
        self.asked[token] += 1
        if self.slow is not None:
            await self.slow.wait()
        if token == "late":
            raise ServiceUnavailable("away")
        if token not in ("good", "small"):
            raise Unauthorized("Unauthorized")
        return Caller(f"user of {len(token)} letters")

    async def _review(self, caller: Caller, about: object) -> bool:
        token = "good" if caller.username == "user of 4 letters" else "small"
        self.reviewed[token] += 1
        return token == "good"


def test_an_answer_counts_for_some_seconds_and_for_this_path_only() -> None:
    async def main() -> None:
        callers = Asking()
        for _ in range(5):
            await callers.check("good", "/metrics", "get")
            with pytest.raises(Forbidden):
                await callers.check("small", "/metrics", "get")
            with pytest.raises(Unauthorized):
                await callers.check("guessed", "/metrics", "get")
        assert callers.asked == {"good": 1, "small": 1, "guessed": 1}
        assert callers.reviewed == {"good": 1, "small": 1}
        await callers.check("good", "/phalanx/v1/why", "get")
        assert callers.reviewed["good"] == 2
        callers.now += REMEMBERED + 1
        await callers.check("good", "/metrics", "get")
        assert (callers.asked["good"], callers.reviewed["good"]) == (2, 3)
        assert "good" not in repr(callers._known), "tokens are not kept"

    asyncio.run(main())


def test_a_server_that_is_away_is_asked_again_at_once() -> None:
    async def main() -> None:
        callers = Asking()
        for _ in range(2):
            with pytest.raises(ServiceUnavailable):
                await callers.check("late", "/metrics", "get")
        assert callers.asked["late"] == 2

    asyncio.run(main())


def test_guessed_tokens_do_not_make_the_api_server_work_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 10)

    async def main() -> None:
        callers = Asking()
        callers.slow = asyncio.Event()
        tries = [asyncio.create_task(callers.check(f"guess {n}", "/metrics", "get")) for n in range(100)]
        while sum(task.done() for task in tries) < 100 - module.MOST_WAITING:
            await asyncio.sleep(0)
        assert len(callers.asked) == module.MOST_ASKED
        callers.slow.set()
        found = Counter(type(raised) for raised in await asyncio.gather(*tries, return_exceptions=True))
        assert found == {Unauthorized: module.MOST_WAITING, TooManyRequests: 100 - module.MOST_WAITING}
        assert len(callers._known) == 10

    asyncio.run(main())
