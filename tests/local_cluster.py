"""A real local cluster on a free port, in a thread of the test process, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvloop

from phalanx.local.api.limits import Limits
from phalanx.model.gates import Gates
from phalanx.serve.cluster import Cluster, ClusterSettings
from phalanx.serve.parts import parts_of
from phalanx.serve.settings import Listen, ServerSettings

Json = dict[str, Any]


@dataclass
class Reply:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LocalCluster:
    def __init__(self, cluster: Cluster, kubeconfig: Path) -> None:
        self.cluster = cluster
        self.kubeconfig = kubeconfig
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.call(self.cluster.start())
        self.url = self.cluster.server.url
        self.token = self.cluster.server.token
        self._tls = ssl.create_default_context(cadata=(self.cluster.server.ca or b"").decode())

    def stop(self) -> None:
        self.call(self.cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def call(self, coroutine: Any, timeout: float = 60) -> Any:
        """Run something in the cluster's own loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def connect(self, timeout: float = 20) -> http.client.HTTPSConnection:
        where = urlsplit(self.url)
        return http.client.HTTPSConnection(where.hostname, where.port, context=self._tls, timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Reply:
        connection = self.connect()
        try:
            send = {"Authorization": f"Bearer {self.token if token is None else token}", "Accept": accept}
            if body is not None:
                send["Content-Type"] = content_type
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, _with(path, query), data, send | (headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Any:
        reply = self.ask("GET", path, **options)
        assert reply.code == 200, reply.body
        return reply.json

    def create(self, path: str, body: Json, **options: Any) -> Any:
        reply = self.ask("POST", path, body, **options)
        assert reply.code in (200, 201), reply.body
        return reply.json

    def patch(self, path: str, body: Any, kind: str = "merge-patch+json", **options: Any) -> Any:
        reply = self.ask("PATCH", path, body, content_type=f"application/{kind}", **options)
        assert reply.code in (200, 201), reply.body
        return reply.json

    def delete(self, path: str, **options: Any) -> Any:
        reply = self.ask("DELETE", path, **options)
        assert reply.code in (200, 202), reply.body
        return reply.json

    @contextmanager
    def watch(self, path: str, accept: str = "application/json", timeout: float = 20, **query: Any) -> Iterator[Watch]:
        connection = self.connect(timeout)
        try:
            send = {"Authorization": f"Bearer {self.token}", "Accept": accept}
            connection.request("GET", _with(path, {"watch": "true"} | query), headers=send)
            yield Watch(connection.getresponse())
        finally:
            connection.close()


class Watch:
    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self.code = reply.status
        self._reply = reply

    def next(self) -> tuple[str, Any] | None:
        """The next event; None at the end of the stream."""
        line = self._reply.readline()
        if not line:
            return None
        event = json.loads(line)
        return event["type"], event["object"]

    def take(self, count: int) -> list[tuple[str, Any]]:
        events = [self.next() for _ in range(count)]
        assert None not in events, events
        return events  # type: ignore[return-value]

    def rest(self) -> list[tuple[str, Any]]:
        return list(iter(self.next, None))  # type: ignore[arg-type]


def _with(path: str, query: Json) -> str:
    if not query:
        return path
    return f"{path}?{urlencode({name.rstrip('_'): value for name, value in query.items()})}"


def local_cluster(
    directory: Path,
    *,
    data: Path | None = None,
    limits: Limits | None = None,
    gates: str = "",
    **settings: Any,
) -> LocalCluster:
    """Not started yet."""
    kubeconfig = directory / "kubeconfig"
    server = ServerSettings(data, Listen("127.0.0.1", 0), kubeconfig, gates=Gates.parse(gates))
    chosen = ClusterSettings(server, **settings)
    return LocalCluster(Cluster(chosen, parts_of(chosen), limits=limits), kubeconfig)
