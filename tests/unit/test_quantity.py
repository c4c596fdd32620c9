"""Amounts in manifests mean exactly what Kubernetes says they mean."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.model import quantity
from phalanx.model.quantity import BadQuantity

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"), ("0Ki", "0"), ("1000m", "1"), ("0.5", "500m"), (".5", "500m"), ("5.", "5"), ("1500m", "1500m"),
        ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("1023Ki", "1023Ki"), ("512", "512"), ("0.5Ki", "512"),
        ("1Ki", "1Ki"), ("2000k", "2M"), ("1e3", "1e3"), ("1E4", "10e3"), ("1E", "1E"), ("100000", "100k"),
        ("+3", "3"), ("-1500m", "-1500m"), ("0.0000000001", "1n"), ("1.0000000001", "1000000001n"),
        ("0.1Ki", "102400m"), ("1025", "1025"), ("00100", "100"), ("9Ei", "9223372036854775807"), ("12e-1", "1200e-3"),
    ],
)  # fmt: skip
def test_the_api_shows_amounts_in_canonical_form(text: str, canonical: str) -> None:
    assert quantity.canonical(text) == canonical


@pytest.mark.parametrize(
    "text", ["", ".", "+", "Ki", "1 Gi", "1gi", "1KI", "1mm", "0x10", "1e", "1e+", "--1", "1e999999", "١"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        quantity.parse(text)
    assert not quantity.is_valid(text)


def test_json_numbers_are_amounts_but_booleans_are_not() -> None:
    assert quantity.milli(2) == 2000
    assert quantity.milli(0.1) == 100
    assert not quantity.is_valid(True)
    assert not quantity.is_valid({"a": 1})


@pytest.mark.parametrize(
    ("text", "milli", "units"),
    [("1n", 1, 1), ("1500m", 1500, 2), ("2", 2000, 2), ("1Ki", 1024000, 1024), ("-1m", -1, -1)],
)
def test_small_parts_round_up(text: str, milli: int, units: int) -> None:
    assert quantity.milli(text) == milli
    assert quantity.units(text) == units


texts = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{'.' + fraction if fraction else ''}{suffix}",
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**5).map(str),
    st.one_of(st.just(""), st.integers(0, 999).map(lambda n: f"{n:03}")),
    st.sampled_from(sorted(SUFFIXES)),
)


@given(texts)
def test_canonical_form_is_the_same_amount_and_stable(text: str) -> None:
    canonical = quantity.canonical(text)
    assert quantity.nanos(canonical) == quantity.nanos(text)
    assert quantity.canonical(canonical) == canonical


@given(texts)
def test_parsing_is_exact_up_to_one_nano_unit_rounded_away_from_zero(text: str) -> None:
    number = text.rstrip("numkMGTKi")
    exact = Fraction(number) * SUFFIXES[text[len(number) :]]
    nanos = exact * 10**9
    expected = math.ceil(abs(nanos))
    assert quantity.nanos(text) == (expected if nanos >= 0 else -expected)


@given(texts, texts)
def test_order_is_the_order_of_the_amounts(left: str, right: str) -> None:
    difference = quantity.nanos(left) - quantity.nanos(right)
    assert quantity.compare(left, right) == (difference > 0) - (difference < 0)
    assert quantity.compare(left, right) == -quantity.compare(right, left)


@given(st.integers(-(10**15), 10**15))
def test_numbers_survive_being_written(amount: int) -> None:
    assert quantity.units(quantity.from_units(amount, "BinarySI")) == amount
