"""OpenAPI over HTTP: the v3 index, and one document per group and version that clients may keep by its hash.

The v2 document has the definitions of all kinds and no paths. kubectl fetches it as a protobuf message before it sends
a `kind: List` or a kind that it does not find in v3, and gives up on the whole file when there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.base.errors import NotFound
from phalanx.local.api.request import Answer
from phalanx.local.api.route import UNKNOWN
from phalanx.model.openapi import OpenApi
from phalanx.model.openapi_v2 import Swagger

ROOT = "/openapi/v3"
_V2_ASKED = "proto-openapi.spec.v2"  # kubectl takes no other form; clients write @v1.0 or .v1.0 after it
# Not the @v1.0 that clients ask with: their own parser of content types refuses it.
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def openapi_v2_answer(swagger: Swagger, accept: str, etag: str) -> Answer:
    headers = {"Vary": "Accept"}
    if _V2_ASKED in accept:
        return Answer(body=swagger.message(), content_type=V2_PROTOBUF, headers=headers)
    text, digest = swagger.document()
    headers["ETag"] = f'"{digest}"'
    return Answer(304, headers=headers) if etag == headers["ETag"] else Answer(body=text, headers=headers)


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
