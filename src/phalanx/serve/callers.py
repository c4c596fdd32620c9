"""Authenticate and authorise callers of our ports by reviews of the API server.

A TokenReview returns the user of a token, a SubjectAccessReview whether the user may do something. Both are created
with our own account (role `system:auth-delegator` of Kubernetes). Tokens are never stored or logged. A result is cached
for some seconds under the digest of the token, so that neither a scraper nor guessed tokens cause a review per request.

The service proxy of kube-apiserver removes the `Authorization` header, adds no identity and does not verify our
certificate, so a token for another purpose must not be sent that way. Callers send a token for our audience, which is
useless elsewhere, in the header `Phalanx-Token`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from phalanx.base.access import Access, Right
from phalanx.base.client import Client, Resource
from phalanx.base.errors import (
    ApiProblem,
    BadRequest,
    Forbidden,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from phalanx.serve.queries.diagnostics import MOST_BYTES, Diagnostics
from phalanx.serve.queries.paths import AUDIENCE, HEADER

REMEMBERED = 10.0  # seconds that results are cached, as in kube-apiserver's components
MOST_REMEMBERED = 1000
MOST_ASKED = 4  # concurrent reviews
MOST_WAITING = 64

_TOKENS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
_ACCESS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
_Result = tuple[float, Any, ApiProblem | None]  # expiry, value, or the problem


class Caller(msgspec.Struct, frozen=True):
    """The user of a token."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: Caller = Caller()
    error: str = ""


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


class Callers:
    def __init__(self, client: Client, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client, self._monotonic = client, monotonic
        self._known: OrderedDict[Hashable, _Result] = OrderedDict()
        self._slots = asyncio.Semaphore(MOST_ASKED)
        self._waiting = 0

    async def check_request(self, request: web.Request) -> None:
        """Raise Unauthorized or Forbidden unless the caller may use the path; see `check`."""
        await self._check(*_token(request), request.path, request.method.lower())

    async def check(self, token: str, path: str, verb: str) -> None:
        """Raise Unauthorized or Forbidden as the API server decides, ServiceUnavailable if it does not answer."""
        await self._check(token, (), path, verb)

    async def access(self, request: web.Request) -> Access | None:
        """Return the rights of the caller; None if it may use the path itself. Raises Unauthorized."""
        token, audiences = _token(request)
        try:
            await self._check(token, audiences, request.path, request.method.lower())
        except Forbidden:
            return _CallerAccess(self, token, await self._caller(token, audiences))
        return None

    async def _check(self, token: str, audiences: tuple[str, ...], path: str, verb: str) -> None:
        caller = await self._caller(token, audiences)
        if not await self.allowed(token, caller, {"nonResourceAttributes": {"path": path, "verb": verb}}):
            raise Forbidden(f'User "{caller.username}" has no permission to {verb} the non-resource URL {path}')

    async def _caller(self, token: str, audiences: tuple[str, ...]) -> Caller:
        found = await self._remembered((_digest(token), audiences), lambda: self._identify(token, audiences))
        assert isinstance(found, Caller)
        return found

    async def allowed(self, token: str, caller: Caller, about: Mapping[str, Mapping[str, str]]) -> bool:
        """Return True if a SubjectAccessReview allows the request.

        `about`: its resourceAttributes or nonResourceAttributes.
        """
        (kind, attributes), *_ = about.items()
        key = (_digest(token), kind, *sorted(attributes.items()))
        return bool(await self._remembered(key, lambda: self._review(caller, about)))

    async def _remembered(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        until, value, problem = self._known.get(key, (0.0, None, None))
        if until < self._monotonic():
            value, problem = await self._within_limit(ask)
            self._known[key] = (self._monotonic() + REMEMBERED, value, problem)
            self._known.move_to_end(key)
            while len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        if problem is not None:
            raise problem
        return value

    async def _within_limit(self, ask: Callable[[], Any]) -> tuple[Any, ApiProblem | None]:
        if self._waiting >= MOST_WAITING:
            raise TooManyRequests("too many callers are waiting to be recognised; ask again later", retry_after=1)
        self._waiting += 1
        try:
            async with self._slots:
                return await ask(), None
        except Unauthorized as problem:
            return None, problem
        finally:
            self._waiting -= 1

    async def _identify(self, token: str, audiences: tuple[str, ...]) -> Caller:
        """Return the caller of a token. Raises Unauthorized. Our header may also contain a token for the API server."""
        error = ""
        for wanted in dict.fromkeys((audiences, ())):
            spec: dict[str, object] = {"token": token, **({"audiences": wanted} if wanted else {})}
            status = msgspec.json.decode(await self._create(_TOKENS, spec), type=_TokenReview).status
            if status.authenticated:
                return status.user
            error = status.error
        raise Unauthorized(f"Unauthorized: the API server does not accept the token{f' ({error})' if error else ''}")

    async def _review(self, caller: Caller, about: Mapping[str, Mapping[str, str]]) -> bool:
        user = {"user": caller.username, "uid": caller.uid, "groups": caller.groups, "extra": caller.extra}
        found = await self._create(_ACCESS, {**user, **about})
        return msgspec.json.decode(found, type=_AccessReview).status.allowed

    async def _create(self, resource: Resource, spec: dict[str, object]) -> bytes:
        body = {"apiVersion": f"{resource.group}/{resource.version}", "kind": resource.kind, "spec": spec}
        try:
            return await self._client.create(resource, body)
        except Unreachable as problem:
            raise ServiceUnavailable(f"the API server that knows the caller does not answer: {problem}") from None
        except (Unauthorized, Forbidden) as problem:
            text = f"this process may not create {resource.plural}, which check callers: {problem}"
            raise ServiceUnavailable(f"{text}; apply the roles in deploy/") from None


class _CallerAccess:
    """Rights of one caller, checked on demand (`base.access.Access`)."""

    def __init__(self, callers: Callers, token: str, caller: Caller) -> None:
        self._callers, self._token, self._caller = callers, token, caller

    @property
    def user(self) -> str:
        return self._caller.username

    async def may(self, right: Right) -> bool:
        attributes = {name: value for name, value in right._asdict().items() if value}
        return await self._callers.allowed(self._token, self._caller, {"resourceAttributes": attributes})


def _token(request: web.Request) -> tuple[str, tuple[str, ...]]:
    """Return the token of a request and its audiences; () for those of the API server."""
    own = request.headers.get(HEADER, "").strip()
    if own:
        return own, (AUDIENCE,)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized(
            "Unauthorized: send the bearer token you use with the API server, or through the service proxy one for the "
            f"audience {AUDIENCE} in the header {HEADER}"
        )
    return token.strip(), ()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def refused(problem: ApiProblem) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if problem.http_code == 401 else {}
    status = msgspec.json.encode(problem.status())
    return web.Response(body=status, status=problem.http_code, headers=headers, content_type="application/json")


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
        """Raise Unauthorized or Forbidden as the API server decides, ServiceUnavailable if it does not answer."""
        await self._callers.check(token, path, verb)
