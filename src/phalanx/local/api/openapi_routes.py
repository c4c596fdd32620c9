"""OpenAPI v3: the index and one document per group and version, cacheable for ever by their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.base.errors import NotFound
from phalanx.local.api.context import Context
from phalanx.local.api.discovery import Discovery
from phalanx.local.api.request import Answer
from phalanx.local.api.route import UNKNOWN
from phalanx.local.api.view import encode
from phalanx.model.kinds import Registry

Document = Callable[[Registry, str, str], Mapping[str, Any]]  # (registry, group, version) -> OpenAPI document


class OpenApi:
    def __init__(self, ctx: Context, discovery: Discovery, document: Document) -> None:
        self._ctx, self._discovery, self._document = ctx, discovery, document
        self._generation = -1
        self._texts: dict[str, tuple[bytes, str]] = {}

    def answer(self, path: str, query: Mapping[str, str], etag: str) -> Answer:
        if self._generation != self._ctx.registry.generation:
            self._texts.clear()
            self._generation = self._ctx.registry.generation
        inner = path.removeprefix("/openapi/v3").strip("/")
        if not inner:
            return self._index()
        text, digest = self._text(inner)
        headers = {"ETag": f'"{digest}"', "Vary": "Accept"}
        wanted = query.get("hash", "")
        if wanted and wanted != digest:
            # The client holds an old index: send it to the present document.
            return Answer(301, headers={"Location": f"/openapi/v3/{inner}?hash={digest}"})
        if wanted:
            # kubectl keeps such an answer on disk instead of fetching megabytes before every apply.
            headers |= {"Cache-Control": "public, immutable", "Expires": "Fri, 31 Dec 2100 23:59:59 GMT"}
        if etag == f'"{digest}"':
            return Answer(304, headers=headers)
        return Answer(body=text, headers=headers)

    def _paths(self) -> list[tuple[str, str, str]]:
        return [
            (f"apis/{group}/{version}" if group else f"api/{version}", group, version)
            for group, versions in self._discovery.served().items()
            for version in versions
        ]

    def _index(self) -> Answer:
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={self._text(path)[1]}"}
            for path, _, _ in self._paths()
        }
        return Answer(body=encode({"paths": paths}))

    def _text(self, inner: str) -> tuple[bytes, str]:
        known = self._texts.get(inner)
        if known is None:
            for path, group, version in self._paths():
                if path == inner:
                    text = encode(self._document(self._ctx.registry, group, version))
                    known = self._texts[inner] = (text, hashlib.sha512(text).hexdigest().upper())
                    break
            else:
                raise NotFound(UNKNOWN)
        return known
