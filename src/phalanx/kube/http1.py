"""HTTP/1.1 to one server over kept connections: whole answers, and answers that are read while they arrive.

A general HTTP library costs three times as much process time per call. Redirects are answers like any other: an API
server sends none, and following them would send the token to another server.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

import httptools

from phalanx.base.errors import ConfigProblem

SERVER = "clusters[].cluster.server"
CLOSED = "the client was closed"
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0  # after which a connection is not used again
HIGH_WATER = 256 << 10  # bytes of a stream that wait for their reader before reading pauses
_HEAD_LIMIT = 256 << 10  # bytes of headers; more is no answer
PACKED = 47  # gzip or zlib
_UNSAFE = re.compile(r"[^!-~]|#")  # characters that no request target may contain
_BREAKS = re.compile(r"[\r\n\0]")

Connect = Callable[[asyncio.Protocol, str, int], Awaitable[None]]  # protocol, host, port


class HttpAnswer(NamedTuple):
    code: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Stream(NamedTuple):
    answer: HttpAnswer
    read: Callable[[], Awaitable[bytes]]


class HttpRequest(NamedTuple):
    method: str
    path: str  # after the server's address; may contain a query
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes | None = None


class HttpConnection(asyncio.Protocol):
    """One connection; at most one request is under way on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[HttpAnswer] | None = None  # while a request is under way
        self._streams = False  # the answer is read while it arrives
        self._more: asyncio.Future[None] | None = None  # a reader of the stream waits for it
        self._error: Exception | None = None
        self._reset()
        self.usable = True  # for another request
        self.heard = False  # the answer has begun
        self.last_heard = self._loop.time()
        self.since = 0.0  # loop time when it became idle

    def _reset(self) -> None:
        self._code = self._size = self._head_size = 0
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._unpack: zlib._Decompress | None = None
        self._complete = False

    # -- used by HttpTransport

    def send(self, request: bytes, *, streams: bool = False) -> asyncio.Future[HttpAnswer]:
        """Send a request; the result is its answer. With `streams`, that of a 2xx answer has no body yet."""
        assert self._transport is not None
        self._reset()
        self.heard, self._streams = False, streams
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    async def read(self) -> bytes:
        """Return what has arrived of a streamed answer; b"" at its end."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._complete:
                return b""
            self._more = self._loop.create_future()
            await self._more
        found = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        if self._size > HIGH_WATER and self._transport is not None:
            self._transport.resume_reading()
        self._size = 0
        return found

    def fail(self, error: Exception) -> None:
        """End the connection and the request that is under way on it."""
        self.usable = False
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._error)
        self._wake_reader()

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        unlimited = self._code and b"content-length" not in self._headers and b"transfer-encoding" not in self._headers
        if error is None and unlimited and not self._complete and self._error is None:
            self.on_message_complete()  # the end of the connection is the end of the answer
        self.fail(error or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nothing was asked
            self.fail(ConnectionResetError("the server spoke first"))
            return
        self.heard = True
        self.last_heard = self._loop.time()
        if not self._code:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
            if not self._code and self._head_size > _HEAD_LIMIT:
                raise ValueError("its headers do not end")
        except Exception as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self.fail(ConnectionError(f"the answer is no HTTP: {cause or error}"))

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        code = self._parser.get_status_code()
        if code < 200:  # the answer follows
            self._headers = {}
            return
        self._code = code
        if self._headers.get(b"content-encoding", b"identity") != b"identity":
            self._unpack = zlib.decompressobj(wbits=PACKED)
        if self._streams and code < 300:
            self._give_answer(b"")

    def on_body(self, data: bytes) -> None:
        if self._unpack is not None:
            data = self._unpacked(data)
        if not data:  # packed, and nothing of it can be read yet
            return
        self._chunks.append(data)
        if self._streams:
            self._size += len(data)
            if self._size > HIGH_WATER and self._transport is not None:
                self._transport.pause_reading()
            self._wake_reader()

    def _unpacked(self, data: bytes) -> bytes:
        assert self._unpack is not None
        found = b""
        while data:
            if self._unpack.eof:  # the body is several packed pieces
                self._unpack = zlib.decompressobj(wbits=PACKED)
            found += self._unpack.decompress(data)
            data = self._unpack.unused_data
        return found

    def on_message_complete(self) -> None:
        if not self._code:
            return
        if self._unpack is not None and not self._unpack.eof:
            raise ValueError("the compressed body ends early")
        self._complete = True
        if not self._parser.should_keep_alive():
            self.usable = False
        if not (self._streams and self._code < 300):
            self._give_answer(b"".join(self._chunks))
        self._wake_reader()

    def _give_answer(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers.items()}
            self._answer.set_result(HttpAnswer(self._code, headers, body))

    def _wake_reader(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def finished(self) -> bool:
        """Note that the caller has its answer; return True if the connection can be used again."""
        self._answer = None
        self._chunks = []  # may be large
        return self.usable and self._complete


class HttpTransport:
    """Requests to one server; safe for any number at the same time. Connections are opened as needed."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, agent: str, connect: Connect | None = None) -> None:
        """server: https://HOST[:PORT][/PATH]. connect: opens connections instead of TCP (a simulated network)."""
        try:
            found = urlsplit(server)
            port = found.port
        except ValueError as error:
            raise ConfigProblem(SERVER, f"{server!r} is no address: {error}") from error
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ConfigProblem(SERVER, f"{server!r} is no address: https://HOST:PORT is one")
        secure = found.scheme == "https"
        self._host, self._port = found.hostname, port or (443 if secure else 80)
        self._base = found.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._connect = connect or self._tcp
        name = found.netloc.rpartition("@")[2]
        self._start = f" HTTP/1.1\r\nHost: {name}\r\nUser-Agent: {agent}\r\n"
        self._idle: list[HttpConnection] = []  # the one that was used last is at the end
        self._busy: set[HttpConnection] = set()
        self._closed = False
        self._clock = asyncio.get_running_loop().time

    async def exchange(self, request: HttpRequest, seconds: float) -> HttpAnswer:
        """Send a request and return its whole answer. Raises OSError or TimeoutError.

        A GET that a kept connection lost before the answer began is sent once more: the server may have closed the
        connection just then. Other requests may have been performed.
        """
        content = self._encode(request, "Accept-Encoding: gzip\r\n")
        end = self._clock() + seconds
        connection, again = self._kept(), request.method == "GET"
        if connection is not None:
            try:
                return await self._exchange(connection, content, end)
            except ConnectionError:
                if not again or connection.heard:
                    raise
        return await self._exchange(await self._open(seconds), content, end)

    async def _exchange(self, connection: HttpConnection, content: bytes, end: float) -> HttpAnswer:
        timer = asyncio.get_running_loop().call_at(end, connection.fail, TimeoutError("no answer in time"))
        self._busy.add(connection)
        try:
            answer = await connection.send(content)
        finally:
            timer.cancel()
            self._release(connection)
        return answer

    @asynccontextmanager
    async def stream(self, request: HttpRequest, *, silence: float, seconds: float | None) -> AsyncIterator[Stream]:
        """Send a request; yield the head of its answer, and a function that reads the body until it returns b"".

        Compression is not asked for: kube-apiserver packs each event of a watch by itself, which costs 40 µs and more.
        silence: longest time without a byte. seconds: longest time in all. An answer that is not 2xx is whole.
        """
        connection = await self._open(CONNECT_SECONDS)
        loop = asyncio.get_running_loop()
        timers: dict[str, asyncio.TimerHandle] = {}

        def check_silence() -> None:
            end = connection.last_heard + silence
            if self._clock() >= end:
                connection.fail(TimeoutError(f"no byte for {silence:.0f} s"))
            else:
                timers["silence"] = loop.call_at(end, check_silence)

        self._busy.add(connection)
        if seconds is not None:
            timers["all"] = loop.call_later(seconds, connection.fail, TimeoutError(f"no end after {seconds:.0f} s"))
        check_silence()
        try:
            yield Stream(await connection.send(self._encode(request), streams=True), connection.read)
        finally:
            for timer in timers.values():
                timer.cancel()
            self._release(connection)

    def close(self) -> None:
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.fail(ConnectionAbortedError(CLOSED))
        self._idle.clear()

    def _encode(self, request: HttpRequest, accepted: str = "") -> bytes:
        method, path, query, headers, body = request
        target = self._base + path
        if query:
            target += ("&" if "?" in path else "?") + urlencode(query, quote_via=quote)
        if _UNSAFE.search(target):
            target = quote(target, safe="!$%&'()*+,/:;=?@[]~")
        lines = [method, " ", target, self._start, accepted]
        for name, value in headers.items():
            if _BREAKS.search(value):
                raise ValueError(f"header {name} contains a line break")
            lines += (name, ": ", value, "\r\n")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1") + (body or b"")

    def _kept(self) -> HttpConnection | None:
        oldest = self._clock() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.since >= oldest:
                return connection
            connection.close()
        return None

    async def _open(self, seconds: float) -> HttpConnection:
        if self._closed:
            raise ConnectionAbortedError(CLOSED)
        connection = HttpConnection()
        try:
            async with asyncio.timeout(min(seconds, CONNECT_SECONDS)):
                await self._connect(connection, self._host, self._port)
        except BaseException:
            connection.fail(ConnectionAbortedError("not connected"))
            raise
        return connection

    def _release(self, connection: HttpConnection) -> None:
        """Keep a connection whose answer is complete, else end it; end those that were idle for long."""
        self._busy.discard(connection)
        if not connection.finished():
            connection.fail(ConnectionAbortedError("the request was given up"))
            return
        connection.since = now = self._clock()
        self._idle.append(connection)
        if self._idle[0].since < now - IDLE_SECONDS:
            self._idle.pop(0).close()

    async def _tcp(self, protocol: asyncio.Protocol, host: str, port: int) -> None:
        """Connect with keep-alive, so that a machine that disappears is noticed within half a minute."""
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol, host, port, ssl=self._tls, happy_eyeballs_delay=0.25
        )
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):  # macOS has them under other names, or not at all
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
