"""Index what the store keeps with each encoded object, so that selecting, collecting and watching need no decoding.

One Index exists per stored object, so it must stay small. Values that only some field selectors need are computed on
first use and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from sys import intern
from typing import Any

import msgspec

from phalanx.base.errors import BadRequest
from phalanx.local.store.contract import Entry
from phalanx.model.builtin import Show, Shown
from phalanx.model.kinds import Kind
from phalanx.model.selectors import BadSelector, FieldTerm, LabelMatcher, parse_fields, parse_labels


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
    index.uid = intern(index.uid)  # shared with later states of the object and other parts of the process
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
        except msgspec.ValidationError:  # the value is not an object
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


class Selection:
    """What one list or watch asked for."""

    def __init__(self, kind: Kind, labels: LabelMatcher, fields: tuple[FieldTerm, ...], name: str, namespace: str):
        self._kind = kind
        self._labels = None if labels.everything else labels
        self._fields = fields
        self.name = name  # "" or the only name that can match
        self.namespace = namespace
        self.everything = self._labels is None and not fields
        self.cost = 1 + len(labels.requirements) + 4 * len(fields)  # comparisons per entry, about

    @classmethod
    def of(cls, kind: Kind, query: Mapping[str, str], name: str = "") -> Selection:
        """Build the selection from the query. Raises BadRequest.

        `name` is the name in the path (watches of a single object).
        """
        try:
            labels = parse_labels(query.get("labelSelector", ""))
            terms = parse_fields(query.get("fieldSelector", "")).terms
        except BadSelector as problem:
            raise BadRequest(str(problem)) from None
        if name:
            terms = (*terms, FieldTerm("metadata.name", True, name))
        namespace = only = ""
        for term in terms:
            if term.path == "metadata.name":
                only = only or (term.value if term.equal else "")
            elif term.path == "metadata.namespace" and kind.namespaced:
                namespace = namespace or (term.value if term.equal else "")
            elif term.path not in kind.selectable:
                raise BadRequest(f'field label not supported: "{term.path}"')
        return cls(kind, labels, terms, only, namespace)

    def matches(self, entry: Entry) -> bool:
        if self._labels is not None and not self._labels.matches(entry.index.labels):
            return False
        for term in self._fields:
            if term.path == "metadata.name":
                found = entry.key[2]
            elif term.path == "metadata.namespace":
                found = entry.key[1]
            else:
                found = field_value(self._kind, term.path, entry.index, entry.value)
            if (found == term.value) != term.equal:
                return False
        return True
