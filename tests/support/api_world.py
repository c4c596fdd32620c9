"""A Writer over a real store and registry, spoken to in process: what the tests of this folder drive."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from phalanx.local.api.context import Context
from phalanx.local.api.index import index_of
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.route import parse, resolve
from phalanx.local.api.write import Writer
from phalanx.local.store.contract import Change
from phalanx.local.store.store import Store
from phalanx.model.builtin import registry
from phalanx.model.gates import Gates
from support.manifests import apps_set, template
from support.manual_clock import ManualClock

T = TypeVar("T")
Json = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class World:
    """One API server without HTTP. Every call runs to its end; failures are raised as ApiProblem."""

    def __init__(self, gates: dict[str, bool] | None = None, seed: int = 7, path: str = ":memory:") -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.store = Store.open(path, indexer=index_of)
        chosen = Gates(gates or {})
        self.ctx = Context(self.store, registry(chosen), chosen, self.clock, random.Random(seed))
        self.writer = Writer(self.ctx)
        if self.store.get(("namespaces", "", "default")) is None:
            for name in ("default", "kube-system", "ns"):
                self.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.store.close())
        self.loop.close()

    def request(
        self, verb: str, path: str, body: Any = b"", content: str = "application/json", **query: str
    ) -> Request:
        route = parse(path)
        assert route is not None, path
        kind, version = resolve(self.ctx.registry, route)
        agent = query.pop("agent", "tester/1.0")
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return Request(
            verb, kind, version, route.namespace, route.name, route.subresource, query, data, content, user_agent=agent
        )

    def ask(self, verb: str, path: str, body: Any = b"", content: str = "application/json", **query: str) -> Answer:
        return self.run(self.writer.handle(self.request(verb, path, body, content, **query)))

    def _object(self, *args: Any, **query: str) -> Any:
        answer = self.ask(*args, **query)
        return msgspec.json.decode(answer.body)

    def create(self, path: str, body: Any, **query: str) -> Any:
        return self._object("create", path, body, **query)

    def update(self, path: str, body: Any, **query: str) -> Any:
        return self._object("update", path, body, **query)

    def patch(self, path: str, body: Any, content: str = MERGE, **query: str) -> Any:
        return self._object("patch", path, body, content, **query)

    def apply(self, path: str, body: Any, manager: str = "me", **query: str) -> Any:
        return self._object("patch", path, body, APPLY, fieldManager=manager, **query)

    def delete(self, path: str, body: Any = b"", **query: str) -> Any:
        return self._object("delete", path, body, **query)

    def get(self, path: str) -> Any:
        """The stored object; None when there is none."""
        request = self.request("get", path)
        entry = self.store.get((request.kind.storage_key, request.namespace, request.name))
        return None if entry is None else msgspec.json.decode(entry.value)

    def changes(self, resource: str, since: int) -> list[Change]:
        """What a watch of a resource sees after a revision."""
        watcher = self.store.watch(resource, since=since)
        try:
            return list(self.run(anext(watcher)))
        finally:
            watcher.close()


PODS = "/api/v1/namespaces/ns/pods"
CONFIGS = "/api/v1/namespaces/ns/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/ns/deployments"


def config(name: str = "a", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(name: str = "web", replicas: int | None = 2, **spec: Any) -> Json:
    """With a container called web; replicas None: left to the server."""
    pods = template(app=name, containers=[{"name": "web", "image": "nginx"}])
    return apps_set("Deployment", name, pods, **({} if replicas is None else {"replicas": replicas}), **spec)
