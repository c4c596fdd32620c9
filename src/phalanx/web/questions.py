"""Queries of a page besides the feed: a node, a group, why, plan, what-if, events. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from phalanx.base.client import Client
from phalanx.base.errors import ApiProblem, BadRequest, NotFound
from phalanx.base.resources import EVENTS
from phalanx.model.kinds import Json
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.queries.paths import BASE
from phalanx.serve.queries.queue_view import GROUP_KINDS
from phalanx.web.history import SPANS, UsageHistory
from phalanx.web.manifest import counts_in, manifest_of, parse, with_counts
from phalanx.web.objects import described

Query = Mapping[str, str]

MOST_EVENTS = 50
MOST_TEXT = 1 << 18  # of a pasted manifest


class _Asked(msgspec.Struct):
    text: str
    namespace: str = "default"
    counts: list[dict[str, Any]] = []
    cluster: dict[str, Any] = {}  # what is different in it: `serve.queries.variant`


class Questions:
    def __init__(
        self,
        reader: EngineReader,
        diagnostics: Diagnostics,
        client: Client,
        history: UsageHistory,
        *,
        objects: bool = True,
    ) -> None:
        """`objects`: a login may read any object; False: only kubectl lines are given."""
        self._objects = objects
        self._reader, self.diagnostics, self._client, self._history = reader, diagnostics, client, history

    async def node(self, query: Query) -> bytes:
        found = self._reader.node(query.get("name", ""))
        if found is None:
            raise NotFound(f"there is no node {query.get('name', '')[:253]!r} any more")
        return msgspec.json.encode(found)

    async def members(self, query: Query) -> bytes:
        key = query.get("key", "")
        found = self._reader.members(key)
        if found is None:
            raise NotFound(f"there is no group {key[:300]!r} any more")
        conditions = self._reader.conditions(key)
        return msgspec.json.encode({"members": found, "shape": self._reader.shape(key), "conditions": conditions})

    async def devices(self, query: Query) -> bytes:
        """Return the devices, by class and domain, that the pods of a unit request."""
        return msgspec.json.encode(self._reader.free_devices(query.get("key", "")))

    async def history(self, query: Query) -> bytes:
        """Return the samples of a day or a week."""
        span = query.get("span", "")
        if span not in SPANS:
            raise BadRequest(f"span must be one of {', '.join(SPANS)}")
        return msgspec.json.encode({"span": span, "samples": self._history.span(span)})

    async def object(self, query: Query) -> bytes:
        """Return a pod, group, Workload or node as YAML, without environment, commands and arguments."""
        kind, _, rest = query.get("key", "").partition("/")
        namespace, _, name = rest.partition("/") if kind != "node" else ("", "", rest)
        if not name:
            raise BadRequest("key must be KIND/NAMESPACE/NAME, such as pod/default/train-0, or node/NAME")
        found = await described(self._client if self._objects else None, kind, namespace, name)
        return msgspec.json.encode(found)

    async def why(self, query: Query) -> bytes:
        return await self.diagnostics.answer("GET", f"{BASE}/why", _of(query), b"")

    async def plan(self, query: Query) -> bytes:
        """Return the plan, and the nodes on which each victim is."""
        plan = msgspec.json.decode(await self.diagnostics.answer("GET", f"{BASE}/plan", _of(query), b""))
        self._locate(plan)
        return msgspec.json.encode(plan)

    def _locate(self, plan: Json) -> None:
        for victim in plan.get("victims") or ():
            victim["nodes"] = [{"node": n, "pods": c} for n, c in sorted(self._reader.nodes_of(victim["name"]).items())]
            victim["group"] = self._reader.group_of(victim["name"])

    async def manifest(self, query: Query) -> bytes:
        text = manifest_of(
            self._reader, query.get("key", ""), query.get("change", ""), query.get("group", ""), query.get("to", "")
        )
        if not text:
            raise NotFound(f"nothing waits under the name {query.get('key', '')[:300]!r} any more")
        return msgspec.json.encode({"text": text})

    async def whatif(self, body: bytes) -> bytes:
        """Return where the manifests would go, which pods they would evict, and the numbers that sliders may change."""
        try:
            asked = msgspec.json.decode(body, type=_Asked)
        except msgspec.DecodeError as problem:
            raise BadRequest(f"the question could not be read: {problem}") from None
        if len(asked.text) > MOST_TEXT:
            raise BadRequest(f"a manifest may have {MOST_TEXT >> 10} KiB here; use `phalanx whatif -f FILE` for more")
        documents = await asyncio.to_thread(parse, asked.text)
        counts = counts_in(documents)
        items = with_counts(documents, asked.counts)
        question = msgspec.json.encode(
            {"items": items, "namespace": asked.namespace or "default", "cluster": asked.cluster}
        )
        outlook = msgspec.json.decode(await self.diagnostics.answer("POST", f"{BASE}/whatif", {}, question))
        for item in outlook["items"]:
            self._locate(item.get("plan") or {})
        return msgspec.json.encode({"counts": counts, "outlook": outlook})

    async def events(self, query: Query) -> bytes:
        """Return the events of an object, newest first."""
        _, namespace, name = _key(query)
        chosen = f"involvedObject.name={name},involvedObject.kind={KINDS[query['key'].split('/')[0]]}"
        try:
            listed = msgspec.json.decode(await self._client.list(EVENTS, namespace, fields=chosen))
        except ApiProblem as problem:
            return msgspec.json.encode({"events": [], "problem": f"events cannot be read: {problem}"})
        found = []
        for event in listed.get("items") or ():
            series = event.get("series") or {}
            last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or ""
            found.append(
                {
                    "time": last or event["metadata"].get("creationTimestamp", ""),
                    "type": event.get("type", ""),
                    "reason": event.get("reason", ""),
                    "message": event.get("message", ""),
                    "count": series.get("count") or event.get("count") or 1,
                }
            )
        found.sort(key=lambda event: event["time"], reverse=True)
        return msgspec.json.encode({"events": found[:MOST_EVENTS]})


KINDS = {"pod": "Pod", **GROUP_KINDS}  # by the first part of a key


def _key(query: Query) -> tuple[str, str, str]:
    kind, _, rest = query.get("key", "").partition("/")
    namespace, _, name = rest.partition("/")
    if kind not in KINDS or not namespace or not name:
        raise BadRequest("key must be KIND/NAMESPACE/NAME, such as podgroup/default/train")
    return kind, namespace, name


def _of(query: Query) -> dict[str, str]:
    kind, namespace, name = _key(query)
    return {"kind": kind, "namespace": namespace, "name": name, "relax": query.get("relax", "true")}
