"""A local cluster with its dashboard, and a plain client of it: what a browser sends, without one."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from phalanx.serve.cluster import ClusterSettings, ServedCluster
from phalanx.serve.parts import parts_of
from phalanx.serve.settings import Listen, ServerSettings
from phalanx.testing.local_cluster import usual_loop
from phalanx.web.dashboard import Dashboard
from support.local_cluster import LocalCluster

RACK = "topology.phalanx.dev/rack"
GPU = "nvidia.com/gpu"


class Watched(LocalCluster):
    def __init__(
        self, directory: Path, *, data: Path | None = None, listen: str = "127.0.0.1:0", **settings: Any
    ) -> None:
        server = ServerSettings(data, Listen("127.0.0.1", 0), directory / "kubeconfig")
        chosen = ClusterSettings(server=server, **settings)
        self.dashboard = Dashboard(listen)
        parts = [*parts_of(chosen, self.dashboard.follow), self.dashboard.part]
        super().__init__(ServedCluster(chosen, parts), directory / "kubeconfig", usual_loop())

    def browser(self, *, login: bool = True) -> Browser:
        found = Browser(self.dashboard.url)
        if login:
            assert found.login(self.dashboard.link()) == 200
        return found


class Browser:
    """Keeps the cookie, sends Host and Origin as a browser does."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.cookie = ""
        self.set_cookie = ""

    def login(self, link: str) -> int:
        return self.ask("POST", "/api/session", {"once": link.partition("#login=")[2]})[0]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            send = {"Cookie": self.cookie} if self.cookie else {}
            if method != "GET":
                send["Origin"] = self.url
            send |= {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, json.dumps(body) if body is not None else None, send)
            reply = connection.getresponse()
            text = reply.read()
            self.headers = {name.lower(): value for name, value in reply.getheaders()}
            if "set-cookie" in self.headers:
                self.set_cookie = self.headers["set-cookie"]
                self.cookie = self.set_cookie.partition(";")[0]
            kind = self.headers.get("content-type", "")
            return reply.status, json.loads(text) if kind == "application/json" else text
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        code, found = self.ask("GET", path)
        assert code == 200, found
        return found

    def follow(self, after: str, path: str = "/api/feed") -> Stream:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        connection.request("GET", path, headers={"Cookie": self.cookie, "Last-Event-ID": after})
        return Stream(connection)


class Stream:
    """Server-sent events, one at a time."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._reply = connection.getresponse()
        self.code = self._reply.status
        self.last = ""

    def next(self) -> dict[str, Any]:
        """The next event; {"event": "reset"} when a new snapshot is due. Fails at the end of the stream."""
        event = "message"
        while True:
            read = self._reply.readline()
            assert read, "the stream ended"
            line = read.decode().rstrip("\n")
            if line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found if event == "message" else {"event": event}

    def until(self, wanted: Any) -> dict[str, Any]:
        while True:
            found = self.next()
            if wanted(found):
                return found

    def close(self) -> None:
        self._connection.close()


def create(cluster: LocalCluster, objects: list[Any]) -> None:
    """Create a gang whose pods have a secret in their environment."""
    for body in objects:
        if body["kind"] == "Pod":
            body["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2-in-the-environment"}]
    cluster.apply(*objects)
