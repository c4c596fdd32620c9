"""Who calls one of our ports and what they may do: the API server knows, and is shown the caller's own token.

Once to learn whether it is genuine (SelfSubjectReview), once whether its owner may use the path
(SelfSubjectAccessReview, as for /metrics). Asked in the caller's name, so that we need no right to look at others'
tokens. Tokens are never kept or logged; for some seconds it is known by their digest what the answer was, so that
neither a scraper nor a stranger who guesses makes the API server work for every request.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from phalanx.base.errors import ApiProblem, Forbidden, ServiceUnavailable, TooManyRequests, Unauthorized, Unreachable
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection

_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_MAY = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REMEMBERED = 10.0  # seconds, as kube-apiserver's own components remember
MOST_REMEMBERED = 1000
MOST_ASKED = 4  # questions to the API server at a time
MOST_WAITING = 64


class Callers:
    def __init__(self, connection: Connection, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._monotonic = connection, monotonic
        self._known: OrderedDict[tuple[bytes, str, str], tuple[float, ApiProblem | None]] = OrderedDict()
        self._slots = asyncio.Semaphore(MOST_ASKED)
        self._waiting = 0

    async def check_request(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("Unauthorized: send the bearer token you use with the API server")
        await self.check(token, request.path, request.method.lower())

    async def check(self, token: str, path: str, verb: str) -> None:
        """Raises Unauthorized or Forbidden, as the API server says; ServiceUnavailable if it says nothing."""
        key = (hashlib.sha256(token.encode()).digest(), path, verb)
        until, problem = self._known.get(key, (0.0, None))
        if until < self._monotonic():
            problem = await self._ask(token, path, verb)
            self._known[key] = (self._monotonic() + REMEMBERED, problem)
            self._known.move_to_end(key)
            while len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        if problem is not None:
            raise problem

    async def _ask(self, token: str, path: str, verb: str) -> ApiProblem | None:
        if self._waiting >= MOST_WAITING:
            raise TooManyRequests("too many callers are waiting to be recognised; ask again later", retry_after=1)
        self._waiting += 1
        try:
            async with self._slots:
                await self._review(token, path, verb)
        except (Unauthorized, Forbidden) as problem:
            return problem
        finally:
            self._waiting -= 1
        return None

    async def _review(self, token: str, path: str, verb: str) -> None:
        # Nothing of our own credentials may speak for the caller: no token file, no exec plugin, no client certificate.
        theirs = Connection(self._connection.server, self._connection.trust, token=token)
        async with HttpClient(theirs, user_agent="phalanx-callers", connections=1, timeout=10) as client:
            try:
                await client.request("POST", _WHO, body=_body("authentication.k8s.io", "SelfSubjectReview"))
                spec = {"nonResourceAttributes": {"path": path, "verb": verb}}
                found = await client.request(
                    "POST", _MAY, body=_body("authorization.k8s.io", "SelfSubjectAccessReview", spec)
                )
            except Unreachable as problem:
                raise ServiceUnavailable(f"the API server that knows the token does not answer: {problem}") from None
        if not (msgspec.json.decode(found).get("status") or {}).get("allowed"):
            raise Forbidden(f"no permission to {verb} the non-resource URL {path}")


def _body(group: str, kind: str, spec: Mapping[str, object] | None = None) -> bytes:
    body: dict[str, object] = {"apiVersion": f"{group}/v1", "kind": kind}
    return msgspec.json.encode({**body, "spec": spec} if spec is not None else body)


def refused(problem: ApiProblem) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if problem.http_code == 401 else {}
    status = msgspec.json.encode(problem.status())
    return web.Response(body=status, status=problem.http_code, headers=headers, content_type="application/json")
