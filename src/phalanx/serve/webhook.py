"""Mutating webhooks: link a pod to its group at creation, and protect CompositePodGroups from deletion.

Speaks AdmissionReview v1 over HTTPS. Never rejects an object and never calls the API server: a pod that it cannot link
is admitted unchanged, and the controllers label it afterwards.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections import Counter
from typing import Protocol

import msgspec
from aiohttp import web

from phalanx.controllers.cluster_mode.protection import finalizer_patch
from phalanx.controllers.grouping.core import Json
from phalanx.controllers.workloads.member import PodView
from phalanx.serve.settings import cannot_listen

log = logging.getLogger(__name__)

PATH = "/mutate-pods"
COMPOSITES_PATH = "/mutate-composites"
PATIENCE = 1.0  # seconds to wait for the workload of a pod in the informer
OUTCOMES = ("linked", "protected", "unchanged", "failed", "malformed")
_MOST_BYTES = 8 << 20


class Links(Protocol):
    """Lookups of the webhook; see controllers.cluster_mode.directory."""

    def patch(self, pod: PodView, namespace: str) -> list[Json]: ...

    async def wait_for_owner(self, pod: PodView, namespace: str, seconds: float) -> None: ...


class _Resource(msgspec.Struct):
    group: str = ""
    resource: str = ""


class _Request(msgspec.Struct, rename={"sub_resource": "subResource"}):
    uid: str
    resource: _Resource = msgspec.field(default_factory=_Resource)
    sub_resource: str = ""
    operation: str = ""
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, rename={"api_version": "apiVersion"}):
    request: _Request
    api_version: str = ""
    kind: str = ""


class _Metadata(msgspec.Struct):
    finalizers: list[str] = []


class _Composite(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_REVIEW = msgspec.json.Decoder(_Review)
_POD = msgspec.json.Decoder(PodView)
_COMPOSITE = msgspec.json.Decoder(_Composite)


class WebhookServer:
    def __init__(self, links: Links, ready: asyncio.Event, *, patience: float = PATIENCE) -> None:
        self._links, self._ready, self._patience = links, ready, patience
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))  # answers; from 0, so that an alert sees the first one

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post(PATH, self._review)
        app.router.add_post(COMPOSITES_PATH, self._review)
        app.router.add_get("/livez", self._alive)
        app.router.add_get("/readyz", self._is_ready)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as problem:
            raise cannot_listen("--webhook-listen", host, port, problem) from None
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _is_ready(self, _: web.Request) -> web.Response:
        if self._ready.is_set():
            return web.Response(text="ok")
        return web.Response(text="caches are being filled\n", status=500)

    async def _review(self, request: web.Request) -> web.Response:
        try:
            review = _REVIEW.decode(await request.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.counts["malformed"] += 1
            return web.Response(status=400, text=f"not an AdmissionReview: {error}\n")
        if not review.request.uid or review.kind != "AdmissionReview" or review.api_version != "admission.k8s.io/v1":
            self.counts["malformed"] += 1
            return web.Response(status=400, text="want an AdmissionReview of admission.k8s.io/v1 with a request.uid\n")
        answer = msgspec.json.encode(await self._answer(review.request))
        return web.Response(body=answer, content_type="application/json")

    async def _answer(self, request: _Request) -> Json:
        response: Json = {"uid": request.uid, "allowed": True}
        try:
            patch = await self._patch(request)
        except msgspec.DecodeError as error:
            self.counts["malformed"] += 1
            response["warnings"] = [f"phalanx could not read this object and left it unchanged: {error}"[:200]]
        except Exception:
            # A failure of ours must not prevent the creation of pods.
            log.exception("admitting one of %s in namespace %s", request.resource.resource, request.namespace)
            self.counts["failed"] += 1
            response["warnings"] = ["phalanx could not process this object; see the log of its controllers"]
        else:
            changed = "protected" if request.resource.resource == "compositepodgroups" else "linked"
            self.counts[changed if patch else "unchanged"] += 1
            if patch:
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    async def _patch(self, request: _Request) -> list[Json]:
        if request.operation != "CREATE" or request.sub_resource:
            return []
        if request.resource.resource == "compositepodgroups":
            return finalizer_patch(_COMPOSITE.decode(request.object).metadata.finalizers)
        if request.resource.resource not in ("", "pods") or not self._ready.is_set():
            return []
        pod = _POD.decode(request.object)
        if pod.linked or pod.spec.node_name or pod.controller is None:
            return []
        await self._links.wait_for_owner(pod, request.namespace, self._patience)
        return self._links.patch(pod, request.namespace)
