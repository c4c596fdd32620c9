"""Questions that reach a scheduler directly: only from callers whom the API server knows and allows.

The caller's own token is shown to the API server, once to learn whether it is genuine (SelfSubjectReview) and once
whether its owner may use the path (SelfSubjectAccessReview, as for /metrics). Tokens are never kept or logged.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from phalanx.base.errors import ApiProblem, BadRequest, Forbidden, ServiceUnavailable, Unauthorized, Unreachable
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.serve.diagnostics import MOST_BYTES, Diagnostics

_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_MAY = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Guarded:
    def __init__(self, diagnostics: Diagnostics, connection: Connection) -> None:
        self._diagnostics = diagnostics
        self._connection = connection

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            await self._check(request)
            if request.content_length is not None and request.content_length > MOST_BYTES:
                raise BadRequest(f"the body of a question may have {MOST_BYTES} bytes")
            body = await request.read()
            answer = await self._diagnostics.answer(request.method, request.path, request.query, body)
        except ApiProblem as problem:
            headers = {"WWW-Authenticate": "Bearer"} if problem.http_code == 401 else {}
            status = msgspec.json.encode(problem.status())
            return web.Response(body=status, status=problem.http_code, headers=headers, content_type="application/json")
        return web.Response(body=answer, content_type="application/json")

    async def _check(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("Unauthorized: send the bearer token you use with the API server")
        await self.check(token, request.path, request.method.lower())

    async def check(self, token: str, path: str, verb: str) -> None:
        """Raises Unauthorized or Forbidden, as the API server says; ServiceUnavailable if it says nothing."""
        # Nothing of our own credentials may speak for the caller: no token file, no exec plugin, no client certificate.
        theirs = Connection(self._connection.server, self._connection.trust, token=token)
        attributes = {"path": path, "verb": verb}
        async with HttpClient(theirs, user_agent="phalanx-scheduler", connections=1, timeout=10) as client:
            try:
                await client.request("POST", _WHO, body=_review("authentication.k8s.io", "SelfSubjectReview"))
                spec = {"nonResourceAttributes": attributes}
                found = await client.request(
                    "POST", _MAY, body=_review("authorization.k8s.io", "SelfSubjectAccessReview", spec)
                )
            except Unreachable as problem:
                raise ServiceUnavailable(f"the API server that knows the token does not answer: {problem}") from None
        if not (msgspec.json.decode(found).get("status") or {}).get("allowed"):
            raise Forbidden(f"no permission to {verb} the non-resource URL {path}")


def _review(group: str, kind: str, spec: Mapping[str, object] | None = None) -> bytes:
    body: dict[str, object] = {"apiVersion": f"{group}/v1", "kind": kind}
    return msgspec.json.encode({**body, "spec": spec} if spec is not None else body)
