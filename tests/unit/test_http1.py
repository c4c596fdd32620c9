"""HTTP/1.1 as the client speaks it: kept connections, answers in every form, time limits, and what is no answer."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from phalanx.base.errors import ConfigProblem, Unreachable
from phalanx.kube import http1
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.kube.http1 import HttpRequest, HttpTransport
from support.answering import against, http
from support.http_client import PODS
from support.waiting import eventually_async

HANG_UP = b"-"
SILENCE = b""


class Server:
    """Says what `answers` holds for each request, in this order; then b"ok"."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[int, bytes]] = []  # number of the connection, and what was sent
        self.ended: list[int] = []  # connections that the client ended
        self._connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                self.requests.append((number, head + await reader.readexactly(int(size or 0))))
                said = self.answers.pop(0) if self.answers else http(b"ok")
                if said == HANG_UP:
                    break
                writer.write(said.removesuffix(HANG_UP))
                await writer.drain()
                if said.endswith(HANG_UP):
                    break
        self.ended.append(number)
        writer.close()

    def run(self, test: Callable[[HttpTransport], Awaitable[None]], path: str = "") -> None:
        async def main() -> None:
            server = await asyncio.start_server(self.talk, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            transport = HttpTransport(f"http://127.0.0.1:{port}{path}", None, "test")
            async with asyncio.timeout(20):
                await test(transport)
            transport.close()
            server.close()
            await asyncio.sleep(0)

        asyncio.run(main())

    @property
    def connections(self) -> list[int]:
        return [number for number, _ in self.requests]


async def ask(transport: HttpTransport, method: str = "GET", path: str = "/x", body: bytes | None = None) -> bytes:
    return (await transport.exchange(HttpRequest(method, path, {}, {}, body), 5)).body


def connections_of_two_requests(said: bytes) -> list[int]:
    """Return the number of the connection on which each of two requests went. The first is answered like this."""
    server = Server(said)

    async def test(transport: HttpTransport) -> None:
        assert await ask(transport) == b"ok"
        assert await ask(transport) == b"ok"

    server.run(test)
    return server.connections


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


END = b"0\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        http(b"ok"),
        CHUNKED + chunks(b"o", b"k") + END,
        CHUNKED + chunks(b"ok") + b"0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"ok"),
        GZIP + chunks(gzip.compress(b"ok")) + END,
        GZIP + chunks(gzip.compress(b"o"), gzip.compress(b"k")) + END,
    ],
)
def test_answers_of_every_form_are_read_and_the_connection_is_kept(said: bytes) -> None:
    assert connections_of_two_requests(said) == [1, 1]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok" + HANG_UP,  # the end of the connection is the end of the answer
        http(b"ok") + http(b"more than was asked"),
    ],
)
def test_a_connection_that_ends_with_its_answer_is_not_used_again(said: bytes) -> None:
    assert connections_of_two_requests(said) == [1, 2]


@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + chunks(b"ok") + HANG_UP,
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok" + HANG_UP,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        GZIP + chunks(b"abcd") + END,
        GZIP + chunks(gzip.compress(b"ok")[:-3]) + END,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + HANG_UP,
    ],
)
def test_what_is_no_whole_answer_is_an_error_and_ends_the_connection(said: bytes) -> None:
    server = Server(said)

    async def test(transport: HttpTransport) -> None:
        with pytest.raises(ConnectionError):
            await ask(transport)
        assert await ask(transport) == b"ok"

    server.run(test)
    assert server.connections == [1, 2]


def test_a_kept_connection_that_the_server_closed_is_noticed() -> None:
    server = Server(http(b"ok") + HANG_UP)

    async def test(transport: HttpTransport) -> None:
        await ask(transport)
        await eventually_async(lambda: server.ended == [1], "the end of the connection")
        await asyncio.sleep(0.05)
        assert await ask(transport, "POST", body=b"{}") == b"ok"

    server.run(test)
    assert server.connections == [1, 2]


