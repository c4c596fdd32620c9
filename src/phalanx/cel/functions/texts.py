"""Functions on strings: CEL's string extension, regular expressions, and Kubernetes' named formats."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from math import ceil
from typing import Any

from phalanx.model import names

from ..declarations import REGEX_FACTOR, STRING_FACTOR, function, matches_cost, member, overload, reads, reads_result
from ..types import DYN, INT, STRING, list_of, opaque, optional_of
from ..values import NONE, EvaluationError, Visits, check_length, entries, kind_of, register, size_of, some
from .networks import url
from .standard import compiled, double_text
from .times import format_value, parse_timestamp

FORMAT = opaque("kubernetes.NamedFormat")
_TRIMMED = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


def _ascii(low: int, high: int, by: int) -> Callable[[str], str]:
    table = {c: c + by for c in range(low, high + 1)}
    return lambda text: text.translate(table)


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise EvaluationError(f"index out of range: {at}")
    return text[at : at + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0 or (start > len(text) and part):
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if start < 0 or start > len(text):
        raise EvaluationError(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part))


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        end = len(text)
        if start < 0 or start > end:
            raise EvaluationError(f"index out of range: {start}")
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    if start < 0 or start > len(text):
        raise EvaluationError(f"index out of range: {start}")
    if end < 0 or end > len(text):
        raise EvaluationError(f"index out of range: {end}")
    return text[start:end]


def _replace(text: str, old: str, new: str, times: int = -1) -> str:
    check_length((len(text) + 1) * len(new))
    return text.replace(old, new, times if times >= 0 else -1)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    parts = list(text)
    return parts if limit < 0 or len(parts) <= limit else [*parts[: limit - 1], text[limit - 1 :]]


def _join(values: list[Any], separator: str = "") -> str:
    for value in values:
        if not isinstance(value, str):
            raise EvaluationError(f"join: invalid input: {value}")
    check_length(sum(map(len, values)) + len(separator) * len(values))
    return separator.join(values)


_ESCAPED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPED |= {"\\": "\\\\", '"': '\\"'}


def quote(text: str) -> str:
    """Return a text in double quotes with escapes, as `strings.quote` does."""
    return '"' + "".join(_ESCAPED.get(c, c) for c in text) + '"'


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_CLAUSE = re.compile(r"%(?:%|(?:\.(\d{1,4}))?([sdfebxXo]))")


def _text_of(value: Any, visits: Visits) -> str:
    """Return a value as `%s` prints it."""
    visits.one()
    kind = kind_of(value)
    if kind == "list":
        return "[" + ", ".join(_literal(v, visits) for v in value) + "]"
    if kind in ("map", "object"):
        parts = sorted((_literal(k, visits), _literal(v, visits)) for k, v in entries(value).items())
        return "{" + ", ".join(f"{k}:{v}" for k, v in parts) + "}"
    if kind == "string":
        return str(value)
    printers: dict[str, Callable[[Any], str]] = {
        "bool": lambda v: "true" if v else "false",
        "null": lambda _: "null",
        "int": str,
        "uint": lambda v: str(int(v)),
        "double": double_text,
        "bytes": lambda v: v.decode(errors="replace"),
        "duration": format_value,
        "timestamp": format_value,
        "type": lambda v: v.name,
    }
    if kind not in printers:
        shown = f"string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {kind}"  # noqa: E501
        raise EvaluationError(f"error during formatting: {shown}")
    return printers[kind](value)


def _literal(value: Any, visits: Visits) -> str:
    """Return an item of a list or map as `%s` prints it: as a literal."""
    kind = kind_of(value)
    if kind == "double":
        if value != value:
            return '"NaN"'
        return f'"{"+" if value > 0 else "-"}Inf"' if abs(value) == float("inf") else f"{value:.6f}"
    text = _text_of(value, visits)
    if kind in ("string", "bytes"):
        return ("b" if kind == "bytes" else "") + quote(text)
    return f"{kind}({quote(text)})" if kind in ("duration", "timestamp") else text


def _decimal(value: Any) -> str:
    if kind_of(value) in ("int", "uint"):
        return str(int(value))
    raise _misfit("decimal", "integers", value)


def _misfit(clause: str, kinds: str, value: Any) -> EvaluationError:
    problem = f"{clause} clause can only be used on {kinds}, was given {kind_of(value)}"
    return EvaluationError(f"error during formatting: {problem}")


def _fixed(value: Any, digits: int, scientific: bool) -> str:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return value
    if kind_of(value) != "double":
        raise _misfit("scientific" if scientific else "fixed-point", "doubles", value)
    number = float(value)
    if number != number:
        return "NaN"
    if abs(number) == float("inf"):
        return "∞" if number > 0 else "-∞"
    if scientific:
        mantissa, _, exponent = f"{number:.{digits}e}".partition("e")
        return f"{mantissa}×10{exponent.removeprefix('+').translate(_RAISED)}"
    return f"{Decimal(number).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_EVEN):,}"


def _hexadecimal(value: Any, upper: bool) -> str:
    if kind_of(value) in ("int", "uint"):
        text = f"{int(value):x}"
    elif kind_of(value) == "string":
        text = value.encode().hex()
    elif kind_of(value) == "bytes":
        text = value.hex()
    else:
        raise _misfit("hex", "integers, byte buffers, and strings", value)
    return text.upper() if upper else text


def _formatted(clause: str, digits: int, value: Any) -> str:
    if clause == "s":
        return _text_of(value, Visits())
    if clause == "d":
        return _decimal(value)
    if clause in "fe":
        return _fixed(value, digits, clause == "e")
    if clause in "xX":
        return _hexadecimal(value, clause == "X")
    kind = kind_of(value)
    if clause == "b" and kind == "bool":
        return "1" if value else "0"
    if kind not in ("int", "uint"):
        raise _misfit(
            "binary" if clause == "b" else "octal", "integers and bools" if clause == "b" else "integers", value
        )
    return format(int(value), clause)


def _format(text: str, args: list[Any]) -> str:
    out: list[str] = []
    at = used = 0
    while (mark := text.find("%", at)) >= 0:
        out.append(text[at:mark])
        found = _CLAUSE.match(text, mark)
        if found is None:
            shown = text[mark + 1 : mark + 2]
            message = f'unrecognized formatting clause "{shown}"' if shown else "unexpected end of string"
            raise EvaluationError(f"could not parse formatting clause: {message}")
        at = found.end()
        if found[2] is None:
            out.append("%")
            continue
        if used >= len(args):
            raise EvaluationError(f"index {used} out of range")
        out.append(_formatted(found[2], int(found[1]) if found[1] else 6, args[used]))
        used += 1
    out.append(text[at:])
    if used < len(args):
        raise EvaluationError(f"too many arguments supplied to string.format (expected {used}, got {len(args)})")
    return "".join(out)


STRINGS = (
    function("charAt", member("string_char_at_int", (STRING, INT), STRING, _char_at)),
    function(
        "indexOf",
        member("string_index_of_string", (STRING, STRING), INT, _index_of, reads(0)),
        member("string_index_of_string_int", (STRING, STRING, INT), INT, _index_of, reads(0)),
    ),
    function(
        "lastIndexOf",
        member("string_last_index_of_string", (STRING, STRING), INT, _last_index_of, reads(0)),
        member("string_last_index_of_string_int", (STRING, STRING, INT), INT, _last_index_of, reads(0)),
    ),
    function("lowerAscii", member("string_lower_ascii", (STRING,), STRING, _ascii(65, 90, 32), reads(0))),
    function("upperAscii", member("string_upper_ascii", (STRING,), STRING, _ascii(97, 122, -32), reads(0))),
    function(
        "replace",
        member("string_replace_string_string", (STRING, STRING, STRING), STRING, _replace, reads(0, 2)),
        member("string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace, reads(0, 2)),
    ),
    function(
        "split",
        member("string_split_string", (STRING, STRING), list_of(STRING), _split, reads(0, 2)),
        member("string_split_string_int", (STRING, STRING, INT), list_of(STRING), _split, reads(0, 2)),
    ),
    function(
        "substring",
        member("string_substring_int", (STRING, INT), STRING, _substring, reads(0)),
        member("string_substring_int_int", (STRING, INT, INT), STRING, _substring, reads(0)),
    ),
    function("trim", member("string_trim", (STRING,), STRING, lambda s: s.strip(_TRIMMED), reads(0))),
    function(
        "join",
        member("list_join", (list_of(STRING),), STRING, _join, reads_result(2)),
        member("list_join_string", (list_of(STRING), STRING), STRING, _join, reads_result(2)),
    ),
    function("format", member("string_format", (STRING, list_of(DYN)), STRING, _format, reads(0))),
    function("strings.quote", overload("strings_quote", (STRING,), STRING, quote, reads(0))),
)


def _find(text: str, pattern: str) -> str:
    found = compiled(pattern).search(text)
    return "" if found is None else str(found.group())


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    expression = compiled(pattern)
    found: list[str] = []
    if limit == 0:
        return found
    for one in expression.finditer(text):
        found.append(one.group())
        if len(found) == limit:
            break
    return found


REGEXES = (
    function("find", member("string_find_string", (STRING, STRING), STRING, _find, matches_cost)),
    function(
        "findAll",
        member("string_find_all_string", (STRING, STRING), list_of(STRING), _find_all, matches_cost),
        member("string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), _find_all, matches_cost),
    ),
)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format for string validation; `pattern_size` determines the cost."""

    name: str
    complaints: Callable[[str], list[str]]
    pattern_size: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedFormat) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


