"""Questions that reach a scheduler directly: only from callers that the API server authenticates and authorises."""

from __future__ import annotations

from aiohttp import web

from phalanx.base.errors import ApiProblem, BadRequest
from phalanx.serve.callers import Callers, refused
from phalanx.serve.diagnostics import MOST_BYTES, Diagnostics


class Guarded:
    def __init__(self, diagnostics: Diagnostics, callers: Callers) -> None:
        self._diagnostics, self._callers = diagnostics, callers

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            access = await self._callers.access(request)
            if request.content_length is not None and request.content_length > MOST_BYTES:
                raise BadRequest(f"the body of a question may have {MOST_BYTES} bytes")
            body = await request.read()
            answer = await self._diagnostics.answer(request.method, request.path, request.query, body, access)
        except ApiProblem as problem:
            return refused(problem)
        return web.Response(body=answer, content_type="application/json")

    async def check(self, token: str, path: str, verb: str) -> None:
        """Raises Unauthorized or Forbidden, as the API server says."""
        await self._callers.check(token, path, verb)
