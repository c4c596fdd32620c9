"""The dashboard's paths: the page and its files are public, data needs a login.

The same site stands alone on a loopback port (`phalanx up`) and below /dashboard/ at a scheduler's health address.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import mimetypes
from functools import cache
from importlib.resources import files

import msgspec
from aiohttp import web

from phalanx.base.errors import (
    ApiProblem,
    BadRequest,
    Forbidden,
    InternalError,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
)
from phalanx.web import guard
from phalanx.web.feed import Feed
from phalanx.web.login import ASK, LOOK, Login
from phalanx.web.questions import MOST_TEXT, Questions
from phalanx.web.tokens import LoginTokens

log = logging.getLogger(__name__)

_PACKED = 1 << 11  # answers from so many bytes on are compressed


class Site:
    def __init__(
        self, feed: Feed, questions: Questions, login: Login, *, prefix: str = "", tokens: LoginTokens | None = None
    ) -> None:
        """`tokens`: users may log in with a token of the API server."""
        self._feed, self._questions, self._login = feed, questions, login
        self._prefix, self._tokens = prefix, tokens
        asked = questions
        self._answers = {
            "api/node": asked.node,
            "api/members": asked.members,
            "api/devices": asked.devices,
            "api/why": asked.why,
            "api/plan": asked.plan,
            "api/manifest": asked.manifest,
            "api/events": asked.events,
            "api/history": asked.history,
            "api/object": asked.object,
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            guard.check(request)
            return await self._answer(request, request.path.removeprefix(self._prefix).lstrip("/"))
        except ApiProblem as problem:
            return _reply(msgspec.json.encode(problem.status()), status=problem.http_code)
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            failure = InternalError("the dashboard failed on this request: see the log of the scheduler")
            return _reply(msgspec.json.encode(failure.status()), status=500)

    async def _answer(self, request: web.Request, path: str) -> web.StreamResponse:
        if path == "api/session":
            return await self._session(request)
        if path == "api/whatif":
            _method(request, "POST")
            if await self._may(request) != ASK:
                raise Forbidden(
                    "this login may look, but not ask what-if: that takes the verb post on /phalanx/v1/whatif"
                )
            return _reply(await self._questions.whatif(await _body(request)), request)
        _method(request, "GET")
        if not path.startswith("api/"):
            return _file(path or "index.html", request)
        await self._may(request)
        if path == "api/snapshot":
            return _reply(await self._feed.snapshot(), request)
        if path == "api/feed":
            return await self._stream(request)
        answer = self._answers.get(path)
        if answer is None:
            raise NotFound(f"the dashboard has no {path[:100]!r}")
        return _reply(await answer(request.query), request)

    # ---- login

    async def _may(self, request: web.Request) -> str:
        cookie = request.cookies.get(_cookie(request), "")
        may = self._login.may(cookie)
        return may if self._tokens is None else await self._tokens.may(self._login.key(cookie))

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return _reply(msgspec.json.encode({"may": await self._may(request), "tokens": self._tokens is not None}))
        if request.method == "DELETE":
            await self._may(request)
            cookie = request.cookies[_cookie(request)]
            self._login.leave(cookie)
            if self._tokens is not None:
                self._tokens.leave(self._login.key(cookie))
            response = _reply(b"{}")
            response.del_cookie(_cookie(request), path="/")
            return response
        _method(request, "POST")
        try:
            sent = msgspec.json.decode(await _body(request), type=dict[str, str])
        except msgspec.DecodeError:
            raise BadRequest("the login could not be read") from None
        if self._tokens is not None and sent.get("token"):
            cookie = self._login.cookie(*await self._tokens.enter(sent["token"]))
        elif self._tokens is None and sent.get("once"):
            cookie = self._login.redeem(sent["once"])
        else:
            raise Unauthorized("you are not logged in here")
        response = _reply(b"{}")
        response.set_cookie(
            _cookie(request),
            cookie,
            path="/",
            httponly=True,
            samesite="Strict",
            max_age=int(self._login.session_seconds),
        )
        return response

    # ---- live

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**guard.HEADERS, "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        after = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        follow = self._feed.follow(after)
        try:
            async for text in follow:
                await self._may(request)  # the end of a login ends its streams, and the page says so
                async with asyncio.timeout(30):  # a page that reads nothing for this time is not open
                    await response.write(text)
        except (TimeoutError, ConnectionResetError, Unauthorized):
            pass
        finally:
            await follow.aclose()  # type: ignore[attr-defined]
        return response


def _cookie(request: web.Request) -> str:
    """Return the name of the cookie, which contains the port.

    Browsers share cookies between ports: with one name, two clusters on one machine would log each other out.
    """
    return f"phalanx-{request.url.port or 80}"


def _method(request: web.Request, wanted: str) -> None:
    if request.method != wanted and not (wanted == "GET" and request.method == "HEAD"):
        raise MethodNotAllowed("the server does not allow this method on the requested resource")


async def _body(request: web.Request) -> bytes:
    if (request.content_length or 0) > 2 * MOST_TEXT:
        raise BadRequest(f"the body of a question may have {2 * MOST_TEXT} bytes")
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise BadRequest(f"the body of a question may have {2 * MOST_TEXT} bytes") from None


def _reply(body: bytes, request: web.Request | None = None, *, status: int = 200) -> web.Response:
    headers = {**guard.HEADERS, "Cache-Control": "no-store", "Content-Type": "application/json"}
    if request is not None and len(body) >= _PACKED and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, 1)
    return web.Response(body=body, status=status, headers=headers)


@cache
def _static() -> dict[str, tuple[bytes, str]]:
    """Read every file of the page once.

    Only these files are served, so no path can reach another file.
    """
    mimetypes.add_type("text/javascript", ".js")
    found: dict[str, tuple[bytes, str]] = {}
    for entry in files("phalanx.web").joinpath("static").iterdir():
        if entry.is_file():
            found[entry.name] = (entry.read_bytes(), mimetypes.guess_type(entry.name)[0] or "application/octet-stream")
    return found


def _file(name: str, request: web.Request) -> web.Response:
    found = _static().get(name)
    if found is None:
        raise NotFound(f"the dashboard has no {name[:100]!r}")
    body, type_ = found
    headers = {**guard.HEADERS, "Cache-Control": "no-cache", "Content-Type": f"{type_}; charset=utf-8"}
    if len(body) >= _PACKED and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, 6)
    return web.Response(body=body, headers=headers)


__all__ = ["ASK", "LOOK", "Site"]
