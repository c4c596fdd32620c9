"""Reads one YAML document as Kubernetes does: JSON's types, text keys, no dates, nothing that grows when expanded.

One pass over the parser's events, without recursion: the work is linear in the text, and a document that is too deep,
too long or too fond of aliases is refused at the event that shows it, before the rest is looked at.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import yaml

from phalanx.base.errors import BadRequest, RequestEntityTooLarge
from phalanx.model.kinds import clone

MAX_DEPTH = 200  # levels of nesting; recursion in every later step stays far from Python's limit
MAX_ALIASES = 100
MAX_FILE = 32 << 20  # bytes of a file with many documents
MAX_DOCUMENTS = 10_000
MAX_VALUES = 50_000  # members and items, after aliases are expanded; see `decode.MAX_VALUES`

if not yaml.__with_libyaml__:  # pragma: no cover - wheels of PyYAML always bring it
    raise ImportError("PyYAML was built without libyaml, which Phalanx needs")

_TAG = "tag:yaml.org,2002:"
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE = frozenset(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_WORD_STARTS = frozenset("~nNyYtToOfF")
_NUMBER_STARTS = frozenset("-+.0123456789")
# Dates are text in Kubernetes; base 60 numbers were never meant ("1:30" in a port map).
_INT = re.compile(r"[-+]?(?:0b[01]+|0x[0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_NOT_FINITE = frozenset((".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"))
_MERGE = object()  # the key `<<`
_NO_KEY = object()


class _Anchor(NamedTuple):
    value: Any
    values: int  # how many it counts
    height: int  # levels of nesting in it


class _Frame:
    """A mapping or list that is being read."""

    __slots__ = ("anchor", "before", "height", "key", "merged", "value")

    def __init__(self, value: dict[str, Any] | list[Any], anchor: str | None, before: int) -> None:
        self.value = value
        self.anchor = anchor
        self.before = before  # values counted when it began
        self.key: Any = _NO_KEY  # of a mapping: the key whose value comes next
        self.height = 1
        self.merged: list[dict[str, Any]] = []


def read(body: bytes, duplicates: list[str] | None = None) -> Any:
    """Return the document as JSON values.

    Of repeated keys the last one counts, and `duplicates` gets a text for each.
    """
    found = _parse(body, duplicates, most=1)
    return found[-1] if found else None


def read_all(body: bytes) -> list[Any]:
    """Return every document of a file that a user names (manifests, a kubeconfig).

    Each document has the limits of a request body.
    """
    if len(body) > MAX_FILE:
        raise RequestEntityTooLarge(f"error parsing YAML: the file is larger than {MAX_FILE >> 20} MiB: split it")
    return _parse(body, None, most=MAX_DOCUMENTS)


def _parse(body: bytes, duplicates: list[str] | None, most: int) -> list[Any]:
    parser = None
    try:
        parser = yaml.CSafeLoader(body)
        return _Builder(parser, duplicates, most).documents()
    except yaml.YAMLError as problem:
        raise BadRequest(f"error parsing YAML: {_one_line(problem)}") from None
    except (ValueError, OverflowError, UnicodeError) as problem:
        raise BadRequest(f"error parsing YAML: {problem}") from None
    finally:
        if parser is not None:
            parser.dispose()


def too_many_values(format_: str) -> RequestEntityTooLarge:
    """Return the error for a body with too many values.

    The work of a write depends on the number of values, not of bytes.
    """
    return RequestEntityTooLarge(f"error parsing {format_}: more than {MAX_VALUES} values in one body: split it")


def _refused(why: str) -> BadRequest:
    return BadRequest(f"error parsing YAML: {why}")


def _one_line(problem: yaml.YAMLError) -> str:
    mark = getattr(problem, "problem_mark", None)
    text = getattr(problem, "problem", None) or str(problem).split("\n", 1)[0]
    return f"line {mark.line + 1}: {text}" if mark is not None else text


class _Builder:
    """Builds values from YAML events and enforces the limits."""

    def __init__(self, parser: yaml.CSafeLoader, duplicates: list[str] | None, most: int) -> None:
        self._most = most  # documents
        self._next = parser.get_event
        self._duplicates = duplicates
        self._frames: list[_Frame] = []
        self._anchors: dict[str, _Anchor] = {}
        self._values = 0
        self._aliases = 0
        self._found: Any = None
        self._line = 0  # of the last scalar, counted from 0

    def documents(self) -> list[Any]:
        found: list[Any] = []
        while True:
            event: Any = self._next()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._count(1)
                self._line = event.start_mark.line
                value = _scalar(event)
                if event.anchor is not None:
                    self._anchors[event.anchor] = _Anchor(value, 1, 0)
                self._take(value, 0)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._begin(event, {} if kind is yaml.MappingStartEvent else [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._end()
            elif kind is yaml.AliasEvent:
                self._alias(event.anchor)
            elif kind is yaml.DocumentStartEvent:
                if len(found) == self._most:
                    wanted = "one document" if self._most == 1 else f"at most {self._most} documents"
                    raise _refused(f"{wanted} expected, found more")
                self._anchors.clear()
                self._values = self._aliases = 0
                self._found = None
            elif kind is yaml.DocumentEndEvent:
                found.append(self._found)
            elif kind is yaml.StreamEndEvent:
                return found

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > 2 * MAX_VALUES:  # keys are counted here too
            raise too_many_values("YAML")

    def _begin(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        wanted = _TAG + ("map" if isinstance(value, dict) else "seq")
        if event.tag not in (None, "!", wanted):
            raise _refused(f"line {event.start_mark.line + 1}: the tag {_shown(event.tag)} is not allowed in an object")
        if len(self._frames) >= MAX_DEPTH:
            raise _refused(f"nested deeper than {MAX_DEPTH} levels")
        self._count(1)
        self._frames.append(_Frame(value, event.anchor, self._values - 1))
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)  # the alias is unknown until the anchored value ends

    def _end(self) -> None:
        frame = self._frames.pop()
        value = frame.value
        if frame.merged:
            assert isinstance(value, dict)
            given, value = value, {}
            for merged in reversed(frame.merged):  # what is named first wins
                value.update(merged)
            value.update(given)
        if frame.anchor is not None:
            self._anchors[frame.anchor] = _Anchor(value, self._values - frame.before, frame.height)
        self._take(value, frame.height)

    def _alias(self, name: str) -> None:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise _refused(f"more than {MAX_ALIASES} aliases")
        anchor = self._anchors.get(name)
        if anchor is None:
            raise _refused(f"the alias *{name} stands for nothing, or for what it is a part of")
        if len(self._frames) + anchor.height > MAX_DEPTH:
            raise _refused(f"nested deeper than {MAX_DEPTH} levels, aliases expanded")
        if self._values + anchor.values > 2 * MAX_VALUES:
            raise _refused("the document grows too large when its aliases are expanded")
        self._count(anchor.values)
        self._take(clone(anchor.value), anchor.height)

    def _take(self, value: Any, height: int) -> None:
        """Put a finished value where it belongs."""
        if not self._frames:
            if value is _MERGE:
                value = "<<"
            self._found = value
            return
        frame = self._frames[-1]
        if height >= frame.height:
            frame.height = height + 1
        into = frame.value
        if isinstance(into, list):
            into.append("<<" if value is _MERGE else value)
        elif frame.key is _NO_KEY:
            key = frame.key = value if value is _MERGE else _key(value)
            if self._duplicates is not None and key in into:
                self._duplicates.append(f"line {self._line + 1}: key {json.dumps(key)} already set in map")
        else:
            key, frame.key = frame.key, _NO_KEY
            if key is _MERGE:
                frame.merged += _mappings(value)
                return
            into[key] = "<<" if value is _MERGE else value


def _scalar(event: Any) -> Any:
    text: str = event.value
    tag = event.tag
    if tag is None or tag == "!":
        if event.style or not event.implicit[0]:
            return text
        return _plain(text)
    if tag == _TAG + "str":
        return text
    if tag in (_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"):
        value = _plain(text)
        if tag.endswith("float") and type(value) is int:
            return float(value)
        wanted = {"int": int, "float": float, "bool": bool, "null": type(None)}[tag[len(_TAG) :]]
        if type(value) is wanted:
            return value
        raise _refused(f"line {event.start_mark.line + 1}: this is not of the type that {_shown(tag)} says")
    raise _refused(f"line {event.start_mark.line + 1}: the tag {_shown(tag)} is not allowed in an object")


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    first = text[:1]
    if first in _WORD_STARTS or not first:
        if text in _NULL:
            return None
        if text in _TRUE:
            return True
        return False if text in _FALSE else text
    if first in _NUMBER_STARTS:
        if _INT.fullmatch(text):
            return _integer(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if number - number != 0:
                raise _refused(f"{text[:40]} is too large for a number")
            return number
        if text.lstrip("+-") in _NOT_FINITE:
            raise _refused(".inf and .nan are not allowed in an object")
    return _MERGE if text == "<<" else text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    if digits.startswith("0b"):
        number = int(digits[2:], 2)
    elif digits.startswith("0x"):
        number = int(digits[2:], 16)
    else:
        number = int(digits, 8 if digits.startswith("0") else 10)
    return -number if text.startswith("-") else number


def _key(raw: Any) -> str:
    if isinstance(raw, str):
        return raw
    if raw is True or raw is False:
        return "true" if raw else "false"
    if isinstance(raw, int | float):
        return str(raw)
    raise _refused("keys must be text")


def _mappings(value: Any) -> list[dict[str, Any]]:
    """Return the value of `<<` as a list of mappings; refuse anything else."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise _refused("<< takes a mapping or a list of mappings")
    return found


def _shown(tag: str) -> str:
    return "!!" + tag[len(_TAG) :] if tag.startswith(_TAG) else tag
