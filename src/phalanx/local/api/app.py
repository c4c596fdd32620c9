"""The ASGI application: HTTP in, answers out. Handles paths, bodies and headers, never objects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qsl

from phalanx.base.access import Access
from phalanx.base.errors import ApiProblem, BadRequest, Forbidden, InternalError, MethodNotAllowed, NotFound
from phalanx.local.api.audit import Audit, AuditRecord
from phalanx.local.api.auth import PREFIX as IMPERSONATE
from phalanx.local.api.auth import impersonated, is_open
from phalanx.local.api.discovery import Discovery, openapi_answer, openapi_v2_answer, version_info
from phalanx.local.api.fairness import Fairness, Flow
from phalanx.local.api.handler import Api
from phalanx.local.api.health import Health
from phalanx.local.api.limits import Limits, too_large
from phalanx.local.api.metrics import ApiMetrics
from phalanx.local.api.negotiate import negotiate
from phalanx.local.api.options import check_timeout
from phalanx.local.api.pod_log import is_followed
from phalanx.local.api.request import Answer, Request, User
from phalanx.local.api.rights import Attributes, UserAccess, attributes_of, refusal
from phalanx.local.api.route import CONNECTIONS, NOT_ALLOWED, UNKNOWN, parse, resolve, verb_of
from phalanx.local.api.service_proxy import forward, service_of
from phalanx.local.api.tokens import DISCOVERY_PATH, KEYS_PATH
from phalanx.local.api.view import encode
from phalanx.model.openapi import OpenApi
from phalanx.model.openapi_v2 import Swagger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Extra = Callable[[], Answer]
# Another part of the process answers these paths: (method, path, query, body) -> encoded JSON, or an ApiProblem.
Extension = Callable[[str, str, Mapping[str, str], bytes], Awaitable[bytes]]
# The same for callers with any rights: the last argument is what the caller may do, None if it may use the whole path.
Question = Callable[[str, str, Mapping[str, str], bytes, Access | None], Awaitable[bytes]]

log = logging.getLogger("phalanx.api")
LEASES = "/apis/coordination.k8s.io/"  # a leader must be able to renew its lease under any load
SENT_AT_ONCE = 64 << 10  # bytes of a stream
YIELD_BYTES = 32 << 10
_NOTHING: dict[str, str] = {}
WITH_BODY = frozenset(("POST", "PUT", "PATCH", "DELETE"))


class Auth(Protocol):
    def user(self, headers: list[tuple[bytes, bytes]], certificate: str = "") -> User: ...


class App:
    def __init__(
        self,
        api: Api,
        auth: Auth,
        *,
        limits: Limits | None = None,
        extras: Mapping[str, Extra] | None = None,
    ) -> None:
        self._api, self._auth = api, auth
        self._openapi, self._swagger = OpenApi(api.ctx.registry), Swagger(api.ctx.registry)
        self._discovery = Discovery(api.ctx)
        self._limits = limits or Limits()
        self.metrics = ApiMetrics(api.ctx)
        self._extras: dict[str, Extra] = {  # exact paths
            "/metrics": self.metrics.answer,
            "/metrics/slis": lambda: self.health.slis(),
            DISCOVERY_PATH: lambda: Answer(body=api.ctx.tokens.discovery(self.address)),
            KEYS_PATH: lambda: Answer(body=api.ctx.tokens.keys(), content_type="application/jwk-set+json"),
            **(extras or {}),
        }
        self.extensions: dict[str, Extension] = {}  # exact paths, for callers with a valid token
        self.questions: dict[str, Question] = {}  # exact paths, which check the rights of callers themselves
        self.downloads: dict[str, Callable[[], Awaitable[Answer]]] = {}  # exact paths, likewise
        self._streams: dict[asyncio.Task[Any], None] = {}  # in order: a simulation replays exactly
        self.health = Health()
        self.fairness = Fairness(self._limits.shares)
        self.metrics.measure_fairness(self.fairness)
        self.address = ""  # host:port that clients use
        self.audit: Audit | None = None
        self._rights = api.ctx.rights

    @property
    def ready(self) -> bool:
        return self.health.ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self.health.ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        record = scope["phalanx.audit"] = self.audit.begin(scope) if self.audit is not None else None
        try:
            answer = await self._answer(scope, receive)
        except ApiProblem as problem:
            answer = _problem_answer(problem)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            answer = _problem_answer(InternalError("the server failed on this request: see its log"))
        if self.audit is not None and record is not None and answer.stream is not None:
            self.audit.write(record, answer.code, "ResponseStarted")
        try:
            if answer.stream is not None and scope["method"] == "HEAD":
                await _close(answer.stream)
                await _send(Answer(answer.code, content_type=answer.content_type), send, head=True)
            elif answer.stream is not None:
                await self._send_stream(answer, receive, send)
            else:
                await _send(answer, send, head=scope["method"] == "HEAD")
        finally:
            if answer.on_sent is not None:
                answer.on_sent()
            if self.audit is not None and record is not None and not is_open(scope["path"]):
                self.audit.write(record, answer.code)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path: str = scope["path"]
        method: str = scope["method"]
        raw_query: bytes = scope["query_string"]
        query = dict(parse_qsl(raw_query.decode("latin-1"), keep_blank_values=True)) if raw_query else {}
        if "timeout" in query:
            check_timeout(query)
        if is_open(path):
            return self._open(path, method, query)
        shown = scope.get("state", _NOTHING).get("certificate")
        user = self._auth.user(scope["headers"], shown) if shown else self._auth.user(scope["headers"])
        agent, acting = "", False
        for name, value in scope["headers"]:
            if name == b"user-agent":
                agent = value.decode("latin-1")
            elif name.startswith(IMPERSONATE):
                acting = True
        record: AuditRecord | None = scope.get("phalanx.audit")
        if record is not None:
            record.user = user
        if acting:
            user = impersonated(user, scope["headers"], partial(self._authorize, record))
            if record is not None:
                record.acting = user
        flow = self.fairness.flow(user.name, agent)
        await self.fairness.enter(flow, urgent=path.startswith(LEASES))
        try:
            answer = await self._admitted(scope, receive, query, user, flow)
        except BaseException:
            self.fairness.leave(flow)
            raise
        if answer.on_sent is None:
            answer.on_sent = partial(self.fairness.leave, flow)
        return answer

    async def _admitted(
        self, scope: Scope, receive: Receive, query: Mapping[str, str], user: User, flow: Flow
    ) -> Answer:
        """Authorize and answer a request that fairness has let begin."""
        path: str = scope["path"]
        method: str = scope["method"]
        watched = self._rights is not None or self.audit is not None
        record: AuditRecord | None = scope.get("phalanx.audit")
        route = parse(path)
        if route is None:
            return await self._not_an_object(scope, receive, query, user)
        kind, version = resolve(self._api.ctx.registry, route)
        request = Request(
            verb_of(method, route, kind, query),
            kind,
            version,
            route.namespace,
            route.name,
            route.subresource,
            query,
            user=user,
        )
        if record is not None:
            record.annotations = request.annotations
        if watched:
            self._authorize(record, user, attributes_of(request))
        self._read_headers(request, scope["headers"])
        if route.subresource in CONNECTIONS:
            request.body = scope["query_string"]  # the request is answered from its headers; what follows is no body
        elif method in WITH_BODY:
            request.body = await self._body(receive)
        try:
            if request.verb == "watch" or is_followed(request):
                return await self._watch(request, flow)
            answer = await self._api.handle(request)
        except ApiProblem as problem:
            answer = _problem_answer(problem)
            answer.warnings = request.warnings
        self.metrics.count(request, answer.code)
        return answer

    async def _not_an_object(self, scope: Scope, receive: Receive, query: Mapping[str, str], user: User) -> Answer:
        """Answer paths that name no object: questions to the scheduler, services/proxy, extensions and documents."""
        path: str = scope["path"]
        method: str = scope["method"]
        record: AuditRecord | None = scope.get("phalanx.audit")
        if path in self.questions:
            return await self._question(path, scope, receive, query, user)
        proxied = service_of(path)
        self._authorize(record, user, proxied.attributes(method) if proxied else Attributes(method.lower(), path=path))
        if proxied is not None:
            store = self._api.ctx.store
            if proxied.path in self.questions and proxied.is_scheduler_here(store):
                return await self._question(proxied.path, scope, receive, query, user)
            return await forward(proxied, store, scope, await self._body(receive))
        extension = self.extensions.get(path)
        if extension is not None:
            return Answer(body=await extension(method, path, query, await self._body(receive)))
        download = self.downloads.get(path)
        if download is None:
            return self._document(path, method, query, scope["headers"])
        if method != "GET":
            raise MethodNotAllowed(NOT_ALLOWED)
        return await download()

    async def _question(
        self, path: str, scope: Scope, receive: Receive, query: Mapping[str, str], user: User
    ) -> Answer:
        """Answer a question to the scheduler in this process, for callers that may use its path or read a namespace."""
        method: str = scope["method"]
        asked = Attributes(method.lower(), path=path)
        record: AuditRecord | None = scope.get("phalanx.audit")
        if record is not None:
            record.asked = asked
        access = None
        if self._rights is not None:
            decision = self._rights.decide(user, asked)
            access = None if decision.allowed else UserAccess(self._rights, user)
            if record is not None:
                record.decision = decision
        return Answer(body=await self.questions[path](method, path, query, await self._body(receive), access))

    def _read_headers(self, request: Request, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name == b"accept":
                request.accept = value.decode("latin-1")
            elif name == b"content-type":
                request.content_type = value.decode("latin-1")
            elif name == b"user-agent":
                request.user_agent = value.decode("latin-1")
            elif name == b"content-length" and value.isdigit() and int(value) > self._limits.body_bytes:
                raise too_large(self._limits.body_bytes)

    def _authorize(self, record: AuditRecord | None, user: User, asked: Attributes) -> None:
        """Check that the user may do this, and record the decision for the audit log.

        Raises Forbidden, with the same text as Kubernetes.
        """
        if record is not None and asked.verb != "impersonate":
            record.asked = asked
        if self._rights is None:
            return
        decision = self._rights.decide(user, asked)
        if record is not None:
            record.decision = decision
        if decision.allowed:
            return
        why = refusal(user, asked) + (f": {decision.reason}" if decision.reason else "")
        if asked.path:
            raise Forbidden(f"forbidden: {why}")
        shown = f' "{asked.name}"' if asked.name else ""
        resource = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
        raise Forbidden(
            f"{resource}{shown} is forbidden: {why}", name=asked.name, group=asked.group, kind=asked.resource
        )

    async def _watch(self, request: Request, flow: Flow) -> Answer:
        """Answer a watch, or follow a log. They last long, so they are counted and take no seat."""
        self.fairness.watch(flow)
        try:
            answer = await self._api.handle(request)
        except BaseException:
            self.fairness.unwatch(flow)
            raise
        self.fairness.leave(flow)
        answer.on_sent = partial(self.fairness.unwatch, flow)
        self.metrics.count(request, answer.code)
        return answer

    async def _body(self, receive: Receive) -> bytes:
        """Read the body of a request, up to the size limit.

        Clients that send too slowly are cut off by the protocol.
        """
        message = await receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > self._limits.body_bytes:
                raise too_large(self._limits.body_bytes)
            return body
        whole = bytearray(body)
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the client went away while sending its request")
            whole += message.get("body", b"")
            if len(whole) > self._limits.body_bytes:
                raise too_large(self._limits.body_bytes)
        return bytes(whole)

    def _open(self, path: str, method: str, query: Mapping[str, str]) -> Answer:
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(NOT_ALLOWED)
        if path.startswith("/version"):  # the official Python client and kr8s add a slash
            # Clients that compare clocks read it here; in every answer it would cost more than it is worth.
            date = formatdate(self._api.ctx.clock.now(), usegmt=True)
            return Answer(body=encode(version_info()), headers={"Date": date})
        return self.health.answer(path, query)

    def _document(self, path: str, method: str, query: Mapping[str, str], headers: list[tuple[bytes, bytes]]) -> Answer:
        """Answer a request for something that is not an object: discovery, OpenAPI, metrics."""
        if method not in ("GET", "HEAD"):
            raise NotFound(UNKNOWN) if path.startswith("/api") else MethodNotAllowed(NOT_ALLOWED)
        named = dict(headers)
        parts = path.strip("/").split("/")
        match parts:
            case ["api"] | ["apis"]:
                accept, etag = (named.get(name, b"").decode("latin-1") for name in (b"accept", b"if-none-match"))
                return self._discovery.root(parts[0], negotiate(accept), self.address, etag)
            case ["api", version]:
                return Answer(body=self._discovery.resources("", version))
            case ["apis", group]:
                return Answer(body=self._discovery.group(group))
            case ["apis", group, version]:
                return Answer(body=self._discovery.resources(group, version))
            case ["openapi", "v3", *_]:
                etag = named.get(b"if-none-match", b"").decode("latin-1")
                return openapi_answer(self._openapi, path, query, etag)
            case ["openapi", "v2"]:
                accept, etag = (named.get(name, b"").decode("latin-1") for name in (b"accept", b"if-none-match"))
                return openapi_v2_answer(self._swagger, accept, etag)
            case [""]:
                paths = ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
                paths += [*self._extras, *self.extensions, *self.questions, *self.downloads]
                return Answer(body=encode({"paths": sorted(paths)}))
        extra = self._extras.get(path)
        if extra is None:
            raise NotFound(UNKNOWN)
        return extra()

    async def _send_stream(self, answer: Answer, receive: Receive, send: Send) -> None:
        """Send until the stream ends, the client goes away or the server stops."""
        task = asyncio.current_task()
        assert task is not None
        gone = asyncio.ensure_future(_until_gone(receive))

        def stop(_: object) -> None:
            task.cancel()

        gone.add_done_callback(stop)
        self._streams[task] = None
        stream = answer.stream
        assert stream is not None
        try:
            await send({"type": "http.response.start", "status": answer.code, "headers": _headers(answer)})
            # The headers must reach a client that waits for them before the first event.
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            async for piece in stream:
                for start in range(0, len(piece), SENT_AT_ONCE):  # a connection buffers what is sent at once
                    part = piece[start : start + SENT_AT_ONCE]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                if len(piece) > YIELD_BYTES:
                    # More pieces follow, and sending to a client that is gone never waits: without a
                    # turn for other requests a disconnect would not be noticed before all of it is encoded.
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        finally:
            self._streams.pop(task, None)
            gone.remove_done_callback(stop)
            await _close(stream)
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            gone.cancel()

    def close_streams(self) -> None:
        """End every watch; its client sees the end of the response and watches again."""
        for task in tuple(self._streams):
            task.cancel()


async def _close(stream: object) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        with suppress(asyncio.CancelledError):
            await close()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _problem_answer(problem: ApiProblem) -> Answer:
    headers: dict[str, str] = {}
    if problem.retry_after:
        headers["Retry-After"] = str(problem.retry_after)
    if problem.http_code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.http_code == 413:
        headers["Connection"] = "close"  # the rest of the body is not read
    return Answer(problem.http_code, encode(problem.status()), headers=headers)


def _headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"cache-control", b"no-cache, private"),
    ]
    if answer.headers:
        if "Cache-Control" in answer.headers:
            headers.pop()
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    for warning in answer.warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        safe = "".join(char if char.isprintable() else " " for char in text)
        headers.append((b"warning", b'299 - "%b"' % safe.encode("utf-8")))
    return headers


async def _send(answer: Answer, send: Send, *, head: bool = False) -> None:
    """Send an answer over ASGI, whole or in pieces."""
    headers = _headers(answer)
    if answer.chunks is None:
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.code, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head else answer.body})
        return
    await send({"type": "http.response.start", "status": answer.code, "headers": headers})
    for piece in answer.chunks:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})
