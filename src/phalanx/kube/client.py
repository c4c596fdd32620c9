"""The Client over HTTP(S), for any kube-apiserver and for Phalanx's own server.

One call is one attempt; the caller retries with `base.retry`, because it knows whether a call may be repeated.
Every failure between client and server is `Unreachable`, also a 200 answer that is not a JSON object, because the
result of the call is unknown. A cancellation is never turned into a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import quote

import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.errors import ApiProblem, ConfigProblem, Unauthorized, Unreachable, problem_from_status
from phalanx.kube.config import Connection
from phalanx.kube.discovery import DiscoveryClient
from phalanx.kube.http1 import Connect, HttpAnswer, HttpRequest, HttpTransport

_JSON = "application/json"
_MAX_LINE = 16 << 20  # bytes of one watch line; no object is larger
BUSY_ATTEMPTS = 10  # of a call that is answered 429 with Retry-After
LONGEST_BUSY = 60  # largest accepted Retry-After, in seconds
AFTER_RETRIES = 0.005  # seconds for which new calls wait while refused calls are sent again
WATCH_SILENCE = 300.0  # seconds without a byte on a watch, after which its connection counts as broken
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
    except (msgspec.DecodeError, UnicodeDecodeError):
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
        connect: Connect | None = None,
    ) -> None:
        """connect: opens connections instead of TCP (a simulated network)."""
        self._connection = connection
        self._agent = user_agent
        self._limit = connections
        self._timeout = timeout
        self._transport: HttpTransport | None = None
        self._connect = connect
        self._discovery = DiscoveryClient(self.get_changed)
        self.on_answer: Callable[[str, int, float], None] | None = None  # method, status (0: no answer), seconds
        self._busy_until = float("-inf")  # loop time before which the server accepts no more calls

    async def __aenter__(self) -> HttpClient:
        if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
            raise RuntimeError("an HttpClient under uvloop crashes when a server closes its connections")
        server, tls = self._connection.server, self._connection.ssl
        self._transport = HttpTransport(server, tls, self._agent, self._connect)
        self._slots = asyncio.Semaphore(self._limit)
        return self

    @property
    def server(self) -> str:
        return self._connection.server

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            await asyncio.sleep(0)  # the event loop closes the sockets

    async def _headers(self, extra: Mapping[str, str], *, renew: bool = False) -> dict[str, str]:
        try:
            token = await self._connection.bearer(renew=renew)
        except (ConfigProblem, OSError) as problem:
            # Not a wrong setting: `bearer` worked when the process started, so the source may come back.
            raise Unauthorized(f"no token for {self._connection.server}: {problem}") from problem
        headers = {"Accept": _JSON, **extra}
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
        extra = {**(headers or {}), **({"Content-Type": content_type} if body is not None else {})}
        for attempt in range(BUSY_ATTEMPTS):
            await self._wait_while_busy(first=not attempt)
            code, found, answer = await self._send(method, path, query, body, extra)
            after = found.get("retry-after", "")
            wait = int(after) if after.isdigit() else 0
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
    ) -> HttpAnswer:
        clock = asyncio.get_running_loop().time
        async with self._slots:
            for renew in (False, True):
                headers = await self._headers(extra, renew=renew)
                since, code = clock(), 0
                try:
                    answer = await self._exchange(HttpRequest(method, path, query or {}, headers, body))
                    code = answer.code
                finally:
                    if self.on_answer is not None:
                        self.on_answer(method, code, clock() - since)
                if code == 401 and not renew and not self._connection.token:
                    continue  # the token may have been rotated: read it from its source again
                break
        return answer

    async def _exchange(self, request: HttpRequest) -> HttpAnswer:
        transport, before = self._http, _cancellations()
        try:
            return _not_elsewhere(await transport.exchange(request, self._timeout))
        except Exception as error:
            raise _unreachable(f"{request.method} {request.path}", error, before) from error

    @property
    def _http(self) -> HttpTransport:
        if self._transport is None:
            raise RuntimeError("HttpClient is used outside 'async with'")
        return self._transport

    async def get_changed(self, path: str, accept: str, etag: str) -> tuple[bytes, str]:
        """GET a document unless it still has this ETag; return it and its ETag. Empty if it has not changed."""
        headers = await self._headers({"Accept": accept, **({"If-None-Match": etag} if etag else {})})
        code, found, body = await self._exchange(HttpRequest("GET", path, {}, headers))
        if code == 304:
            return b"", etag
        if code >= 300:
            raise _problem(code, body)
        return body, found.get("etag", "")

    async def served(self, resource: Resource) -> bool:
        return await self._discovery.has(resource)

    async def response_headers(self, path: str) -> dict[str, str]:
        """GET a path and return the headers of the answer, names in lower case. Raises Unreachable."""
        headers = await self._headers({})
        return dict((await self._exchange(HttpRequest("GET", path, {}, headers))).headers)

    async def call(self, call: Call) -> bytes:
        answer = await self.request(
            METHODS[call.verb],
            call.resource.path(call.namespace, quote(call.name, safe=""), call.subresource),
            query=call.query,
            body=call.encoded() or None,
            content_type=call.content_type,
            plain=True,  # the next line looks at it
        )
        return _require_api_answer(answer, _SHAPES.get(call.verb, _answer))

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        transport, path = self._http, call.resource.path(call.namespace)
        seconds = float(call.query.get("timeoutSeconds") or 0)
        headers = await self._headers({})
        before = _cancellations()
        try:
            request = HttpRequest("GET", path, {"watch": "true", **call.query}, headers)
            # Long silence is normal on a watch; its limit finds half-open connections.
            limit = seconds + WATCH_GRACE if seconds else None
            async with transport.stream(request, silence=WATCH_SILENCE, seconds=limit) as (answer, read):
                if answer.code >= 300:
                    raise _problem(answer.code, _not_elsewhere(answer).body)
                async for line in _lines(read):
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


def _not_elsewhere(answer: HttpAnswer) -> HttpAnswer:
    """Raise Unreachable for a redirect: an API server sends none."""
    if answer.code in (301, 302, 303, 307, 308):
        raise Unreachable(f"the answer leads to {answer.headers.get('location', 'nowhere')}; is that the API server?")
    return answer


async def _lines(read: Callable[[], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    """Split the body at newlines; an object may be far larger than one read."""
    rest = b""
    while chunk := await read():
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