register(NamedFormat, FORMAT.name)

_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


def _complain(valid: Callable[[str], object], message: str) -> Callable[[str], list[str]]:
    def run(text: str) -> list[str]:
        try:
            return [] if valid(text) else [message]
        except (ValueError, binascii.Error, EvaluationError):
            return [message]

    return run


def _uri(text: str) -> list[str]:
    try:
        url(text)
    except EvaluationError as problem:
        return [str(problem).removeprefix("URL parse error during conversion from string: ")]
    return []


def _prefix(rule: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    return lambda text: rule(names.generated_prefix(text))


def _date(text: str) -> bool:
    parse_timestamp(f"{text}T00:00:00Z")
    return len(text) == 10


def _date_time(text: str) -> bool:
    parse_timestamp(text)
    return True


def _formats() -> dict[str, NamedFormat]:
    found = (
        ("dns1123Label", "DNS1123Label", names.dns_label, 30),
        ("dns1123Subdomain", "DNS1123Subdomain", names.dns_subdomain, 60),
        ("dns1035Label", "DNS1035Label", names.dns_1035_label, 30),
        ("qualifiedName", "QualifiedName", names.label_key, 60),
        ("dns1123LabelPrefix", "DNS1123LabelPrefix", _prefix(names.dns_label), 30),
        ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", _prefix(names.dns_subdomain), 60),
        ("dns1035LabelPrefix", "DNS1035LabelPrefix", _prefix(names.dns_1035_label), 30),
        ("labelValue", "LabelValue", names.label_value, 40),
        ("uri", "URI", _uri, 1103),
        ("uuid", "uuid", _complain(_UUID.fullmatch, "does not match the UUID format"), 61),
        ("byte", "byte", _complain(lambda s: base64.b64decode(s, validate=True) is not None, "invalid base64"), 84),
        ("date", "date", _complain(_date, "invalid date"), 106),
        ("datetime", "datetime", _complain(_date_time, "invalid datetime"), 106),
    )
    return {key: NamedFormat(name, complaints, size) for key, name, complaints, size in found}


_FORMATS = _formats()


def _validate(named: NamedFormat, text: str) -> Any:
    complaints = named.complaints(text)
    return some(list(complaints)) if complaints else NONE


def _validate_cost(args: tuple[Any, ...], _: Any) -> int:
    pattern_size: int = args[0].pattern_size
    return ceil((1 + size_of(args[1])) * STRING_FACTOR) * ceil(pattern_size * REGEX_FACTOR)


FORMATS = (
    function(
        "validate", member("format-validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate, _validate_cost)
    ),
    function(
        "format.named",
        overload(
            "format-named",
            (STRING,),
            optional_of(FORMAT),
            lambda name: some(_FORMATS[name]) if name in _FORMATS else NONE,
        ),
    ),
    *(
        function(f"format.{name}", overload(f"format.{name}", (), FORMAT, lambda f=f: f))
        for name, f in _FORMATS.items()
    ),
)

JSON_PATCH = (
    function(
        "jsonpatch.escapeKey",
        overload(
            "string_to_escaped_key",
            (STRING,),
            STRING,
            lambda s: s.replace("~", "~0").replace("/", "~1"),
            reads(0),
        ),
    ),
)
