"""What the store keeps with each encoded object, so that selecting, collecting and watching need no decoding.

Must stay small: one Index exists per stored object. Values that only some field selectors ask for are computed on
the first ask and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from sys import intern
from typing import Any

import msgspec

from phalanx.model.kinds import Kind
from phalanx.model.selectable import Show, Shown


class IndexedOwner(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One owner reference."""

    uid: str = ""
    kind: str = ""
    name: str = ""
    api_version: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Index(msgspec.Struct, gc=False, rename="camel"):
    """The part of metadata that other parts ask for all the time."""

    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[IndexedOwner] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    # Selectable fields that were asked for, each followed by its value; see `field_value`. The name cannot appear in
    # metadata.
    selected: tuple[str, ...] = msgspec.field(default=(), name=" selected")


class _Peek(msgspec.Struct, gc=False):
    metadata: Index = msgspec.field(default_factory=Index)


_decode_index = msgspec.json.Decoder(_Peek, strict=False).decode
_decode = msgspec.json.Decoder().decode


def index_of(resource: str, value: bytes) -> Index:
    """Decode the index of a value; this is the store's Indexer.

    Custom resources may hold anything outside metadata, so nothing else is typed.
    """
    index = _decode_index(value).metadata
    index.uid = intern(index.uid)  # later states of the object, and other parts of the process, have it too
    return index


def index_in(obj: dict[str, Any]) -> Index | None:
    """Build the index from a decoded object; None if only the encoded value can give it."""
    try:
        index = msgspec.convert(obj["metadata"], Index, strict=False)
    except msgspec.ValidationError:
        return None
    index.uid = intern(index.uid)
    return index


def field_value(kind: Kind, label: str, index: Index, value: bytes) -> str:
    """Return the text of a selectable field other than metadata.name and metadata.namespace."""
    known = index.selected
    if label in known[::2]:
        return known[2 * known[::2].index(label) + 1]
    read = kind.selectable.get(label)
    if read is None:
        return ""
    text = intern(_text(read, value))  # a node's name or a phase: many have the same
    index.selected = (*known, label, text)
    return text


def _text(read: Show, value: bytes) -> str:
    if isinstance(read, Shown):
        try:
            at: Any = _reader(read.path)(value)
        except msgspec.ValidationError:  # something else is where an object should be
            return read(_decode(value))
        for name in read.path:
            at = getattr(at, name) if at is not None else None
        return read.text(at)
    return read(_decode(value))


@cache
def _reader(path: tuple[str, ...]) -> Callable[[bytes], Any]:
    """Return a function that decodes the field at a path and nothing else."""
    type_: Any = Any
    for name in reversed(path):
        type_ = msgspec.defstruct("Selected", [(name, type_ | None if type_ is not Any else Any, None)], gc=False)
    return msgspec.json.Decoder(type_).decode
