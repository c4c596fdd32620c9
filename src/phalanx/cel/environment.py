"""Environments: the variables, types and functions that an expression may use."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .checker import check
from .declarations import Functions, merge
from .functions.authorizer import AUTHORIZERS
from .functions.lists import LISTS
from .functions.networks import IPS, URLS
from .functions.numbers import QUANTITIES, SEMVERS
from .functions.optionals import OPTIONALS
from .functions.standard import STANDARD
from .functions.texts import FORMATS, REGEXES, STRINGS
from .functions.times import TIMES
from .parser import parse
from .program import Program
from .syntax import CompileError, ExpressionError, render
from .types import ObjectFields, Type
from .validators import bad_pattern, literal_problems

KUBERNETES: Functions = merge(
    STANDARD, TIMES, OPTIONALS, STRINGS, REGEXES, LISTS, QUANTITIES, SEMVERS, IPS, URLS, FORMATS, AUTHORIZERS
)
"""The functions of Kubernetes 1.37's base environment, for expressions that are stored already."""

FOR_NEW: Functions = {name: overloads for name, overloads in KUBERNETES.items() if name != "includes"}
"""The functions for expressions that are new or change: those that Kubernetes 1.36 has as well, for a way back."""

_FRAMES = 6_000  # Python frames that the deepest legal expression needs to be compiled


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raise the recursion limit for nested expressions, whose depth the parser limits."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Environment:
    """Compiles expressions against declared variables."""

    def __init__(
        self,
        variables: Mapping[str, Type],
        objects: Mapping[str, ObjectFields] | None = None,
        functions: Functions = KUBERNETES,
    ) -> None:
        self.variables = dict(variables)
        self.objects = dict(objects or {})
        self.functions = functions

    def find_object(self, name: str) -> ObjectFields | None:
        """Return the fields of an object type, or None if there is no such type."""
        return self.objects.get(name)

    def compile(self, expression: str) -> Program | CompileError:
        """Return a program or a compile error."""
        with _deep_recursion():
            try:
                node = parse(expression)
                checked = check(node, self.variables, self.functions, self.find_object)
                problems = literal_problems(checked)
                if problems:
                    raise ExpressionError(problems)
                if pattern := bad_pattern(checked):
                    return CompileError(pattern, stage="program instantiation failed")
                return Program(expression, checked)
            except ExpressionError as error:
                return CompileError(render(expression, error.problems), error.problems)
