"""Say why a text is no IP address, in the words of Go's net/netip. Called for texts that are none."""

from __future__ import annotations

import re

_HEX = re.compile(r"[0-9a-fA-F]*")
_FIELD_LIMIT, _GROUP_DIGITS = 255, 4
_V6_BYTES, _V4_BYTES = 16, 4


def quoted(text: str) -> str:
    """Return a text in quotes, shortened."""
    return '"' + text[:128].replace('"', '\\"') + '"'


def address_problem(text: str) -> str:
    """Return the error of netip.ParseAddr."""
    first = next((char for char in text if char in ".:%"), "")
    if first == ".":
        problem, at = _v4(text)
    elif first == ":":
        problem, at = _v6(text)
    else:
        problem, at = "missing IPv6 address" if first else "unable to parse IP", ""
    return f"ParseAddr({quoted(text)}): {problem}" + (f" (at {quoted(at)})" if at else "")


def prefix_problem(text: str, problem: str) -> str:
    """Return the error of netip.ParsePrefix. `problem`: of the address; "" if the length is wrong."""
    _, slash, bits = text.rpartition("/")
    if not slash:
        problem = "no '/'"
    elif not problem:
        valid = re.fullmatch(r"[0-9]|[1-9][0-9]+", bits)
        problem = "prefix length out of range" if valid else f"bad bits after slash: {quoted(bits)}"
    return f"netip.ParsePrefix({quoted(text)}): {problem}"


def _v4(text: str) -> tuple[str, str]:
    """Return what is wrong with an IPv4 address, and where."""
    dots, digits = 0, ""
    for at, char in enumerate(text):
        if char in "0123456789":
            if digits == "0":
                return "IPv4 field has octet with leading zero", ""
            digits += char
            if int(digits) > _FIELD_LIMIT:
                return "IPv4 field has value >255", ""
        elif char == ".":
            if at in (0, len(text) - 1) or not digits:
                return "IPv4 field must have at least one digit", text[at:]
            dots, digits = dots + 1, ""
            if dots == _V4_BYTES:
                return "IPv4 address too long", ""
        else:
            return "unexpected character", text[at:]
    return "IPv4 address too short", ""


def _v6(text: str) -> tuple[str, str]:
    """Return what is wrong with an IPv6 address, and where."""
    filled, ellipsis = 0, text.startswith("::")
    rest = text[2:] if ellipsis else text
    while filled < _V6_BYTES:
        found = _HEX.match(rest)
        digits = found.group() if found else ""
        if problem := _group_problem(digits):
            return problem, rest
        if rest[len(digits) :].startswith("."):
            return _embedded(text, rest, filled, ellipsis)
        filled, rest = filled + 2, rest[len(digits) :]
        if not rest:
            break
        if rest[0] != ":":
            return "unexpected character, want colon", rest
        if len(rest) == 1:
            return "colon must be followed by more characters", rest
        rest = rest[1:]
        if rest[0] == ":":
            if ellipsis:
                return "multiple :: in address", rest
            ellipsis, rest = True, rest[1:]
            if not rest:
                break
    if rest:
        return "trailing garbage after address", rest
    return ("the :: must expand to at least one field of zeros" if ellipsis else "address string too short"), ""


def _group_problem(digits: str) -> str:
    if not digits:
        return "each colon-separated field must have at least one digit"
    return "each group must have 4 or less digits" if len(digits) > _GROUP_DIGITS else ""


def _embedded(text: str, rest: str, filled: int, ellipsis: bool) -> tuple[str, str]:
    """Return what is wrong with an IPv4 address at the end of an IPv6 address."""
    if not ellipsis and filled != _V6_BYTES - _V4_BYTES:
        return "embedded IPv4 address must replace the final 2 fields of the address", rest
    if filled > _V6_BYTES - _V4_BYTES:
        return "too many hex fields to fit an embedded IPv4 at the end of the address", rest
    return _v4(rest)
