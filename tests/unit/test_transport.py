"""What lies between us and the server fails in many ways; each is `Unreachable`, and nothing gets lost in it."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import ssl
from collections import Counter
from typing import Any

import pytest

from phalanx.base import informer as informer_module
from phalanx.base.errors import Unauthorized, Unreachable
from phalanx.base.informer import Informer, ObjectChange
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection, ExecPlugin
from phalanx.local.api.tls import load_identity
from support.answering import against, answering, http
from support.http_client import CONFIG_MAPS, PODS
from support.waiting import eventually_async


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage\r\n\r\n",
        http(b"<html>a proxy's page</html>"),
        http(b'{"items": ['),
        http(b"[]"),
        http(b'"text"'),
        http(b"\xff\xfe"),
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"half":',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
def test_an_unreadable_answer_is_unreachable(said: bytes) -> None:
    async def ask(client: HttpClient) -> None:
        with pytest.raises(Unreachable):
            await client.list(PODS)

    against(lambda _: said, ask, timeout=2)


@pytest.mark.parametrize(
    "raised", [RuntimeError("File descriptor 12 is used by transport"), ssl.SSLError("eof"), OSError]
)
def test_whatever_the_library_raises_is_unreachable(raised: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(client: HttpClient) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise raised

        monkeypatch.setattr(client._transport, "_open", broken)
        with pytest.raises(Unreachable):
            await client.list(PODS)
        with pytest.raises(Unreachable):
            async for _ in client.watch(PODS):
                pass

    against(lambda _: b"", ask)


def test_a_cancellation_that_a_library_turns_into_something_else_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(client: HttpClient) -> None:
        async def deaf(*_: Any, **__: Any) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise TimeoutError from None

        monkeypatch.setattr(client._transport, "_open", deaf)
        task = asyncio.create_task(client.list(PODS))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):  # not Unreachable: the caller that set the limit learns that it passed
            async with asyncio.timeout(0.01):
                await client.list(PODS)

    against(lambda _: b"", ask)


def test_a_token_that_cannot_be_had_later_is_unauthorized_and_not_the_end(tmp_path: Any) -> None:
    async def main() -> None:
        for connection in (
            Connection("http://127.0.0.1:9", None, token_file=str(tmp_path / "gone")),
            Connection("http://127.0.0.1:9", None, exec_plugin=ExecPlugin("/bin/false")),
        ):
            async with HttpClient(connection) as client:
                with pytest.raises(Unauthorized, match="no token"):
                    await client.list(PODS)
                with pytest.raises(Unauthorized, match="no token"):
                    async for _ in client.watch(PODS):
                        pass

    asyncio.run(main())


def test_a_client_under_uvloop_is_refused() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="uvloop"):
            await HttpClient(Connection("http://127.0.0.1:9", None)).__aenter__()

    uvloop.run(main())


def test_forty_callers_outlive_a_tls_port_that_flaps_and_hear_every_cancellation() -> None:
    identity = load_identity(None, ("127.0.0.1",), datetime.datetime.now(datetime.UTC))
    rng, counts = random.Random(7), Counter[str]()

    async def main() -> None:
        async with answering(lambda _: http(b"{}"), identity.context()) as behind:
            flapping = asyncio.create_task(flap(behind))
            trust = ssl.create_default_context(cadata=identity.ca.decode())
            port = await asyncio.wait_for(ports.get(), 10)
            async with HttpClient(Connection(f"https://127.0.0.1:{port}", trust), timeout=5) as client:
                callers = [asyncio.create_task(call(client)) for _ in range(40)]
                while counts["asked to end"] < 200 or counts["answered"] < 40 or counts["unreachable"] < 200:
                    await asyncio.sleep(0.001)
                    for number in rng.sample(range(40), 2):
                        counts["asked to end"] += 1
                        callers[number].cancel()
                        ended, _ = await asyncio.wait((callers[number],), timeout=10)
                        assert ended and callers[number].cancelled(), "a cancellation was swallowed"
                        callers[number] = asyncio.create_task(call(client))
                for caller in callers:
                    caller.cancel()
                await asyncio.wait(callers, timeout=10)
                assert all(caller.cancelled() for caller in callers)
            flapping.cancel()

    async def call(client: HttpClient) -> None:
        while True:
            try:
                await client.request("GET", "/x")
                counts["answered"] += 1
            except Unreachable:
                counts["unreachable"] += 1

    ports: asyncio.Queue[int] = asyncio.Queue()

    async def more(what: str) -> None:
        enough = counts[what] + rng.randrange(1, 20)
        while counts[what] < enough:
            await asyncio.sleep(0.001)

    async def flap(behind: int) -> None:
        """A door before the server that opens and slams."""
        port = 0
        inside: set[asyncio.StreamWriter] = set()
        while True:

            async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", behind)
                    inside.update((writer, other_writer))
                    await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))
                except (OSError, asyncio.CancelledError):
                    pass

            door = await asyncio.start_server(carry, "127.0.0.1", port, reuse_address=True)
            port = door.sockets[0].getsockname()[1]
            ports.put_nowait(port)
            await more("answered")
            door.close()
            for writer in inside:
                writer.transport.abort()
            inside.clear()
            await more("unreachable")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    asyncio.run(main())


# -- informers ---------------------------------------------------------------------------------------------------


def listed(*names: str, revision: str = "5") -> bytes:
    items = [{"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"}} for name in names]
    return http(
        json.dumps({"kind": "ConfigMapList", "metadata": {"resourceVersion": revision}, "items": items}).encode()
    )


def streamed(*events: bytes) -> bytes:
    lines = b"".join(event + b"\n" for event in events)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(lines), lines)


# What an API server without WatchList says.
REFUSED = http(b'{"kind": "Status", "code": 422, "reason": "Invalid"}', "422 Unprocessable Entity")


def event(type_: str, name: str, revision: int) -> bytes:
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(revision)}
    return json.dumps({"type": type_, "object": {"metadata": meta}}).encode()


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(
    "stray",
    [
        http(b"404 page not found\n", "404 Not Found"),
        http(b"{}"),
        http(b'{"metadata": {}, "items": []}'),
        http(b'{"kind": "Status", "status": "Success"}'),
        http(b'{"kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": [{}]}'),
        http(b'{"kind": "ConfigMapList", "metadata": {"resourceVersion": "9"}, "items": 3}'),
        http(b"not json"),
        http(b"{}", "500 Internal Server Error"),
    ],
)
def test_an_answer_that_came_astray_neither_ends_an_informer_nor_empties_it(
    stray: bytes, optional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer_module, "delay", lambda *_: 0.001)
    seen: list[str] = []
    asked = Counter[str]()

    def answer(line: str) -> bytes:
        if "sendInitialEvents" in line:
            return REFUSED
        kind = "watch" if "watch=true" in line else "list"
        asked[kind] += 1
        if kind == "watch":
            return http(b'{"kind": "Status", "code": 410, "reason": "Expired"}', "410 Gone")
        return stray if asked["list"] in (2, 3) else listed("a", "b")

    def take(change: ObjectChange[Any]) -> None:
        seen.append(("+" if change.object is not None else "-") + change.name)

    async def follow(client: HttpClient) -> None:
        informer = Informer(client, CONFIG_MAPS, dict[str, Any], take, optional=optional)
        task = asyncio.create_task(informer.run())
        await eventually_async(lambda: asked["list"] > 5 or task.done(), "more lists")
        assert not task.done(), task.exception()
        task.cancel()

    against(answer, follow)
    assert seen == ["+a", "+b"]


def test_a_resource_that_stays_away_is_believed_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "delay", lambda *_: 0.001)
    seen: list[str] = []
    lists = 0

    def answer(line: str) -> bytes:
        nonlocal lists
        if "sendInitialEvents" in line:
            return REFUSED
        if "watch=true" in line:
            return http(b'{"kind": "Status", "code": 410, "reason": "Expired"}', "410 Gone")
        lists += 1
        return listed("a") if lists == 1 else http(b"404 page not found\n", "404 Not Found")

    async def follow(client: HttpClient) -> None:
        sink = lambda change: seen.append(change.name if change.object is not None else f"-{change.name}")  # noqa: E731
        task = asyncio.create_task(Informer(client, CONFIG_MAPS, dict[str, Any], sink, optional=True).run())
        await eventually_async(lambda: "-a" in seen, "the end of a")
        task.cancel()

    against(answer, follow)
    assert seen == ["a", "-a"] and lists == 4


@pytest.mark.parametrize(
    "garbled",
    [
        b'{"type": "ADDED", "obj',
        b"[1]",
        b'{"type":"ADDED","object":{}}',
        b'{"type":"X","object":{"metadata":{"name":"x"}}}',
        b"\x00\xff",
    ],
)
def test_a_garbled_event_is_asked_for_again_and_nothing_is_missed(
    garbled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer_module, "delay", lambda *_: 0.001)
    monkeypatch.setattr(informer_module, "FIRST_DELAY", 0.001)
    seen: list[str] = []
    watches: list[str] = []

    def answer(line: str) -> bytes:
        if "sendInitialEvents" in line:
            return REFUSED
        if "watch=true" not in line:
            return listed("a", revision="6" if watches else "5")
        watches.append(line.partition("resourceVersion=")[2].partition("&")[0].partition(" ")[0])
        if len(watches) < 3:
            return streamed(event("ADDED", "b", 6), garbled, event("ADDED", "wrong", 7))
        return streamed(event("ADDED", "c", 7))

    async def follow(client: HttpClient) -> None:
        task = asyncio.create_task(
            Informer(client, CONFIG_MAPS, dict[str, Any], lambda change: seen.append(change.name)).run()
        )
        await eventually_async(lambda: "c" in seen or task.done(), "the event after the garbled one")
        assert not task.done(), task.exception()
        task.cancel()

    against(answer, follow)
    assert seen[:3] == ["a", "b", "c"]
    assert watches[:3] == ["5", "6", "6"]


def test_an_empty_object_is_no_answer_to_a_write() -> None:
    """A proxy that says `{}` has not bound a pod: whether it was done is not known, which is not the same as done."""
    pod = {"metadata": {"name": "a"}}

    async def writes(client: HttpClient) -> None:
        for write in (
            client.create(PODS, pod, "default", name="a", subresource="binding"),
            client.update(PODS, "a", pod, "default"),
            client.patch(PODS, "a", pod, "default"),
            client.delete(PODS, "a", "default"),
        ):
            with pytest.raises(Unreachable):
                await write

    against(lambda _: http(b"{}"), writes)


@pytest.mark.parametrize("stray", [b"{}", b'{"kind": "Status", "status": "Success"}', b'{"items": []}'])
def test_what_a_proxy_says_is_no_answer_to_a_read(stray: bytes) -> None:
    """Simulation, seed 920006: `phalanx nodes` asked which nodes there are, was answered `{}` and ended."""

    async def reads(client: HttpClient) -> None:
        for read in (client.get(PODS, "a", "default"), client.list(PODS, "default")):
            with pytest.raises(Unreachable, match="is something else on the way"):
                await read

    against(lambda _: http(stray), reads)
