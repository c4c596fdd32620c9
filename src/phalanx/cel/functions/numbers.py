"""Kubernetes quantities and semantic versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phalanx.model.quantity import NANO, BadQuantity, Quantity
from phalanx.model.quantity import parse as parse_quantity

from ..declarations import Overload, function, member, overload, reads
from ..types import BOOL, DOUBLE, INT, STRING, Type, opaque
from ..values import MAX_INT, MIN_INT, EvaluationError, register

QUANTITY = opaque("kubernetes.Quantity")
SEMVER = opaque("kubernetes.Semver")


@dataclass(frozen=True, slots=True)
class QuantityValue:
    """An amount; two are equal if they are the same number in any notation."""

    amount: Quantity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuantityValue) and self.amount.nanos == other.amount.nanos

    def __hash__(self) -> int:
        return hash(self.amount.nanos)

    def __str__(self) -> str:
        return str(self.amount)


register(QuantityValue, QUANTITY.name)


def quantity(text: str) -> QuantityValue:
    """Parse a quantity, or raise EvaluationError."""
    try:
        return QuantityValue(parse_quantity(text))
    except BadQuantity as problem:
        raise EvaluationError(str(problem)) from None


def _is_quantity(text: str) -> bool:
    try:
        quantity(text)
    except EvaluationError:
        return False
    return True


def _compare(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


def _add(a: QuantityValue, nanos: int) -> QuantityValue:
    return QuantityValue(Quantity(a.amount.nanos + nanos, a.amount.format))


def _integer(a: QuantityValue) -> int | None:
    whole, rest = divmod(a.amount.nanos, NANO)
    return whole if not rest and MIN_INT <= whole <= MAX_INT else None


def _as_integer(a: QuantityValue) -> int:
    whole = _integer(a)
    if whole is None:
        raise EvaluationError("cannot convert value to integer")
    return whole


def _comparisons(one: Type, word: str, key: Any) -> dict[str, Overload]:
    pair = (one, one)
    return {
        "isGreaterThan": member(f"{word}_is_greater_than", pair, BOOL, lambda a, b: key(a) > key(b)),
        "isLessThan": member(f"{word}_is_less_than", pair, BOOL, lambda a, b: key(a) < key(b)),
        "compareTo": member(f"{word}_compare_to", pair, INT, lambda a, b: _compare(key(a), key(b))),
    }


QUANTITIES = (
    function("quantity", overload("string_to_quantity", (STRING,), QUANTITY, quantity, reads(0))),
    function("isQuantity", overload("is_quantity_string", (STRING,), BOOL, _is_quantity, reads(0))),
    function("sign", member("quantity_sign", (QUANTITY,), INT, lambda a: _compare(a.amount.nanos, 0))),
    function("isInteger", member("quantity_is_integer", (QUANTITY,), BOOL, lambda a: _integer(a) is not None)),
    function("asInteger", member("quantity_get_int", (QUANTITY,), INT, _as_integer)),
    function("asApproximateFloat", member("quantity_get_float", (QUANTITY,), DOUBLE, lambda a: a.amount.nanos / NANO)),
    function(
        "add",
        member("quantity_add", (QUANTITY, QUANTITY), QUANTITY, lambda a, b: _add(a, b.amount.nanos)),
        member("quantity_add_int", (QUANTITY, INT), QUANTITY, lambda a, b: _add(a, b * NANO)),
    ),
    function(
        "sub",
        member("quantity_sub", (QUANTITY, QUANTITY), QUANTITY, lambda a, b: _add(a, -b.amount.nanos)),
        member("quantity_sub_int", (QUANTITY, INT), QUANTITY, lambda a, b: _add(a, -b * NANO)),
    ),
    *((name, (one,)) for name, one in _comparisons(QUANTITY, "quantity", lambda a: a.amount.nanos).items()),
)


_NUMBER = r"(0|[1-9][0-9]*)"
_WORD = r"[0-9A-Za-z-]+"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORD}(?:\.{_WORD})*))?(?:\+({_WORD}(?:\.{_WORD})*))?")


@dataclass(frozen=True, slots=True)
class SemverValue:
    """A semantic version; build metadata does not count in comparisons."""

    text: str
    numbers: tuple[int, int, int]
    pre_release: tuple[tuple[int, int, str], ...]

    def order(self) -> tuple[Any, ...]:
        """Return the sort key: a pre-release comes before its release."""
        return (*self.numbers, not self.pre_release, self.pre_release)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SemverValue) and self.order() == other.order()

    def __hash__(self) -> int:
        return hash(self.order())

    def __str__(self) -> str:
        return self.text


register(SemverValue, SEMVER.name)


@lru_cache(maxsize=4096)
def semver(text: str) -> SemverValue:
    """Parse a semantic version, or raise EvaluationError."""
    if not text:
        raise EvaluationError("Version string empty")
    found = _VERSION.fullmatch(text) if len(text) <= 1024 else None
    if found is None:
        if text.split("+")[0].split("-")[0].count(".") < 2:
            raise EvaluationError("No Major.Minor.Patch elements found")
        raise EvaluationError(f"Invalid character(s) found in version {text[:64]!r}".replace("'", '"'))
    parts: list[tuple[int, int, str]] = []
    for word in (found[4] or "").split(".") if found[4] else ():
        if word.isdecimal():
            if len(word) > 1 and word[0] == "0":
                raise EvaluationError(f'Numeric PreRelease version must not contain leading zeroes "{word}"')
            parts.append((0, int(word), ""))
        else:
            parts.append((1, 0, word))
    numbers = int(found[1]), int(found[2]), int(found[3])
    if max(numbers) > 2**64 - 1:
        raise EvaluationError("value out of range")
    return SemverValue(text, numbers, tuple(parts))


def _normalized(text: str) -> SemverValue:
    parts = text.removeprefix("v").split(".", 2)
    for i, part in enumerate(parts):
        if len(part) > 1:
            part = part.lstrip("0")
            parts[i] = part if part[:1].isdecimal() else "0" + part
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise EvaluationError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return semver(".".join(parts))


def _semver(text: str, normalize: bool = False) -> SemverValue:
    return _normalized(text) if normalize else semver(text)


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        _semver(text, normalize)
    except EvaluationError:
        return False
    return True


SEMVERS = (
    function(
        "semver",
        overload("string_to_semver", (STRING,), SEMVER, _semver, reads(0)),
        overload("string_bool_to_semver", (STRING, BOOL), SEMVER, _semver, reads(0)),
    ),
    function(
        "isSemver",
        overload("is_semver_string", (STRING,), BOOL, _is_semver, reads(0)),
        overload("is_semver_string_bool", (STRING, BOOL), BOOL, _is_semver, reads(0)),
    ),
    *(
        function(name, member(f"semver_{name}", (SEMVER,), INT, lambda v, i=i: v.numbers[i]))
        for i, name in enumerate(("major", "minor", "patch"))
    ),
    *((name, (one,)) for name, one in _comparisons(SEMVER, "semver", SemverValue.order).items()),
)
