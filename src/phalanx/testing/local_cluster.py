"""Run a real local cluster on a free port, in a thread of the test process, with a plain HTTP client for it.

For users who test their own programs against a cluster: see `phalanx.testing.pytest` and docs/plugins.md.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from phalanx.base.clock import SystemClock
from phalanx.local.api.limits import Limits
from phalanx.model.gates import Gates
from phalanx.model.kinds import Json
from phalanx.serve.cluster import ClusterSettings, ServedCluster
from phalanx.serve.parts import parts_of
from phalanx.serve.settings import ALWAYS_ALLOW, Listen, ServerSettings


class MovableLoop(asyncio.SelectorEventLoop):
    """`advance` from its own thread: all timers that are due by then fire, in order."""

    def __init__(self) -> None:
        self._ahead = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class MovableClock:
    """`phalanx.base.clock.Clock` of a movable loop."""

    def __init__(self, loop: MovableLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return time.time() + self._loop._ahead

    def monotonic(self) -> float:
        return self._loop.time()


STEP = 5.0  # seconds: less than the heartbeats of nodes may be late


@dataclass
class Reply:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LocalCluster:
    """`kubeconfig` is for clients and kubectl, `url` and `token` for everything else."""

    def __init__(self, cluster: ServedCluster, kubeconfig: Path, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.cluster = cluster
        self.kubeconfig = kubeconfig
        self._loop = loop or usual_loop()
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

    def advance(self, seconds: float) -> None:
        """Advance time for the whole cluster in small steps: deadlines, backoffs, run times and heartbeats come due."""
        left = seconds
        while left > 0:
            step = min(left, STEP)
            left -= step
            self.call(self._pass(step))

    async def _pass(self, seconds: float) -> None:
        assert isinstance(self._loop, MovableLoop), "this cluster was started with movable=False"
        self._loop.advance(seconds)
        await asyncio.sleep(0.002)  # what came due happens, and what follows from it

    def call(self, coroutine: Any, timeout: float = 60) -> Any:
        """Run a coroutine in the cluster's own loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def connect(self, timeout: float = 20) -> http.client.HTTPSConnection:
        where = urlsplit(self.url)
        return http.client.HTTPSConnection(where.hostname or "", where.port, context=self._tls, timeout=timeout)

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
        """Send one request to the API server."""
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

    # -- objects, for tests that do not want to bring a client library

    def apply(self, *documents: str | Json, namespace: str = "default") -> list[Any]:
        """Create or update (server-side apply) every object of YAML texts or dicts; return the server's answers."""
        return [
            self.patch(
                f"{self._path(body, namespace)}/{body['metadata']['name']}",
                body,
                "apply-patch+yaml",
                fieldManager="phalanx-testing",
                force="true",
            )
            for document in documents
            for body in _bodies(document)
        ]

    def list(self, path: str, **options: Any) -> list[Any]:
        """Return the items below a path such as /api/v1/namespaces/default/pods."""
        items: list[Any] = self.get(path, **options)["items"]
        return items

    def wait(self, path: str, until: Callable[[Any], bool], timeout: float = 20.0) -> Any:
        """Return the object or list at `path` once `until` holds for it; raises TimeoutError with its last state."""
        end = time.monotonic() + timeout
        while True:
            found = self.get(path)
            if until(found):
                return found
            if time.monotonic() > end:
                raise TimeoutError(f"{path} after {timeout:.0f} s: {json.dumps(found)[:2000]}")
            time.sleep(0.02)

    def _path(self, body: Json, namespace: str) -> str:
        group, _, version = body["apiVersion"].rpartition("/")
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        kinds = {resource["kind"]: resource for resource in self.get(base)["resources"] if "/" not in resource["name"]}
        if body["kind"] not in kinds:
            raise LookupError(f"{body['apiVersion']} {body['kind']} is not served; kinds there: {', '.join(kinds)}")
        found = kinds[body["kind"]]
        where = f"/namespaces/{body['metadata'].get('namespace') or namespace}" if found["namespaced"] else ""
        return f"{base}{where}/{found['name']}"


def _bodies(document: str | Json) -> Iterator[Json]:
    if isinstance(document, str):
        yield from (body for body in yaml.safe_load_all(document) if body)
    else:
        yield document


class Watch:
    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self.code = reply.status
        self._reply = reply

    def next(self) -> tuple[str, Any] | None:
        """Return the next event; None at the end of the stream."""
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
        return list(iter(self.next, None))


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
    movable: bool = True,
    authorization: str = ALWAYS_ALLOW,
    audit_log: Path | None = None,
    **settings: Any,
) -> LocalCluster:
    """Create a cluster without starting it. movable: its time can be advanced (`advance`), on asyncio's own loop."""
    kubeconfig = directory / "kubeconfig"
    server = ServerSettings(
        data,
        Listen("127.0.0.1", 0),
        kubeconfig,
        gates=Gates.parse(gates),
        authorization=authorization,
        audit_log=audit_log,
    )
    chosen = ClusterSettings(server=server, **settings)
    loop = MovableLoop() if movable else usual_loop()
    clock = MovableClock(loop) if isinstance(loop, MovableLoop) else SystemClock()
    return LocalCluster(ServedCluster(chosen, parts_of(chosen), clock=clock, limits=limits), kubeconfig, loop)


def usual_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that `phalanx up` uses."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
