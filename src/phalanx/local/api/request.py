"""What a request is once the path is understood, and what an answer is. Shared by reading, writing and transport."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from phalanx.base.errors import BadRequest
from phalanx.model.kinds import Kind, Version

_NUMBER = re.compile(r"[+-]?[0-9]+")
MOST_DIGITS = 20  # of a number of 64 bits with its sign


class User(msgspec.Struct, frozen=True):
    name: str = "phalanx:admin"
    uid: str = ""
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class Request(msgspec.Struct):
    verb: str  # get, list, watch, create, update, patch, delete, deletecollection
    kind: Kind
    version: Version  # the version the client uses
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = msgspec.field(default_factory=dict)  # last value wins, as upstream
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = "application/json"
    user_agent: str = ""
    user: User = msgspec.field(default_factory=User)
    repeated: tuple[str, ...] | None = None  # repeated keys of the body, when it was made JSON before
    warnings: tuple[str, ...] = ()  # warnings of webhooks and policies for the client
    annotations: dict[str, str] = msgspec.field(default_factory=dict)  # what policies want in the audit log


@dataclass(slots=True)
class Answer:
    """One answer. `body` is encoded JSON; a long one comes as `chunks`; `stream` yields encoded watch lines."""

    code: int = 200
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    content_type: str = "application/json"
    warnings: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] | None = None
    on_sent: Callable[[], None] | None = None  # called once, also when sending fails

    def whole(self) -> bytes:
        """Return the body in one piece."""
        return self.body if self.chunks is None else b"".join(self.chunks)


def query_flag(query: Mapping[str, str], name: str) -> bool:
    """Return True if a parameter is there and is neither `0` nor `false`, as in kube-apiserver."""
    return query.get(name, "0").lower() not in ("false", "0")


def parse_number(query: Mapping[str, str], name: str) -> int:
    """Return a number of the query, 0 if it is unset or, as in Kubernetes, negative. Raises BadRequest."""
    return max(parse_signed(query, name), 0)


def parse_signed(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not _NUMBER.fullmatch(text):
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    number = int(text) if len(text) <= MOST_DIGITS else 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise BadRequest(f'strconv.ParseInt: parsing "{text}": value out of range')
    return number
