"""Answers as Kubernetes protobuf, made from the JSON that is stored, for clients that accept nothing else
(metadata alone: for those that like it best).

Custom resources have no protobuf form but of their metadata, here as elsewhere. Problems stay JSON, which clients see
by the content type.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from phalanx.base.errors import NotAcceptable
from phalanx.base.well_known import PROTOBUF
from phalanx.local.api.negotiate import Shape
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.view import Json, decode, in_protobuf
from phalanx.model import tables
from phalanx.model.builtin import body_schema
from phalanx.model.protobuf_writer import Known, message_of_json, watch_frame, write, write_list
from phalanx.model.schema import Object

METADATA = tables.record("meta/v1.PartialObjectMetadata")
BATCH = 64  # objects handled before other tasks of the event loop run


def check(request: Request, shape: Shape) -> None:
    """Check before anything is done. Everything has metadata."""
    if shape == "object" and not in_protobuf(request.version):
        raise NotAcceptable("only the following media types are accepted: application/json, application/yaml")


async def converted(request: Request, answer: Answer) -> Answer:
    if not answer.content_type.startswith("application/json"):
        return answer  # logs are always text
    body = answer.whole()
    answer.chunks, answer.content_type = None, PROTOBUF
    if request.verb in ("list", "deletecollection") and (found := _list(body)).items is not None:
        items: list[bytes] = []
        known: Known = {}
        schema = METADATA if found.kind == "PartialObjectMetadataList" else request.version.schema
        for at, item in enumerate(found.items):
            if at % BATCH == BATCH - 1:
                await asyncio.sleep(0)
            items.append(message_of_json(item, schema, known))
        answer.body = write_list(found.apiVersion, found.kind, found.metadata, items)
    else:
        obj: Json = decode(body)
        answer.body = write(obj, _schema(request, obj))
    return answer


class _List(msgspec.Struct):
    apiVersion: str = ""
    kind: str = ""
    metadata: Json = {}
    items: list[msgspec.Raw] | None = None


_list = msgspec.json.Decoder(_List).decode


async def frames(
    request: Request, events: AsyncGenerator[list[tuple[str, bytes]], None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for batch in events:
            yield b"".join(frame(request, event, value) for event, value in batch)


def frame(request: Request, event: str, value: bytes) -> bytes:
    obj: Json = decode(value)
    return watch_frame(event, write(obj, _schema(request, obj)))


def _schema(request: Request, obj: Json) -> Object:
    if obj.get("kind") == request.kind.kind:
        return request.version.schema
    if obj.get("kind") == "Status":
        return tables.record("meta/v1.Status")
    if obj.get("kind") == "PartialObjectMetadata":
        return METADATA
    group, _, version = str(obj.get("apiVersion") or "").rpartition("/")
    found = body_schema(group, version, str(obj.get("kind")))
    if found is None:
        raise NotAcceptable("only the following media types are accepted: application/json, application/yaml")
    return found
