"""Decode request bodies to JSON values by content type: JSON, YAML or Kubernetes protobuf.

Only bytes to values: what the values mean is `conform`'s and the rules' business. Broken input is a BadRequest, never
another exception.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec

from phalanx.base.errors import BadRequest, UnsupportedMediaType
from phalanx.base.well_known import PROTOBUF
from phalanx.model import protobuf, yaml_body
from phalanx.model.conform import conform
from phalanx.model.kinds import Json
from phalanx.model.schema import Object

__all__ = ["MAX_DEPTH", "PROTOBUF", "conform", "in_order", "media_type", "parse"]

MAX_DEPTH = yaml_body.MAX_DEPTH
MAX_VALUES = yaml_body.MAX_VALUES  # the largest real objects (definitions with long schemas) have half as many

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def media_type(content_type: str) -> str:
    """Return the media type of a Content-Type header in lower case, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def parse(
    body: bytes, content_type: str, schema: Object | None = None, *, duplicates: bool = False
) -> tuple[Json, list[str]]:
    """Return the object in `body`, and with `duplicates` a text for every repeated key.

    The text is 'duplicate field "spec.x"' in JSON and 'line 9: key "x" already set in map' in YAML, as in Kubernetes.

    `schema` is needed for protobuf only: it says what the field numbers mean.
    """
    kind = media_type(content_type) or "application/json"
    repeated: list[str] = []
    found: Any
    if kind == "application/json" or kind.endswith("+json"):
        found = _json(body)
        if duplicates:
            repeated = _repeated(body)
    elif kind == "application/yaml" or kind.endswith("+yaml"):
        found = _yaml(body, repeated if duplicates else None)
    elif kind == PROTOBUF:
        found = protobuf.decode(body, schema)
        _check_size(body, found, "protobuf")
    else:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: "
            f"application/json, application/yaml, {PROTOBUF}"
        )
    if not isinstance(found, dict):
        raise BadRequest(f"the body of the request must be an object, found {_kind(found)}")
    return found, repeated


def _json(body: bytes) -> Any:
    try:
        found = _decode(body)
    except RecursionError:
        raise BadRequest(f"error parsing JSON: nested deeper than {MAX_DEPTH} levels") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        if not body.strip():
            raise BadRequest("the body of the request is empty") from None
        raise BadRequest(f"error parsing JSON: {problem}") from None
    _check_size(body, found, "JSON")
    return found


def _check_size(body: bytes, found: Any, format_: str) -> None:
    # Counting bytes is cheap and nearly always settles it.
    brackets = body.count(b"{") + body.count(b"[")
    few = len(body) < MAX_VALUES or brackets + body.count(b",") < MAX_VALUES
    if format_ == "JSON" and brackets <= MAX_DEPTH and few:
        return
    _measure(found, format_)


def _measure(value: Any, format_: str) -> None:
    """Refuse a value that is nested too deep or has too many values; stop at the first one too many."""
    level = [value]
    count = 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            if count + len(below) > MAX_VALUES:
                raise yaml_body.too_many_values(format_)
        if not below:
            return
        count += len(below)
        level = below
    if any(isinstance(each, dict | list) for each in level):
        raise BadRequest(f"error parsing {format_}: nested deeper than {MAX_DEPTH} levels")


def _yaml(body: bytes, repeated: list[str] | None) -> Any:
    if body.lstrip()[:1] == b"{":  # kubectl sends JSON under the name of YAML, and YAML is slow
        try:
            found = _json(body)
        except BadRequest:
            return yaml_body.read(body, repeated)
        if repeated is not None:
            repeated.extend(_repeated(body))
        return found
    if not body.strip():
        raise BadRequest("the body of the request is empty")
    return yaml_body.read(body, repeated)


class _DuplicateKeys(list[tuple[str, Any]]):
    """An object some key of which is written twice."""


def _repeated(body: bytes, unknown: Collection[str] = ()) -> list[str]:
    """Return a text for each repeated key of a valid JSON body of limited depth."""
    seen = False

    def pairs(found: list[tuple[str, Any]]) -> Any:
        nonlocal seen
        plain = dict(found)
        if len(plain) != len(found):
            seen = True
            return _DuplicateKeys(found)
        return plain

    value = json.loads(body, object_pairs_hook=pairs)
    texts: list[str] = []
    if seen:
        _name_repeated(value, "", texts, unknown)
    return texts


def in_order(body: bytes, unknown: Collection[str]) -> list[str]:
    """Return texts for the repeated and unknown fields of a JSON body, in the order of the body."""
    return _repeated(body, unknown)


def _name_repeated(value: Any, path: str, texts: list[str], unknown: Collection[str]) -> None:
    if isinstance(value, _DuplicateKeys | dict):
        names: set[str] = set()
        for name, inner in value if isinstance(value, _DuplicateKeys) else value.items():
            at = f"{path}.{name}" if path else name
            not_defined = f'unknown field "{at}"'
            if not_defined in unknown:  # reported once, without its content
                if name not in names:
                    texts.append(not_defined)
                names.add(name)
                continue
            if name in names:
                texts.append(f'duplicate field "{at}"')
            names.add(name)
            _name_repeated(inner, at, texts, unknown)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _name_repeated(inner, f"{path}[{index}]", texts, unknown)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a string"
    if value is None:
        return "null"
    return "true or false" if isinstance(value, bool) else "a number"


APART_YAML = 16 << 10  # bytes; libyaml creates a Python object for every word
APART_PROTOBUF = 64 << 10


def is_slow(body: bytes, content_type: str) -> bool:
    """Return True if parsing takes long enough to run in a thread. JSON never does."""
    kind = media_type(content_type)
    if kind == PROTOBUF:
        return len(body) > APART_PROTOBUF
    return kind.endswith("yaml") and len(body) > APART_YAML and body.lstrip()[:1] != b"{"


def as_json(body: bytes, content_type: str, schema: Object | None, *, duplicates: bool) -> tuple[bytes, list[str]]:
    """Return the object in `body` as JSON, and texts for its repeated keys.

    This lets the slow part of decoding happen in another thread.
    """
    found, repeated = parse(body, content_type, schema, duplicates=duplicates)
    return _encode(found), repeated
