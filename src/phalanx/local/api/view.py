"""Convert a stored object to the version a client requested, or to its metadata.

The bytes of the store go out untouched when the client uses the storage version, which is nearly always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import yaml as yaml_codec

from phalanx.base.errors import NotAcceptable
from phalanx.model.kinds import Json as Json
from phalanx.model.kinds import Kind, Version

View = Callable[[bytes], bytes]  # stored value -> encoded object of one version

decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_decode_metadata = msgspec.json.Decoder(_Metadata).decode


def api_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


def same(value: bytes) -> bytes:
    return value


def view_of(kind: Kind, version: Version) -> View:
    if version.name == kind.storage_version and version.from_storage is None:
        return same

    def convert(value: bytes) -> bytes:
        return encode(object_in(kind, version, value))

    return convert


def item_of(kind: Kind, version: Version) -> View:
    """Return the view that shows an object as an item of a list.

    Items of Go's types do not repeat apiVersion and kind, which the list has already; custom resources do.
    """
    view, head = view_of(kind, version), item_head(kind, version)
    if not head:
        return view
    start = len(head)

    def shorter(value: bytes) -> bytes:
        value = view(value)
        return b"{" + value[start:] if value.startswith(head) else value

    return shorter


def item_head(kind: Kind, version: Version) -> bytes:
    """Return the bytes that objects begin with and items of a list do not; none for custom resources."""
    if not in_protobuf(version):
        return b""
    return encode({"apiVersion": api_version(kind.group, version.name), "kind": kind.kind})[:-1] + b","


def in_protobuf(version: Version) -> bool:
    """Return True if a kind is one of Go's types, which have a protobuf form.

    Custom resources have none.
    """
    metadata = version.schema.fields.get("metadata")
    return version.openapi is None and metadata is not None and bool(metadata.number)


def object_in(kind: Kind, version: Version, value: bytes) -> Json:
    """Decode an object in a version."""
    obj: Json = decode(value)
    if version.from_storage is not None:
        obj = version.from_storage(obj)
    if version.name != kind.storage_version:
        # apiVersion and kind stay first: users read these documents.
        obj = {"apiVersion": api_version(kind.group, version.name), "kind": kind.kind} | {
            key: value for key, value in obj.items() if key not in ("apiVersion", "kind")
        }
    return obj


def metadata_of(value: bytes) -> bytes:
    """Return the encoded metadata of an encoded object."""
    return bytes(_decode_metadata(value).metadata)


def revision_of(value: bytes) -> str:
    """Return the resourceVersion of an encoded object."""
    return str(decode(metadata_of(value)).get("resourceVersion", ""))


def partial(value: bytes, meta_version: str = "v1") -> bytes:
    """Return the PartialObjectMetadata of an encoded object."""
    head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/%s","metadata":' % meta_version.encode()
    return head + metadata_of(value) + b"}"


def with_revision(value: bytes, revision: int) -> bytes:
    """Return the same object with another resourceVersion."""
    obj: Json = decode(value)
    obj["metadata"]["resourceVersion"] = str(revision)
    return encode(obj)


YAML_BYTES = 4 << 20  # of JSON; writing YAML takes a hundred times longer than sending JSON


async def to_yaml(body: bytes) -> bytes:
    """Encode a long answer in a thread; refuse a very long one."""
    if len(body) > YAML_BYTES:
        raise NotAcceptable(f"the answer has {len(body)} bytes, too many for YAML: ask for JSON or use limit=")
    if len(body) > 16 << 10:
        return await asyncio.get_running_loop().run_in_executor(_WRITERS, _dump, body)
    return _dump(body)


_WRITERS = ThreadPoolExecutor(1, "phalanx-yaml")


def _dump(body: bytes) -> bytes:
    dumper = getattr(yaml_codec, "CSafeDumper", yaml_codec.SafeDumper)
    text: str = yaml_codec.dump(decode(body), Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text.encode()
