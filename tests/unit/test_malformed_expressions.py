"""A malformed expression is rejected, or compiles; every evaluation ends within its limits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.cel import types as t
from phalanx.cel.environment import Environment
from phalanx.cel.program import Program
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import CostLimitExceeded, EvaluationError

VALUES: dict[str, Any] = {"x": 3, "l": [1, 2], "s": "a" * 1000, "d": {"k": [1, "a"], "n": None}}
ENVIRONMENT = Environment({"x": t.INT, "l": t.list_of(t.INT), "s": t.STRING, "d": t.DYN})

WORDS = """
x l s d i 1 2u 1.5 'a' b'a' true null ( ) [ ] { } . .? ? : , + - * / % ! == != < >= && || in has all exists map filter
size type int string matches find split join format sum max quantity semver ip cidr url optional of none value orValue
duration timestamp cel.bind lists.range sets.contains transformMap optMap sortBy reverse flatten k @ # \\ ' " //
"""
TOKENS = st.sampled_from(WORDS.split())


@settings(max_examples=400, deadline=None)
@given(st.lists(TOKENS, max_size=30).map(" ".join) | st.lists(TOKENS, max_size=12).map("".join) | st.text(max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    found = ENVIRONMENT.compile(text)
    assert isinstance(found, (Program, CompileError))
    if isinstance(found, Program):
        with suppress(EvaluationError):
            found.evaluate(VALUES, 10_000)


def doubled(start: str, double: str, times: int, body: str) -> str:
    """`start` doubled many times by cel.bind, then used in `body` as v."""
    text = body
    for _ in range(times):
        text = f"cel.bind(v, {double}, {text})"
    return f"cel.bind(v, {start}, {text})"


@pytest.mark.parametrize(
    "expression",
    [
        doubled("l", "v + v", 60, "v.size() > 0"),
        doubled("s", "v + v", 60, "v.size() > 0"),
        doubled("dyn(l)", "dyn([v, v])", 60, "v == v"),
        doubled("dyn(l)", "dyn([v, v])", 60, "'%s'.format([v]) == ''"),
        doubled("dyn(l)", "dyn([v, v])", 60, "dyn([v]).flatten(64).size() > 0"),
        doubled("dyn(l)", "dyn({'a': v, 'b': v})", 60, "v == v"),
        doubled("dyn(l)", "dyn([v, v])", 60, "dyn([v]).indexOf(v) == 0"),
        "lists.range(1000000).map(i, s).join(s).size() > 0",
        "s.replace('', s).replace('', s).size() > 0",
        "lists.range(999999).distinct().size() > 0",
    ],
)
def test_values_that_grow_without_bounds_end_the_evaluation(expression: str) -> None:
    program = ENVIRONMENT.compile(expression)
    assert isinstance(program, Program), str(program)
    with pytest.raises(CostLimitExceeded):
        program.evaluate(VALUES, 1_000_000)


def test_error_message_stays_short_whatever_the_expression() -> None:
    many = ENVIRONMENT.compile(" && ".join(["nosuch"] * 5_000))
    assert isinstance(many, CompileError)
    assert many.message.startswith("ERROR: <input>:1:1: undeclared reference to 'nosuch'")
    assert len(many.message) < 100_000 and many.message.endswith(" more")


def test_loops_that_collect_take_time_in_proportion_to_what_they_collect() -> None:
    program = ENVIRONMENT.compile("lists.range(60000).map(i, i % 2 == 0, [i]).filter(e, e[0] > 9).size()")
    assert isinstance(program, Program)
    assert program.evaluate(VALUES, 10_000_000)[0] == 29_995
