"""A cluster with its own control plane, and Phalanx in cluster mode in it.

The API server, the workload controllers ("upstream") and the simulated nodes stand for the cluster. On an old one the
scheduling kinds are custom resources and pods lose the fields that link them. Every pod that upstream makes goes
through the real webhook over TLS first, as kube-apiserver would send it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.clock import SystemClock
from phalanx.engine.engine import Engine
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import LeaseSettings
from phalanx.local.api.context import Context
from phalanx.local.api.handler import Api
from phalanx.local.api.index import index_of
from phalanx.local.api.patch_json import json_patch
from phalanx.local.api.write import Writer
from phalanx.local.client import LocalClient
from phalanx.local.nodes import KubeletOptions
from phalanx.local.store import Store
from phalanx.model import builtin
from phalanx.model.crds import definitions
from phalanx.model.gates import KNOWN, Gates
from phalanx.serve.cluster_mode import ClusterMode, ClusterModeSettings
from phalanx.serve.controllers import ControllersService
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService
from phalanx.serve.scheduler_config import load_config
from phalanx.serve.settings import Listen
from support.in_process import TIMEOUT, Inside, unmarked
from support.manifests import job, jobset, part

Json = dict[str, Any]
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
OFF = Gates(dict.fromkeys(KNOWN, False))
GANG = {"scheduling.phalanx.dev/gang": "true"}


class Admitted(Client):
    """A client whose pods pass the webhook before they are created."""

    def __init__(self, client: Client, world: InCluster) -> None:
        self._client, self._world = client, world

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def call(self, call: Call) -> bytes:
        if call.verb == "create" and call.resource.plural == "pods" and not call.subresource and self._world.webhook_on:
            body = await self._world.admit(json.loads(call.encoded()), call.namespace)
            call = msgspec.structs.replace(call, body=body)
        return await self._client.call(unmarked(call))


def review(pod: Any, namespace: str = "default", **request: Any) -> Json:
    about = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": namespace,
        "object": pod,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": about | request}


class InCluster(Inside):
    def __init__(self, gates: Gates, upstream: Gates | None = None) -> None:
        self.upstream_gates = upstream or gates
        self.store = Store.open(":memory:", indexer=index_of)
        self.registry = builtin.registry(gates)
        self.api = Api(context := Context(self.store, self.registry, gates), Writer(context))
        self.client = self.as_("test")
        self._tasks: list[asyncio.Task[None]] = []
        self.clock = SystemClock()
        self.webhook_on = True
        self.phalanx: ClusterMode | None = None
        self._session: aiohttp.ClientSession | None = None

    def as_(self, agent: str) -> LocalClient:
        return LocalClient(self.api, user_agent=agent)

    async def install_custom_resources(self) -> None:
        for definition in definitions():
            await self.client.create(DEFINITIONS, definition)

    async def start_upstream(self) -> None:
        """Makes pods, and groups only where its gates say so."""
        service = ControllersService(Admitted(self.as_("upstream"), self), self.clock, self.upstream_gates)
        await self.run(service.run(), service.ready)

    async def start_phalanx(self, client: Any = None, **settings: Any) -> ClusterMode:
        chosen: dict[str, Any] = {
            "scheduler_name": "phalanx",
            "webhook": Listen("127.0.0.1", 0),
            "webhook_hosts": ("localhost",),
            "namespace": "kube-system",
            "lease": LeaseSettings("phalanx-controllers", "kube-system"),
        }
        self.phalanx = ClusterMode(ClusterModeSettings(**(chosen | settings)), clock=self.clock)
        await asyncio.wait_for(self.phalanx.start_with(client or self.as_("phalanx-controllers"), self.ask), TIMEOUT)
        if self.phalanx.webhook is not None:
            tls = ssl.create_default_context(cadata=self.phalanx.authority.decode())
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))
        return self.phalanx

    async def stop_phalanx(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self.phalanx is not None:
            await self.phalanx.stop()
            self.phalanx = None

    async def ask(self, path: str) -> bytes:
        """The OpenAPI document of this server, as over HTTP."""
        assert path == "/openapi/v3/api/v1"
        from phalanx.model.openapi_schema import Schemas

        schemas = Schemas()
        for kind in self.registry.all():
            if kind.group == "":
                schemas.add_kind(kind, kind.versions[0])
        return json.dumps({"components": {"schemas": schemas.components}}).encode()

    async def start_scheduler(self, name: str, client: Any = None) -> SchedulerService:
        config, _ = load_config("", name)
        inner = GroupApi(client or self.as_(name))
        engine = Engine(config.engine(), Gates())
        service = SchedulerService(inner, engine, Gates(), self.clock, random.Random(1), SchedulerOptions(name=name))
        ready = asyncio.Event()

        async def notify() -> None:
            await service.wait_synced()
            ready.set()

        telling = asyncio.create_task(notify())
        await self.run(service.run(), ready)
        await telling
        return service

    async def post(self, body: bytes) -> tuple[int, bytes]:
        assert self._session is not None and self.phalanx is not None and self.phalanx.webhook is not None
        url = f"https://localhost:{self.phalanx.webhook.port}/mutate-pods"
        async with self._session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            return answer.status, await answer.read()

    async def admit(self, pod: Json, namespace: str = "default") -> Json:
        """What kube-apiserver does with the answer, or without one: the failure policy is Ignore."""
        if self._session is None:
            return pod
        code, body = await self.post(json.dumps(review(pod, namespace)).encode())
        response = json.loads(body)["response"]
        assert code == 200 and response["allowed"] is True
        if "patch" not in response:
            return pod
        assert response["patchType"] == "JSONPatch"
        patched: Json = json_patch(pod, json.loads(base64.b64decode(response["patch"])))
        return patched

    async def announced(self, reason: str, text: str = "") -> str:
        """Wait for an event with this reason whose note has this text; return its note."""

        def notes(events: list[Json]) -> list[str]:
            said = [str(e.get("note") or e.get("message")) for e in events if e["reason"] == reason]
            return [note for note in said if text in note]

        return notes(await self.eventually("Event", lambda events: bool(notes(events))))[0]


@asynccontextmanager
async def beside(
    *,
    gates: Gates = OFF,
    upstream_gates: Gates | None = None,
    custom: bool = True,
    nodes: int = 4,
    upstream: bool = True,
    phalanx: bool = True,
    schedulers: tuple[str, ...] = ("phalanx", "default-scheduler"),
    **settings: Any,
) -> AsyncIterator[InCluster]:
    """gates: all off is a cluster that knows nothing of groups; custom: our custom resources are installed."""
    cluster = InCluster(gates, upstream_gates)
    try:
        await cluster.start_duties()
        if custom:
            await cluster.install_custom_resources()
        if nodes:
            await cluster.start_nodes(nodes, "", KubeletOptions(speed=50))
        for name in schedulers:
            await cluster.start_scheduler(name)
        if phalanx:
            await cluster.start_phalanx(**settings)
        if upstream:
            await cluster.start_upstream()
        yield cluster
    finally:
        await cluster.stop_phalanx()
        await cluster.stop()


def gang_job(name: str, size: int, annotations: Json | None = None, **spec: Any) -> Json:
    """An indexed Job of pods with one cpu that asks for a gang, unless it has other annotations."""
    return job(
        name, size, 1, annotations=GANG if annotations is None else annotations, **{"completionMode": "Indexed"} | spec
    )


def jobset_of(name: str, annotations: Json, *parts: tuple[str, int, int]) -> Json:
    """parts: name, replicas and size of each ReplicatedJob."""
    return jobset(name, *(part(*each, 1, pod={"restartPolicy": "Never"}) for each in parts), annotations=annotations)


def running(count: int) -> Callable[[list[Json]], bool]:
    return lambda pods: sum(p.get("status", {}).get("phase") == "Running" for p in pods) == count


LABEL = "scheduling.phalanx.dev/pod-group"


def group_of(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL) or "")


def play(scenario: Callable[[InCluster], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        async with beside(**options) as cluster:
            await scenario(cluster)

    asyncio.run(run())
