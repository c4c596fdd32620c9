"""A layer between HTTP and the application: records requests and acknowledged answers, and injects wrong answers.

An answer is acknowledged when it leaves here; whether it arrives is decided by the network.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))


@dataclass(frozen=True, slots=True)
class Moods:
    """Probabilities of wrong answers, per request."""

    refuse: float = 0.0  # 429, 500 or 503 in place of doing it
    conflict: float = 0.0  # a 409 for an update, though the object did not change
    forget: float = 0.0  # done, and then a 500 in place of the answer
    twice: float = 0.0  # a proxy on the way sends the request again, a moment later
    expired: float = 0.0  # a watch gets 410 Gone
    stray: float = 0.0  # something on the way answers in place of the server: a page, a 404 of its own, an empty 200


GOOD = Moods()
STRAY = (
    (404, b"404 page not found\n", b"text/plain"),
    (200, b"<html>please log in</html>", b"text/html"),
    (200, b"{}", b"application/json"),
    (200, b"", b"application/json"),
    (502, b"<html>bad gateway</html>", b"text/html"),
)


class Front:
    """Wraps the application. `acknowledged(answer)` and `asked(agent, method, path)` are callbacks of the world."""

    def __init__(
        self,
        rng: random.Random,
        acknowledged: Callable[[bytes], None],
        asked: Callable[[str, str, str, bytes], None],
    ) -> None:
        self._rng = rng
        self._acknowledged, self._asked = acknowledged, asked
        self.moods = GOOD
        self.wrong = 0
        self._again: dict[asyncio.Task[None], None] = {}  # in order

    def around(self, app: Any) -> Any:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(app, scope, receive, send)

        return serve

    async def _serve(self, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
        method, path, watch = scope["method"], scope["path"], b"watch=true" in scope["query_string"]
        agent = next((value.decode() for name, value in scope["headers"] if name == b"user-agent"), "")
        if self._chance(self.moods.stray):
            await _say(send, *self._rng.choice(STRAY))
            return
        if watch and self._chance(self.moods.expired):
            await _answer(send, 410, "Expired")
            return
        if not watch and self._chance(self.moods.refuse):
            await _answer(
                send, *self._rng.choice(((429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")))
            )
            return
        if method == "PUT" and self._chance(self.moods.conflict):
            await _answer(send, 409, "Conflict")
            return
        if method not in WRITES:
            await app(scope, receive, send)
            return
        body = await _whole(receive)
        self._asked(agent, method, path, body)
        sent = await _handle(app, scope, body)
        code = next((message["status"] for message in sent if message["type"] == "http.response.start"), 500)
        if self._chance(self.moods.twice):
            task = asyncio.create_task(self._once_more(app, dict(scope), body), name="duplicate")
            self._again[task] = None
            task.add_done_callback(self._again.pop)
        if 200 <= code < 300:
            if self._chance(self.moods.forget):
                await _answer(send, 500, "InternalError")
                return
            answer = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
            self._acknowledged(answer)
        for message in sent:
            await send(message)

    async def _once_more(self, app: Any, scope: Scope, body: bytes) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await _handle(app, scope, body)

    def forget_duplicates(self) -> None:
        for task in list(self._again):
            task.cancel()

    def _chance(self, likely: float) -> bool:
        if not likely or self._rng.random() >= likely:
            return False
        self.wrong += 1
        return True


async def _whole(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body = body + bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def _handle(app: Any, scope: Scope, body: bytes) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def _answer(send: Send, code: int, reason: str) -> None:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
              "message": "the simulated server is in a mood"}  # fmt: skip
    await _say(send, code, json.dumps(status).encode(), b"application/json")


async def _say(send: Send, code: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
