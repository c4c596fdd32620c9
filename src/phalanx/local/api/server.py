"""The listening socket: TLS, connection limits and an orderly end. Composes nothing; `serve` does that."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from phalanx.base.errors import ConfigProblem
from phalanx.local.api.app import App
from phalanx.local.api.limits import BoundedProtocol, Limits


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises ConfigProblem that says what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as problem:
        raise ConfigProblem("--listen", f"cannot resolve {host!r}: {problem.strerror or problem}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as problem:
        sock.close()
        if problem.errno == errno.EADDRINUSE:
            why = f"{host}:{port} is in use: stop what listens there or choose another port"
        else:
            why = f"cannot listen on {host}:{port}: {problem.strerror or problem}"
        raise ConfigProblem("--listen", why) from None
    return sock


def connections(
    app: Any, limits: Limits, state: ServerState, loop: asyncio.AbstractEventLoop
) -> Callable[[], BoundedProtocol]:
    """Return the factory of the HTTP protocol for each new connection of one server."""
    protocol: type[BoundedProtocol] = type("Protocol", (BoundedProtocol,), {"limits": limits, "idle": {}})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.idle_seconds),
    )
    config.load()
    return lambda: protocol(config=config, server_state=state, app_state={}, _loop=loop)


class Server:
    """Serves one App on one socket."""

    def __init__(self, app: App, sock: socket.socket, tls: ssl.SSLContext | None, limits: Limits | None = None) -> None:
        self._app, self._sock, self._tls = app, sock, tls
        self._limits = limits or Limits()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        host, port = sock.getsockname()[:2]
        self.host: str = host
        self.port: int = port

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            connections(self._app, self._limits, self._state, loop),
            sock=self._sock,
            ssl=self._tls,
            backlog=1024,
            ssl_handshake_timeout=self._limits.header_seconds if self._tls else None,
        )

    async def stop(self, grace: float = 5.0) -> None:
        """Answer what is being asked, end the watches, close."""
        self._app.ready = False
        if self._server is None:
            self._sock.close()
            return
        self._server.close()
        self._app.close_streams()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        tasks = tuple(self._state.tasks)
        if tasks:
            with contextlib.suppress(asyncio.CancelledError):
                _, late = await asyncio.wait(tasks, timeout=grace)
                for task in late:
                    task.cancel()
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        self._server = None
