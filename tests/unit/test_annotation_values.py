"""Any user may write any text into an annotation: the one reader answers with a value or with one kind of problem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.model.annotation_values import (
    MAX_CHARACTERS,
    BadValue,
    json_object,
    json_value,
    natural,
    number,
    whole_number,
)

INVALID = [
    "[" * 2000,
    '{"a":' * 2000,
    "[" * 2000 + "]" * 2000,
    '{"size":1e999,"template":{}}',
    '{"size":NaN}',
    '{"size":-Infinity}',
    '{"size":' + "9" * 5000 + "}",
    '"' + "x" * (MAX_CHARACTERS + 1) + '"',
    '"[[[[',
    "",
    "\x00",
]


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_malformed_json_is_one_kind_of_problem(text: str) -> None:
    with pytest.raises(BadValue):
        json_object(text)


def test_brackets_inside_strings_are_no_depth() -> None:
    assert json_value('{"a": "' + "[" * 100 + '\\"{{"}') == {"a": "[" * 100 + '"{{'}


@given(st.text(max_size=200))
def test_any_text_is_a_value_or_a_bad_one(text: str) -> None:
    for read in (json_value, lambda t: whole_number(t, 0, 100), lambda t: number(t, 0, 1e6)):
        try:
            read(text)
        except BadValue:
            continue


@pytest.mark.parametrize("text", ["", "1.5", "-1", "101", "1" * 5000, "１", "0x1", "1_0", True, None, 2.0])
def test_whole_numbers_are_in_their_range(text: object) -> None:
    with pytest.raises(BadValue):
        whole_number(text, 0, 100)
    assert whole_number(" 100 ", 0, 100) == 100


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e400", "", "1" * 5000])
def test_numbers_are_finite_and_in_their_range(text: str) -> None:
    with pytest.raises(BadValue):
        number(text, 0, 1e6)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("0012", 12),
        ("99", 99),
        ("100", None),
        ("-1", None),
        ("", None),
        ("²", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_decimal_digits_are_a_number_and_nothing_else_is(text: str, found: int | None) -> None:
    assert natural(text, 99) == found
