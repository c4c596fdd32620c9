"""The Client over HTTP(S), for any kube-apiserver and for Phalanx's own server.

One call is one attempt; the caller retries with `base.retry`, because it knows whether a call may be repeated.
Every failure between client and server is `Unreachable`, also a 200 answer that is not a JSON object, because the
result of the call is unknown. A cancellation is never turned into a failure.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.errors import ApiProblem, ConfigProblem, Unauthorized, Unreachable, problem_from_status
from phalanx.kube.config import Connection
from phalanx.kube.discovery import DiscoveryClient

_JSON = "application/json"
_MAX_LINE = 16 << 20  # bytes of one watch line; no object is larger
BUSY_ATTEMPTS = 10  # of a call that is answered 429 with Retry-After
LONGEST_BUSY = 60  # largest accepted Retry-After, in seconds
AFTER_RETRIES = 0.005  # seconds for which new calls wait while refused calls are sent again
WATCH_GRACE = 10.0  # seconds after a watch's own timeout, after which its connection counts as broken


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)
_WELL_FORMED = msgspec.json.Decoder(msgspec.Raw)  # looks at every byte, builds nothing


class _Answer(msgspec.Struct, gc=False):
    kind: str


class _ObjectAnswer(msgspec.Struct, gc=False):
    kind: str
    metadata: msgspec.Raw


class _ListAnswer(msgspec.Struct, gc=False):
    kind: str
    items: msgspec.Raw


_answer = msgspec.json.Decoder(_Answer).decode
_SHAPES: dict[str, Callable[[bytes], object]] = {
    "get": msgspec.json.Decoder(_ObjectAnswer).decode,
    "list": msgspec.json.Decoder(_ListAnswer).decode,
}
METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


def _require_api_answer(answer: bytes, shape: Callable[[bytes], object] = _answer) -> bytes:
    """Return the answer if it has the form of an API server's answer; else raise Unreachable.

    An API server answers with an object, a list or a Status. Any other answer comes from a proxy, so it is unknown
    whether a write was done.
    """
    try:
        shape(answer)
    except msgspec.DecodeError:
        raise Unreachable("the answer is not one of an API server; is something else on the way?") from None
    return answer


def _problem(code: int, body: bytes) -> ApiProblem:
    try:
        status = msgspec.json.decode(body)
    except msgspec.DecodeError:
        status = None
    if not isinstance(status, dict):
        status = {"message": body.decode(errors="replace").strip()[:500] or f"the server answered HTTP {code}"}
    return problem_from_status(status, code)


class HttpClient(Client):
    """Use as an async context manager; safe for any number of concurrent calls."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str = "phalanx",
        connections: int = 64,
        timeout: float = 30.0,
        connector: Callable[[], aiohttp.BaseConnector] | None = None,
    ) -> None:
        """connector: transport to use instead of TCP (a simulated network)."""
        self._connection = connection
        self._agent = user_agent
        self._limit = connections
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=10)
        self._session: aiohttp.ClientSession | None = None
        self._connector = connector or self._tcp
        self._discovery = DiscoveryClient(self.get_changed)
        self.on_answer: Callable[[str, int, float], None] | None = None  # method, status (0: no answer), seconds
        self._busy_until = float("-inf")  # loop time before which the server accepts no more calls

    def _tcp(self) -> aiohttp.BaseConnector:
        tls: ssl.SSLContext | bool = self._connection.ssl if self._connection.ssl is not None else True
        return aiohttp.TCPConnector(limit=0, limit_per_host=0, ssl=tls, keepalive_timeout=60, socket_factory=_socket)

    async def __aenter__(self) -> HttpClient:
        if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
            raise RuntimeError("an HttpClient under uvloop crashes when a server closes its connections")
        self._session = aiohttp.ClientSession(
            connector=self._connector(),
            headers={"User-Agent": self._agent, "Accept": _JSON},
            timeout=self._timeout,
            auto_decompress=True,
        )
        self._slots = asyncio.Semaphore(self._limit)
        return self

    @property
    def server(self) -> str:
        return self._connection.server

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _headers(self, extra: Mapping[str, str], *, renew: bool = False) -> dict[str, str]:
        try:
            token = await self._connection.bearer(renew=renew)
        except (ConfigProblem, OSError) as problem:
            # Not a wrong setting: `bearer` worked when the process started, so the source may come back.
            raise Unauthorized(f"no token for {self._connection.server}: {problem}") from problem
        headers = dict(extra)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = _JSON,
        plain: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Make one call on any path.

        Raises ApiProblem for every answer that is not 2xx, or not JSON unless `plain`.
        """
        if self._session is None:
            raise RuntimeError("HttpClient is used outside 'async with'")
        extra = {**(headers or {}), **({"Content-Type": content_type} if body is not None else {})}
        for attempt in range(BUSY_ATTEMPTS):
            await self._wait_while_busy(first=not attempt)
            code, answer, wait = await self._send(method, path, query, body, extra)
            if code != 429 or not wait or attempt == BUSY_ATTEMPTS - 1 or path.endswith("/eviction"):
                break  # 429 on an eviction means a disruption budget, not a busy server
            self._busy_until = max(self._busy_until, asyncio.get_running_loop().time() + min(wait, LONGEST_BUSY))
        if code >= 300:
            problem = _problem(code, answer)
            problem.retry_after = problem.retry_after or wait
            raise problem
        if plain:
            return answer
        try:
            _WELL_FORMED.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreachable(f"{method} {path}: the answer says {code} and is not JSON: {error}") from error
        if not answer.lstrip().startswith(b"{"):
            raise Unreachable(f"{method} {path}: the answer says {code} and is not a JSON object")
        return answer

    async def _wait_while_busy(self, *, first: bool) -> None:
        """Wait until the Retry-After of the last 429 answer has passed.

        Calls that were refused are sent before new calls, so that no call overtakes them.
        """
        loop = asyncio.get_running_loop()
        for _ in range(BUSY_ATTEMPTS):  # other calls may be refused while this one waits
            wait = self._busy_until + (AFTER_RETRIES if first else 0.0) - loop.time()
            if wait <= 0:
                return
            await asyncio.sleep(wait)

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: bytes | None, extra: Mapping[str, str]
    ) -> tuple[int, bytes, int]:
        """Return status code, body and seconds of Retry-After."""
        assert self._session is not None
        before, clock = _cancellations(), asyncio.get_running_loop().time
        async with self._slots:
            for renew in (False, True):
                sent = await self._headers(extra, renew=renew)
                since, code = clock(), 0
                try:
                    async with self._session.request(
                        method, self._connection.server + path, params=query or {}, data=body, headers=sent
                    ) as response:
                        answer = await response.read()
                        code, after = response.status, response.headers.get("Retry-After", "")
                except Exception as error:
                    raise _unreachable(f"{method} {path}", error, before) from error
                finally:
                    if self.on_answer is not None:
                        self.on_answer(method, code, clock() - since)
                if code == 401 and not renew and not self._connection.token:
                    continue  # the token may have been rotated: read it from its source again
                break
        return code, answer, int(after) if after.isdigit() else 0

    async def get_changed(self, path: str, accept: str, etag: str) -> tuple[bytes, str]:
        """GET a document unless it still has this ETag; return it and its ETag. Empty if it has not changed."""
        if self._session is None:
            raise RuntimeError("HttpClient is used outside 'async with'")
        sent = await self._headers({"Accept": accept, **({"If-None-Match": etag} if etag else {})})
        before = _cancellations()
        try:
            async with self._session.get(self._connection.server + path, headers=sent) as response:
                body = await response.read()
                code, now = response.status, response.headers.get("ETag", "")
        except Exception as error:
            raise _unreachable(f"GET {path}", error, before) from error
        if code == 304:
            return b"", etag
        if code >= 300:
            raise _problem(code, body)
        return body, now

    async def served(self, resource: Resource) -> bool:
        return await self._discovery.has(resource)

    async def response_headers(self, path: str) -> dict[str, str]:
        """GET a path and return the headers of the answer, names in lower case. Raises Unreachable."""
        if self._session is None:
            raise RuntimeError("HttpClient is used outside 'async with'")
        sent, before = await self._headers({}), _cancellations()
        try:
            async with self._session.get(self._connection.server + path, headers=sent) as response:
                return {name.lower(): value for name, value in response.headers.items()}
        except Exception as error:
            raise _unreachable(f"GET {path}", error, before) from error

    async def call(self, call: Call) -> bytes:
        answer = await self.request(
            METHODS[call.verb],
            call.resource.path(call.namespace, quote(call.name, safe=""), call.subresource),
            query=call.query,
            body=call.encoded() or None,
            content_type=call.content_type,
        )
        return _require_api_answer(answer, _SHAPES.get(call.verb, _answer))

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        if self._session is None:
            raise RuntimeError("HttpClient is used outside 'async with'")
        path = call.resource.path(call.namespace)
        end = float(call.query.get("timeoutSeconds") or 0)
        headers = await self._headers({})
        before = _cancellations()
        try:
            async with self._session.get(
                self._connection.server + path,
                params={"watch": "true", **call.query},
                headers=headers,
                # Long silence is normal on a watch; the read timeout finds half-open connections.
                timeout=aiohttp.ClientTimeout(total=end + WATCH_GRACE if end else None, sock_connect=10, sock_read=300),
            ) as response:
                if response.status >= 300:
                    raise _problem(response.status, await response.read())
                async for line in _lines(response.content):
                    event = _LINE.decode(line)
                    if event.type == "ERROR":
                        raise _problem(500, bytes(event.object))
                    yield WatchEvent(event.type, bytes(event.object))
        except ApiProblem:
            raise
        except Exception as error:
            raise _unreachable(f"watch {path}", error, before) from error


def _cancellations() -> int:
    """Return how often cancellation of the running task was requested."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _unreachable(what: str, error: Exception, before: int) -> BaseException:
    """Return the exception for a failed call: Unreachable, or CancelledError if the task was cancelled.

    A library may have replaced the CancelledError by another error.
    """
    if _cancellations() > before:
        return asyncio.CancelledError()
    return Unreachable(f"{what}: {str(error) or type(error).__name__}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Open a socket with keep-alive, so that a machine that disappears is noticed within half a minute."""
    family, kind, protocol = address[:3]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # macOS has them under other names, or not at all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split the chunked body at newlines; an object may be far larger than one read."""
    rest = b""
    async for chunk in stream.iter_any():
        if b"\n" not in chunk:
            rest += chunk
            if len(rest) > _MAX_LINE:
                raise Unreachable("a watch line is longer than 16 MiB")
            continue
        first, *others = chunk.split(b"\n")
        yield rest + first
        rest = others.pop()
        for line in others:
            yield line
    if rest.strip():
        yield rest
