"""HTTP queries to the scheduler: GET why, plan, demand and state, POST whatif, below /phalanx/v1.

Served behind the API server of a local cluster and at an address of a scheduler process. The engine is only read.
Callers that may not read the whole cluster get answers about one namespace (`serve.queries.rights`). Answers are
computed in a fork, so that scheduling never waits for a query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from phalanx.base.access import Access
from phalanx.base.client import Client
from phalanx.base.errors import ApiProblem, BadRequest, Forbidden, MethodNotAllowed, NotFound, ServiceUnavailable
from phalanx.base.ids import meant
from phalanx.base.resources import PRIORITY_CLASSES, RESOURCE_CLAIM_TEMPLATES
from phalanx.engine.engine import Engine
from phalanx.engine.explain import Unknown, plan, whatif, why
from phalanx.engine.explain.demand import demand
from phalanx.engine.explain.node_pools import DeclaredPool
from phalanx.model.gates import Gates
from phalanx.model.groups import GroupKey
from phalanx.serve.queries import rights as question_rights
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.queries.fork import ForkedQueries
from phalanx.serve.queries.manifests import Manifests
from phalanx.serve.queries.paths import PATHS, kind_of
from phalanx.serve.queries.redaction import redacted
from phalanx.serve.queries.repair import drain, repair
from phalanx.serve.queries.variant import Variant

MOST_BYTES = 8 << 20


class _Drain(msgspec.Struct):
    nodes: list[str] = []
    domain: str = ""  # KEY=VALUE of a node label


class _Asked(msgspec.Struct):
    items: list[dict[str, Any]] = []
    drain: _Drain | None = None
    namespace: str = "default"
    cluster: Variant = msgspec.field(default_factory=Variant)


class QuestionSettings(msgspec.Struct, frozen=True):
    """What the options of the scheduler say about answers."""

    pools: Sequence[DeclaredPool] = ()  # nodes that an autoscaler may create, for `demand`; none: more of the existing
    dialects: Sequence[str] = ()  # other schedulers whose PodGroups are used


class Diagnostics:
    def __init__(
        self,
        engine: Engine,
        client: Client,
        gates: Gates,
        ready: Callable[[], bool],
        now: Callable[[], float] = time.time,
        settings: QuestionSettings | None = None,
    ) -> None:
        self._engine = engine
        self._reader = EngineReader(engine, now)
        self._client = client
        self._gates = gates
        self._aside = ForkedQueries()
        self._settings = settings or QuestionSettings()
        self._ready = ready  # caches are filled: answers before that would be wrong

    async def answer(
        self, method: str, path: str, query: Mapping[str, str], body: bytes, access: Access | None = None
    ) -> bytes:
        """Return encoded JSON. `access`: rights of a caller with limited access. Raises ApiProblem."""
        if path not in PATHS:
            raise NotFound("the server could not find the requested resource")
        what = path.rpartition("/")[2]
        if method not in (("POST",) if what == "whatif" else ("GET", "HEAD")):
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        if what == "whatif":
            return await self._whatif(query, body, access)
        if what == "state":
            return await self._state(query, access)
        if what == "demand":
            listed, only = await question_rights.of_listing(access, query)
            return await self.demand(listed, only)
        kind, namespace, name = _named(query)
        only = await question_rights.of_object(access, kind, namespace, name)
        relax = query.get("relax", "true") != "false"

        def compute() -> bytes:
            try:
                if what == "plan" and query.get("repair") == "true":
                    return msgspec.json.encode(repair(self._engine, GroupKey(kind, namespace, name)))
                if what == "plan":
                    return msgspec.json.encode(plan(self._engine.scheduler, kind, namespace, name))
                return msgspec.json.encode(why(self._engine.scheduler, kind, namespace, name, relax=relax))
            except Unknown as problem:
                raise NotFound(f"{problem}{self._meant(kind, namespace, name)}", name=name, kind=kind) from None

        return await self._computed(compute, only)

    def _meant(self, kind: str, namespace: str, name: str) -> str:
        scheduler = self._engine.scheduler
        if kind == "Pod":
            return meant(name, [pod.name for pod in scheduler.pods.records.values() if pod.namespace == namespace])
        groups = scheduler.groups.forest.in_namespace(namespace) if scheduler.cluster.grouping else ()
        return meant(name, [group.key.name for group in groups if group.key.kind == kind])

    async def demand(self, namespace: str = "", only: str = "") -> bytes:
        """Return pending units that lack nodes, and these nodes (encoded `NodeDemand`). `namespace`: list only its
        units."""

        def compute() -> bytes:
            found = demand(self._engine.scheduler, self._settings.pools)
            if namespace:
                found = found.only(namespace)
            return msgspec.json.encode(found)

        return await self._computed(compute, only)

    async def _computed(self, compute: Callable[[], bytes], only: str) -> bytes:
        """Compute the answer in a fork. `only`: the namespace that it may name; "": all."""
        if not self._ready():
            text = "the scheduler has not read the cluster: it is starting, or it is a standby"
            raise ServiceUnavailable(text, retry_after=1)
        return await self._aside.answer(lambda: redacted(compute(), self._engine, only) if only else compute())

    async def _state(self, query: Mapping[str, str], access: Access | None) -> bytes:
        if "domain" in query:  # nodes of one domain with their groups
            await question_rights.of_nodes(access)
            inside = query["domain"].split("/")
            return await self._computed(lambda: msgspec.json.encode(self._reader.inside(inside)), "")
        listed, only = await question_rights.of_listing(access, query)
        return await self._computed(lambda: msgspec.json.encode(self._reader.state(listed)), only)

    async def _whatif(self, query: Mapping[str, str], body: bytes, access: Access | None) -> bytes:
        only = await question_rights.of_manifests(access, body)
        classes = await self.priority_classes()
        templates = await self._claim_templates() if b"resourceClaimTemplateName" in body else []

        def compute() -> bytes:
            try:
                asked = msgspec.json.decode(body, type=_Asked)
            except msgspec.DecodeError as problem:
                shape = '{"items": [...], "namespace": "...", "cluster": {...}}'
                raise BadRequest(f"the body must be {shape}: {problem}") from None
            if asked.drain is not None:
                return msgspec.json.encode(drain(self._engine, asked.drain.nodes, asked.drain.domain))
            manifests = Manifests(
                self._gates, classes, tuple(self._engine.profiles), templates, self._settings.dialects
            )
            manifests.read(asked.items, asked.namespace)
            if only and (others := manifests.question.namespaces - {only}):
                text = (
                    f"manifests of the namespace {min(others)} in a query about {only}; query each namespace separately"
                )
                raise Forbidden(text)
            manifests.notes += asked.cluster.put_into(self._engine)  # the fork ends after its answer
            manifests.put_into(self._engine)
            relax, when = query.get("relax", "true") != "false", query.get("when", "") == "true"
            outlook = whatif(self._engine.scheduler, manifests.question, relax=relax, when=when)
            return msgspec.json.encode(msgspec.structs.replace(outlook, notes=[*manifests.notes, *outlook.notes]))

        return await self._computed(compute, only)

    async def _claim_templates(self) -> list[dict[str, Any]]:
        """Return the templates of the cluster; none if they are not readable: those of the manifests are sufficient."""
        try:
            return msgspec.json.decode(await self._client.list(RESOURCE_CLAIM_TEMPLATES)).get("items") or []
        except ApiProblem:
            return []

    async def priority_classes(self) -> list[dict[str, Any]]:
        try:
            found = msgspec.json.decode(await self._client.list(PRIORITY_CLASSES))
        except ApiProblem as problem:
            raise ServiceUnavailable(f"cannot read priority classes: {problem}") from None
        return found.get("items") or []


def _named(query: Mapping[str, str]) -> tuple[str, str, str]:
    kind = kind_of(query.get("kind", ""))
    if kind is None:
        raise BadRequest("kind must be one of pod, podgroup, compositepodgroup, workload")
    name = query.get("name", "")
    if not name:
        raise BadRequest("name is missing")
    return kind, query.get("namespace") or "default", name
