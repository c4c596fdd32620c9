"""What one client may use: sizes, times and connections, and the HTTP protocol class that enforces the last two."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from phalanx.base.errors import ApiProblem, BadRequest, RequestEntityTooLarge, ServiceUnavailable, Timeout
from phalanx.local.api.fairness import Shares
from phalanx.local.api.view import encode


class Limits(msgspec.Struct, frozen=True):
    body_bytes: int = 3 << 20  # as kube-apiserver
    header_bytes: int = 64 << 10
    header_seconds: float = 10.0  # from the first byte of a request (or the connection) to its last header
    body_seconds: float = 60.0
    idle_seconds: float = 120.0  # between requests
    write_seconds: float = 30.0  # a client that reads nothing for this time is disconnected
    connections: int = 4096  # when all are in use, the connection that was idle longest is closed
    shares: Shares = msgspec.field(default_factory=Shares)


class _HeadersTooLarge(ApiProblem):
    reason, code = "RequestHeaderFieldsTooLarge", 431


class JoinedTransport:
    """Sends the head of an answer together with the first piece of its body: one TLS record instead of two."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
            return
        if data:
            self._transport.write(data)

    def flush(self) -> None:
        """Send the head of an answer that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with deadlines for clients that send or read too slowly, and bounded headers."""

    limits = Limits()
    idle: ClassVar[dict[BoundedProtocol, None]] = {}  # waiting for their next request, longest first; one per server

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._reading_headers = True
        self._header_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.connections and not self._make_room():
            self.transport = transport
            self._refuse(ServiceUnavailable("too many connections: close some and try again", retry_after=1))
            return
        super().connection_made(JoinedTransport(transport))  # type: ignore[arg-type]
        if certificate := transport.get_extra_info("peercert"):
            self.app_state["certificate"] = certificate.get("serialNumber", "")  # in the scope of every request
        self._arm_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._cancel_header_timer()
        self._cancel_body_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def _make_room(self) -> bool:
        """Close the connection that was idle longest; return False if none is idle.

        Idle connections never keep others out: their clients open another one when they need it.
        """
        for connection in self.idle:
            del self.idle[connection]
            self.connections.discard(connection)
            connection.transport.close()
            return True
        return False

    def data_received(self, data: bytes) -> None:
        if self.flow is None or self.transport.is_closing():  # refused
            return
        if self._reading_headers:
            if self._header_bytes > self.limits.header_bytes:
                self._refuse(_HeadersTooLarge("the request's headers are too large"))
                return
            self._header_bytes += len(data)
        super().data_received(data)
        if not self._reading_headers and self._body_timer is None and self.cycle is not None and self.cycle.more_body:
            self._body_timer = self.loop.call_later(self.limits.body_seconds, self._body_too_slow)

    def on_message_begin(self) -> None:
        self.idle.pop(self, None)
        self._header_bytes = 0
        self._reading_headers = True
        if self._header_timer is None:
            self._arm_header_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reading_headers = False
        self._cancel_header_timer()
        total = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if total > self.limits.header_bytes:
            self._refuse(_HeadersTooLarge("the request's headers are too large"))
            raise httptools.HttpParserError("headers too large")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._cancel_body_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if isinstance(self.transport, JoinedTransport):
            self.transport.flush()
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self.idle[self] = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_seconds, self._abort_slow_client)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def _abort_slow_client(self) -> None:
        self._write_timer = None
        self.transport.abort()

    def _refuse(self, problem: ApiProblem) -> None:
        if self.transport.is_closing():
            return
        body = encode(problem.status())
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (problem.http_code, problem.reason.encode(), len(body), body)
        )
        self.transport.close()

    def _arm_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._header_timer = None
        self.transport.abort()

    def _body_too_slow(self) -> None:
        self._body_timer = None
        self._refuse(Timeout("the request's body did not arrive in time"))

    def _cancel_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def too_large(limit: int) -> RequestEntityTooLarge:
    return RequestEntityTooLarge(f"Request entity too large: limit is {limit}")
