"""A server that answers with given bytes, and an HttpClient on it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection

Answer = Callable[[str], Awaitable[bytes] | bytes]  # of the request line: everything that goes back


def http(body: bytes, code: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (code.encode(), len(body), body)


@asynccontextmanager
async def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that says exactly these bytes; b"" hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                said = answer(head.split(b"\r\n")[0].decode())
                said = said if isinstance(said, bytes) else await said
                if not said:
                    break
                writer.write(said)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def against(answer: Answer, test: Callable[[HttpClient], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with answering(answer) as port, HttpClient(Connection(f"http://127.0.0.1:{port}", None), **options) as c:
            async with asyncio.timeout(30):
                await test(c)

    asyncio.run(main())
