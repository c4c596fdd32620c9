"""List the annotations and labels of our prefix, and read annotation values strictly.

A key of our prefix that is not listed is reported as a mistake. The API server checks no annotation value, so this is
the only reader for text that any user may have written. The length is limited before anything is parsed; nesting and
the number of digits are limited; numbers must be finite and in the range that the caller names. Every problem is one
`BadValue`, whose text says what is wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

MAX_CHARACTERS = 128 << 10  # of a JSON value; the API server allows 256 KiB for all annotations of an object
MAX_DEPTH = 32  # nested objects and arrays; a pod template needs about 12
MAX_DIGITS = 24  # of a whole number; int64 has 19
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_NUMBER = 64  # characters of a number written as plain text

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)


class BadValue(ValueError):
    """The text of an annotation cannot be used; the message says why."""


def json_value(text: str, most: int = MAX_CHARACTERS) -> Any:
    """Parse JSON text of at most `most` characters and limited depth in which every number is finite."""
    if len(text) > most:
        raise BadValue(f"it has {len(text)} characters; at most {most} are read")
    _check_depth(text)
    try:
        return json.loads(text, parse_int=_json_int, parse_float=_json_float, parse_constant=_no_constant)
    except BadValue:
        raise
    except (ValueError, RecursionError) as problem:
        raise BadValue(f"it is not JSON: {problem}") from None


def json_object(text: str, most: int = MAX_CHARACTERS) -> dict[str, Any]:
    found = json_value(text, most)
    if not isinstance(found, dict):
        raise BadValue("it is not a JSON object")
    return found


def whole_number(value: object, least: int, most: int) -> int:
    """Return a whole number between `least` and `most`, written as decimal text or as a JSON number."""
    if isinstance(value, str):
        text = value.strip()
        if len(text) > MAX_DIGITS or not _WHOLE.fullmatch(text):
            raise BadValue(f"{shortened(value)!r} is not a whole number from {least} to {most}")
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadValue(f"{shortened(str(value))} is not a whole number from {least} to {most}")
    return value


def natural(text: str, most: int = MAX_INT64) -> int | None:
    """Return the number from 0 to `most` that decimal digits spell; None for any other text."""
    if len(text) > MAX_DIGITS or not text.isascii() or not text.isdecimal():
        return None
    return found if (found := int(text)) <= most else None


def number(value: str, least: float, most: float) -> float:
    """Return a finite number between `least` and `most`."""
    try:
        found = float(value) if len(value) <= MAX_NUMBER else math.nan
    except ValueError:
        found = math.nan
    if not least <= found <= most:  # also False for nan
        raise BadValue(f"{shortened(value)!r} is not a number from {least:g} to {most:g}")
    return found


def shortened(text: str, most: int = 40) -> str:
    """Shorten a value of any length to `most` characters, for a message."""
    return text if len(text) <= most else text[:most] + "…"


def _check_depth(text: str) -> None:
    depth = 0
    for character in _STRING.sub("", text):
        if character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadValue(f"it is nested more than {MAX_DEPTH} levels deep")
        elif character in "]}":
            depth -= 1


def _json_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise BadValue(f"the number {shortened(text)} has more than {MAX_DIGITS} digits")
    return int(text)


def _json_float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise BadValue(f"the number {shortened(text)} is not finite")
    return found


def _no_constant(text: str) -> NoReturn:
    raise BadValue(f"{text} is not a finite number")


PREFIX = "scheduling.phalanx.dev/"
_LEVELS = ("", "replicated-job-", "subgroup-")  # levels of a workload that lie between its objects
_REQUESTS = ("gang", "topology", "disruption", "min-count", "min-groups", "preferred-topology")
_WRITTEN_BY_PEOPLE = (
    *(level + requested for level in _LEVELS for requested in _REQUESTS),
    "api",
    "group-tree",
    "match-device-attribute",
    "min-resources",
    "pod-group",
    "provider",
    "default-gangs",  # a label of namespaces
    "expected-duration",
    "rank-placement",
    "rescheduling-policy",
    "schedule-timeout",
    "schedule-timeout-seconds",
    "scheduler-name",
)
_OTHER_WORDS = {  # of other schedulers, and those that are closer to another annotation than to ours
    "min-available": "min-count",
    "min-member": "min-count",
    "required-topology": "topology",
    "topology-required": "topology",
}
_WRITTEN_BY_US = (
    "adopted",
    "after-group",
    "attempt",
    "compositepodgroup-protection",  # a finalizer
    "group",
    "implied-by",
    "placement",  # controller name of admission checks
    "replaces",
    "provisions-for",
    "through",
    "waiting",
    "group-size",  # a scheduling gate
    "bound-in-group",
    "completed-in-run",
    "dropped-fields",
    "generated",
    "made-as",
    "part-of",
    "pods-to-come",
    "replaces",
    "run",
    "v1beta1-fields",
)
KNOWN = frozenset(PREFIX + name for name in (*_WRITTEN_BY_PEOPLE, *_WRITTEN_BY_US))


def unknown(annotations: Mapping[str, object] | None) -> list[str]:
    """Return a sentence for each unknown Phalanx annotation, with the key that may have been meant."""
    return [
        f"annotation {key} means nothing to Phalanx{_hint(key)}"
        for key in annotations or ()
        if key.startswith(PREFIX) and key not in KNOWN
    ]


def _hint(key: str) -> str:
    word = key.removeprefix(PREFIX)
    near = [_OTHER_WORDS[word]] if word in _OTHER_WORDS else get_close_matches(word, _WRITTEN_BY_PEOPLE, n=1)
    return f"; did you mean {PREFIX}{near[0]}?" if near else ""
