"""OpenAPI v3 over HTTP: the index, and one document per group and version that clients may keep by its hash."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.base.errors import NotFound
from phalanx.local.api.request import Answer
from phalanx.local.api.route import UNKNOWN
from phalanx.model.openapi import OpenApi

ROOT = "/openapi/v3"


def openapi_answer(documents: OpenApi, path: str, query: Mapping[str, str], etag: str) -> Answer:
    inner = path.removeprefix(ROOT).strip("/")
    if not inner:
        return Answer(body=documents.index())
    match inner.split("/"):
        case ["api", version]:
            found = documents.document("", version)
        case ["apis", group, version]:
            found = documents.document(group, version)
        case _:
            found = None
    if found is None:
        raise NotFound(UNKNOWN)
    text, digest = found
    headers = {"ETag": f'"{digest}"', "Vary": "Accept"}
    wanted = query.get("hash", "")
    if wanted and wanted != digest:
        # The client holds an old index: send it to the present document.
        return Answer(301, headers={"Location": f"{ROOT}/{inner}?hash={digest}"})
    if wanted:
        # kubectl keeps such an answer on disk instead of fetching megabytes before every apply.
        headers |= {"Cache-Control": "public, immutable", "Expires": "Fri, 31 Dec 2100 23:59:59 GMT"}
    if etag == headers["ETag"]:
        return Answer(304, headers=headers)
    return Answer(body=text, headers=headers)
