"""Kubernetes quantities ("500m", "1.5Gi", "2e3"), exactly: every one is a whole number of nano-units.

Never goes through floating point. Parsing is cached, because a cluster repeats few texts very often.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

Format = Literal["DecimalSI", "BinarySI", "DecimalExponent"]
Text = str | int | float  # what JSON can hold where a quantity is expected

NANO = 10**9
MAX_ALLOWED = 2**63 - 1  # binary quantities are capped here; decimal ones are not
_MAX_EXPONENT = 400  # "1e999999999" would be a number of a gigabyte; nothing real is near this

_MAX_LENGTH = 1024  # characters; also keeps what the cache holds small
# Each part begins with what the one before cannot take: a long text is read once, not once per way to split it.
_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[eEinumkKMGTP]+[-+]?[0-9]*|[-+][0-9]*)?)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
SUFFIXES = {name: 10**at if at >= 0 else 1 / 10**-at for name, at in _DECIMAL.items()} | {
    name: 2**at for name, at in _BINARY.items()
}  # for readers that need no exactness
_DECIMAL_NAME = {exponent: name for name, exponent in _DECIMAL.items()}
_BINARY_NAME = {exponent: name for name, exponent in _BINARY.items()}

FORMAT_WRONG = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
SUFFIX_WRONG = "unable to parse quantity's suffix"


class BadQuantity(ValueError):
    """The text is not a quantity."""


class Quantity(NamedTuple):
    """An exact amount and the notation it prefers."""

    nanos: int
    format: Format

    def __str__(self) -> str:
        return _canonical(self.nanos, self.format)


def _suffix(text: str) -> tuple[int, int, Format]:
    """Return (base, exponent, format) of a suffix."""
    if text in _DECIMAL:
        return 10, _DECIMAL[text], "DecimalSI"
    if text in _BINARY:
        return 2, _BINARY[text], "BinarySI"
    if text[:1] in ("e", "E"):
        try:
            exponent = int(text[1:])
        except ValueError:
            raise BadQuantity(SUFFIX_WRONG) from None
        if abs(exponent) > _MAX_EXPONENT:
            raise BadQuantity(f"the exponent {exponent} is out of range")
        return 10, exponent, "DecimalExponent"
    raise BadQuantity(SUFFIX_WRONG)


def _parse(text: str) -> Quantity:
    shape = _SHAPE.fullmatch(text)
    if shape is None or not text:
        raise BadQuantity(FORMAT_WRONG)
    sign, whole, fraction, suffix = shape.groups()
    fraction = fraction or ""
    if not whole and not fraction:
        raise BadQuantity(FORMAT_WRONG)
    if len(whole) + len(fraction) > _MAX_EXPONENT:
        raise BadQuantity("the number has too many digits")
    base, exponent, form = _suffix(suffix)
    digits = int(whole + fraction)
    scale = 9 - len(fraction)  # power of ten that turns `digits` into nano-units
    if base == 10:
        scale += exponent
    else:
        digits <<= exponent
    if scale >= 0:
        nanos = digits * 10**scale
    else:
        nanos = -(-digits // 10**-scale)  # asking for a little gives a little: round up to one nano-unit
    if form == "BinarySI":
        nanos = min(nanos, MAX_ALLOWED * NANO)
        if 0 < nanos < NANO:
            form = "DecimalSI"  # a part of a byte has no binary notation
    return Quantity(-nanos if sign == "-" else nanos, form)


def _canonical(nanos: int, form: Format) -> str:
    if nanos == 0:
        return "0"
    whole, rest = divmod(nanos, NANO)
    if form == "BinarySI" and not rest and not -1024 < whole < 1024:
        exponent = 0
        while whole % 1024 == 0 and exponent < 60:
            whole //= 1024
            exponent += 10
        return f"{whole}{_BINARY_NAME.get(exponent, '')}"
    exponent, number = -9, nanos
    while number % 1000 == 0 and (exponent < 18 or form == "DecimalExponent"):
        number //= 1000
        exponent += 3
    if form == "DecimalExponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_NAME[exponent]}"


@lru_cache(maxsize=1 << 15)
def _cached(text: str) -> Quantity:
    return _parse(text)


def parse(text: Text) -> Quantity:
    """Parse a quantity exactly; JSON numbers are read as their text. Raises BadQuantity."""
    if isinstance(text, str):
        if len(text) > _MAX_LENGTH:
            raise BadQuantity(f"it is {len(text)} characters long; a quantity has at most {_MAX_LENGTH}")
        return _cached(text)
    if isinstance(text, bool) or not isinstance(text, (int, float)):
        raise BadQuantity(FORMAT_WRONG)
    return _cached(str(text))


def nanos(text: Text) -> int:
    """Return the exact amount in nano-units, for comparing and adding."""
    return parse(text).nanos


def _away_from_zero(amount: int, unit: int) -> int:
    return -(-amount // unit) if amount >= 0 else amount // unit


@lru_cache(maxsize=1 << 15)
def milli(text: Text) -> int:
    """Return the amount in thousandths, rounded up as kube-scheduler does ("1n" is one milli)."""
    return _away_from_zero(parse(text).nanos, 10**6)


@lru_cache(maxsize=1 << 15)
def units(text: Text) -> int:
    """Return the amount in whole units, rounded up: bytes, pods, devices."""
    return _away_from_zero(parse(text).nanos, NANO)


@lru_cache(maxsize=1 << 15)
def canonical(text: Text) -> str:
    """Return the notation that the API shows: "1000m" is "1", "1024Mi" is "1Gi", "0.5" is "500m"."""
    return str(parse(text))


def compare(left: Text, right: Text) -> int:
    """Return -1, 0 or 1 if `left` is less than, equal to or greater than `right`."""
    a, b = parse(left).nanos, parse(right).nanos
    return (a > b) - (a < b)


def is_valid(text: object) -> bool:
    """Return True if `text` is a quantity."""
    try:
        parse(text)  # type: ignore[arg-type]
    except BadQuantity:
        return False
    return True


def from_units(amount: int, form: Format = "DecimalSI") -> str:
    """Return the canonical text of whole units; pass "BinarySI" for bytes."""
    return _canonical(amount * NANO, form)
