"""Let a client of the native group API use the custom resources: a proxy that renames the API group both ways.

Pods name their group in `spec.schedulingGroup`, which a server without native groups drops; here it becomes the label
that Phalanx reads there. Groups get the priority of their class, which no admission plugin does for custom resources.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import aiohttp
from aiohttp import web

Json = dict[str, Any]
NATIVE, CUSTOM = "scheduling.k8s.io", "scheduling.phalanx.dev"
LABEL = "scheduling.phalanx.dev/pod-group"
VERSIONS = {"workloads": "v1beta1", "podgroups": "v1beta1", "compositepodgroups": "v1alpha3"}
_GROUPS = re.compile(rf"^/apis/{re.escape(NATIVE)}/(v\w+)/((?:namespaces/[^/]+/)?({'|'.join(VERSIONS)})(?:/.*)?)$")
_PODS = re.compile(r"^/api/v1/(?:namespaces/[^/]+/)?pods(?:/[^/]+)?$")


class GroupProxy:
    """Serves plain HTTP on loopback, in a thread of its own."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._headers = url, {"Authorization": f"Bearer {token}"}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    async def _start(self) -> int:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port: int = self._runner.addresses[0][1]
        return port

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _stop(self) -> None:
        watches = asyncio.all_tasks() - {asyncio.current_task()}
        for task in watches:  # the cleanup would wait for them
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await self._session.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        groups, pods = _GROUPS.match(request.path), _PODS.match(request.path)
        path = request.path
        if groups:
            path = f"/apis/{CUSTOM}/{VERSIONS[groups[3]]}/{groups[2]}"
        body = await request.read()
        if body and (groups or pods):
            body = json.dumps(self._outgoing(json.loads(body), groups[3] if groups else "")).encode()
        headers = {**self._headers, "Content-Type": request.headers.get("Content-Type", "application/json")}
        url = f"{self._url}{path}{'?' + request.query_string if request.query_string else ''}"
        async with self._session.request(request.method, url, data=body or None, headers=headers, ssl=False) as answer:
            version = f"{NATIVE}/{groups[1]}" if groups else ""
            if request.query.get("watch") not in ("1", "true"):
                text = await answer.read()
                if (groups or pods) and answer.content_type == "application/json":
                    text = json.dumps(self._incoming(json.loads(text), version)).encode()
                return web.Response(body=text, status=answer.status, content_type=answer.content_type)
            reply = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await reply.prepare(request)
            async for line in answer.content:
                event = json.loads(line)
                if groups or pods:
                    event["object"] = self._incoming(event["object"], version)
                await reply.write(json.dumps(event).encode() + b"\n")
            return reply

    def _outgoing(self, body: Any, plural: str) -> Any:
        if not isinstance(body, dict):
            return body  # a JSON patch
        if plural:
            if "apiVersion" in body:
                body["apiVersion"] = f"{CUSTOM}/{VERSIONS[plural]}"
            spec = body.get("spec") or {}
            found = re.fullmatch(r"conform-p(-?\d+)", spec.get("priorityClassName") or "")
            if found and "priority" not in spec and plural != "workloads":
                spec["priority"] = int(found[1])
            return body
        link = (body.get("spec") or {}).pop("schedulingGroup", None)
        if link:
            labels = body.setdefault("metadata", {}).get("labels") or {}
            body["metadata"]["labels"] = {**labels, LABEL: link["podGroupName"]}
        return body

    def _incoming(self, body: Json, version: str) -> Json:
        for item in body["items"] if isinstance(body.get("items"), list) else [body]:
            if version and str(item.get("apiVersion", "")).startswith(CUSTOM):
                item["apiVersion"] = version
            label = ((item.get("metadata") or {}).get("labels") or {}).get(LABEL)
            if not version and label and isinstance(item.get("spec"), dict):
                item["spec"]["schedulingGroup"] = {"podGroupName": label}
        return body