def test_only_a_read_is_sent_again_after_a_kept_connection_was_lost() -> None:
    ok, part = http(b"ok"), b"HTTP/1.1 200 OK\r\nConte" + HANG_UP
    server = Server(ok, HANG_UP, ok, HANG_UP, ok, HANG_UP, ok, part)

    async def test(transport: HttpTransport) -> None:
        await ask(transport)
        assert await ask(transport) == b"ok"  # sent twice
        for method in ("POST", "PATCH"):
            with pytest.raises(ConnectionError):
                await ask(transport, method, body=b"{}")
            await ask(transport)
        with pytest.raises(ConnectionError):
            await ask(transport, "POST", body=b"{}")

    server.run(test)
    methods = [sent.split()[0] for _, sent in server.requests]
    assert methods == [b"GET", b"GET", b"GET", b"POST", b"GET", b"PATCH", b"GET", b"POST"]


def test_a_read_whose_answer_began_is_not_sent_again() -> None:
    server = Server(http(b"ok"), b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\no" + HANG_UP)

    async def test(transport: HttpTransport) -> None:
        await ask(transport)
        with pytest.raises(ConnectionError):
            await ask(transport)

    server.run(test)
    assert len(server.requests) == 2


@pytest.mark.parametrize("said", [SILENCE, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"])
def test_a_time_limit_and_a_cancellation_end_the_connection(said: bytes) -> None:
    server = Server(said, said)

    async def test(transport: HttpTransport) -> None:
        with pytest.raises(TimeoutError):
            await transport.exchange(HttpRequest("GET", "/x", {}, {}), 0.05)
        call = asyncio.create_task(ask(transport))
        await eventually_async(lambda: len(server.requests) == 2, "the second request")
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await ask(transport) == b"ok"
        await eventually_async(lambda: server.ended[:2] == [1, 2], "the end of both")

    server.run(test)
    assert server.connections == [1, 2, 3]


def test_what_a_server_says_unasked_is_no_answer() -> None:
    server = Server(http(b"ok"))

    async def test(transport: HttpTransport) -> None:
        await ask(transport)
        (kept,) = transport._idle
        kept.data_received(http(b"forged"))
        assert await ask(transport) == b"ok"

    server.run(test)
    assert server.connections == [1, 2]


def test_connections_that_were_idle_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()

    async def test(transport: HttpTransport) -> None:
        await asyncio.gather(*(ask(transport) for _ in range(3)))
        assert len(transport._idle) == 3
        monkeypatch.setattr(http1, "IDLE_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        await ask(transport)
        assert len(transport._idle) == 1
        await eventually_async(lambda: sorted(server.ended) == [1, 2, 3], "their end")

    server.run(test)
    assert server.connections[-1] == 4


def test_requests_are_written_as_the_server_reads_them() -> None:
    server = Server()

    async def test(transport: HttpTransport) -> None:
        query = {"labelSelector": "a=b,c in (d)", "x": "ü&"}
        await transport.exchange(HttpRequest("POST", "/a?b=c", query, {"Accept": "x/y"}, b"body"), 5)
        await transport.exchange(HttpRequest("GET", "/a b/ü#c%2Fd", {}, {}), 5)
        with pytest.raises(ValueError, match="line break"):
            await transport.exchange(HttpRequest("GET", "/", {}, {"Authorization": "Bearer x\r\nEvil: y"}), 5)

    server.run(test, "/prefix/")
    first, second = (sent.partition(b"\r\n") for _, sent in server.requests)
    assert first[0] == b"POST /prefix/a?b=c&labelSelector=a%3Db%2Cc%20in%20%28d%29&x=%C3%BC%26 HTTP/1.1"
    assert first[2].startswith(b"Host: 127.0.0.1:") and b"\r\nAccept-Encoding: gzip\r\n" in first[2]
    assert first[2].endswith(b"\r\nAccept: x/y\r\nContent-Length: 4\r\n\r\nbody")
    assert second[0] == b"GET /prefix/a%20b/%C3%BC%23c%2Fd HTTP/1.1"


@pytest.mark.parametrize("server", ["127.0.0.1:6443", "ftp://x", "https://", "https://x:y", "https://[::1"])
def test_an_address_that_is_none_is_refused(server: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigProblem, match="is no address"):
            HttpTransport(server, None, "test")

    asyncio.run(main())


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_is_read_while_it_arrives() -> None:
    """A server packs each event of a watch by itself, if it does; it is not asked for it."""
    packed = gzip.compress(b"two\n")
    server = Server(GZIP + chunks(gzip.compress(b"one\n"), packed[:5], packed[5:]))

    async def test(transport: HttpTransport) -> None:
        async with transport.stream(HttpRequest("GET", "/x", {}, {}), silence=5, seconds=None) as (answer, read):
            assert answer.code == 200
            found = b""
            while not found.endswith(b"two\n"):
                found += await read()
            assert found == b"one\ntwo\n"
        assert b"Accept-Encoding" not in server.requests[0][1]
        await eventually_async(lambda: server.ended == [1], "the end of the connection")

    server.run(test)


def test_a_stream_ends_with_its_last_chunk_and_fails_with_its_connection() -> None:
    server = Server(CHUNKED + chunks(b"one") + END, CHUNKED + chunks(b"one") + HANG_UP)

    async def test(transport: HttpTransport) -> None:
        request = HttpRequest("GET", "/x", {}, {})
        async with transport.stream(request, silence=5, seconds=None) as (_, read):
            assert [await read(), await read()] == [b"one", b""]
        async with transport.stream(request, silence=5, seconds=None) as (_, read):
            assert await read() == b"one"
            with pytest.raises(ConnectionError):
                await read()

    server.run(test)


@pytest.mark.parametrize("limits", [(0.1, None), (5, 0.1)])
def test_a_stream_has_limits(limits: tuple[float, float | None]) -> None:
    server = Server(CHUNKED + chunks(b"one"))

    async def test(transport: HttpTransport) -> None:
        request = HttpRequest("GET", "/x", {}, {})
        async with transport.stream(request, silence=limits[0], seconds=limits[1]) as (_, read):
            assert await read() == b"one"
            with pytest.raises(TimeoutError, match="no byte for|no end after"):
                await read()

    server.run(test)


def test_a_slow_reader_of_a_stream_slows_down_the_server() -> None:
    size = 16 << 20
    server = Server(CHUNKED + chunks(b"x" * size) + END)

    async def test(transport: HttpTransport) -> None:
        async with transport.stream(HttpRequest("GET", "/x", {}, {}), silence=5, seconds=None) as (_, read):
            await asyncio.sleep(0.2)
            (connection,) = transport._busy
            assert connection._size < size // 4
            found = 0
            while piece := await read():
                found += len(piece)
            assert found == size

    server.run(test)


# -- the client on top of it -------------------------------------------------------------------------------------------


def test_a_redirect_is_not_followed() -> None:
    """The token must not go elsewhere, and an API server sends none."""
    said = b"HTTP/1.1 302 Found\r\nLocation: https://login.example/\r\nContent-Length: 0\r\n\r\n"

    async def test(client: HttpClient) -> None:
        with pytest.raises(Unreachable, match=r"leads to https://login\.example/; is that the API server"):
            await client.get(PODS, "a", "default")
        with pytest.raises(Unreachable, match="leads to"):
            async for _ in client.watch(PODS):
                pass

    against(lambda _: said, test)


def test_large_answers_are_read_whole() -> None:
    name = b"x" * (8 << 20)

    async def test(client: HttpClient) -> None:
        assert name in await client.get(PODS, "a", "default")

    against(lambda _: http(b'{"kind": "Pod", "metadata": {"name": "%b"}}' % name), test)


def test_a_closed_client_ends_its_calls() -> None:
    async def main() -> None:
        server = Server(http(b'{"kind": "Pod", "metadata": {}}'), SILENCE)
        listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
        connection = Connection(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", None)
        async with HttpClient(connection) as client:
            await client.get(PODS, "a", "default")
            assert client._transport is not None and not client._transport._idle[0]._chunks
            call = asyncio.create_task(client.get(PODS, "a", "default"))
            await eventually_async(lambda: len(server.requests) == 2, "the request")
        with pytest.raises(Unreachable, match="the client was closed"):
            await call
        with pytest.raises(RuntimeError, match="outside"):
            await client.get(PODS, "a", "default")
        listening.close()
        assert server.connections == [1, 1]

    asyncio.run(main())
