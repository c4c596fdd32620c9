"""One door for every request about objects, whether it came over HTTP or from inside the process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from phalanx.base.errors import MethodNotAllowed
from phalanx.local.api import protobuf_answers
from phalanx.local.api.body import read_apart
from phalanx.local.api.context import Context
from phalanx.local.api.index import Selection
from phalanx.local.api.negotiate import negotiate
from phalanx.local.api.pod_log import log_of
from phalanx.local.api.read import Reader
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.route import CONNECTIONS, NOT_ALLOWED
from phalanx.local.api.view import partial, to_yaml, view_of
from phalanx.local.api.watch import WatchHandler


class Handler(Protocol):
    async def handle(self, request: Request) -> Answer: ...


class Api:
    """Hands a request to reading, watching or writing."""

    def __init__(self, ctx: Context, writer: Handler | None = None) -> None:
        self.ctx = ctx
        self._reader = Reader(ctx)
        self._watch = WatchHandler(ctx)
        self._writer = writer

    def events(self, request: Request) -> AsyncGenerator[list[tuple[str, bytes]], None]:
        """Watch for a part of this process: yield batches of (type, encoded object). Raises ApiProblem."""
        return self._watch.events(request)

    async def present(self, request: Request) -> tuple[list[bytes], int]:
        """List the stored values and their revision for a part of this process. Raises ApiProblem.

        A caller that follows all kinds asks in their storage versions and gets what is stored, also what was stored
        before another version became the storage version: garbage collection must not hang on a conversion webhook.
        """
        kind, store = request.kind, self.ctx.store
        matches = Selection.of(kind, request.query, request.name).matches
        view = view_of(kind, request.version)
        revision = store.revision
        entries = [entry for entry in store.list(kind.storage_key, request.namespace) if matches(entry)]
        if kind.convert is not None and request.version.name != kind.storage_version:
            entries = await self.ctx.conversions.entries(kind, request.version.name, entries)
        return [view(entry.value) for entry in entries], revision

    async def handle(self, request: Request) -> Answer:
        """Answer a request. Raises ApiProblem."""
        verb = request.verb
        if request.subresource in CONNECTIONS and self._writer is not None:
            return await self._writer.handle(request)
        form = negotiate(request.accept, request.kind.stored)
        if form.protobuf:
            protobuf_answers.check(request, form.shape)
        if verb == "watch":
            return await self._watch.handle(request)
        if request.subresource == "log":
            return log_of(request, self._reader.entry(request), self.ctx.store)
        if verb in ("get", "list"):
            answer = await self._reader.handle(request)
            return await protobuf_answers.converted(request, answer) if form.protobuf else answer
        if self._writer is None:
            raise MethodNotAllowed(NOT_ALLOWED, group=request.kind.group, kind=request.kind.plural)
        await read_apart(request)
        answer = await self._writer.handle(request)
        if request.warnings:
            answer.warnings += request.warnings
        if request.kind.warning and verb != "delete":
            answer.warnings += (request.kind.warning,)
        if form.shape == "metadata" and not answer.body.startswith(b'{"kind":"Status"'):
            answer.body = partial(answer.body, form.meta_version)
        if form.protobuf:
            return await protobuf_answers.converted(request, answer)
        if form.yaml:
            answer.body, answer.content_type = await to_yaml(answer.body), form.content_type
        return answer
