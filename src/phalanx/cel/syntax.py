"""Syntax tree of a CEL expression, and its errors with positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Const:
    """A literal."""

    pos: int
    value: Any


@dataclass(slots=True, eq=False)
class Ident:
    """A name of a variable or a type. A leading dot stays in the name."""

    pos: int
    name: str


@dataclass(slots=True, eq=False)
class Select:
    """`operand.name`, or `has(operand.name)` when `test` is set."""

    pos: int
    operand: Node
    name: str
    test: bool = False


@dataclass(slots=True, eq=False)
class CallExpression:
    """A function call, an operator, or a call on a target."""

    pos: int
    function: str
    target: Node | None
    args: list[Node]


@dataclass(slots=True, eq=False)
class ListExpr:
    """`[a, ?b]`: `optional` holds the indices of elements with a question mark."""

    pos: int
    elements: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapExpr:
    """`{key: value, ?key: optional}`."""

    pos: int
    entries: list[tuple[Node, Node, bool]]


@dataclass(slots=True, eq=False)
class StructExpr:
    """`Name{field: value}`."""

    pos: int
    name: str
    fields: list[tuple[str, Node, bool]]


@dataclass(slots=True, eq=False)
class Fold:
    """The expansion of a macro such as `all`: a loop over a range with an accumulator."""

    pos: int
    range: Node
    var: str
    var2: str  # empty for loops over one variable
    accu: str
    init: Node
    condition: Node
    step: Node
    result: Node


Node = Const | Ident | Select | CallExpression | ListExpr | MapExpr | StructExpr | Fold


@dataclass(slots=True)
class ExpressionProblem:
    """One mistake in an expression; `pos` is an offset in code points."""

    pos: int
    message: str


@dataclass(slots=True)
class CompileError:
    """A compile error: the text for users, in the format of Kubernetes."""

    message: str
    problems: list[ExpressionProblem] = field(default_factory=list)
    stage: str = "compilation failed"

    def __str__(self) -> str:
        return self.message

    @property
    def full(self) -> str:
        """Return the message with the stage that failed."""
        return f"{self.stage}: {self.message}"


class ExpressionError(Exception):
    """Raised inside the compiler; callers get a CompileError."""

    def __init__(self, problems: list[ExpressionProblem]) -> None:
        super().__init__("; ".join(p.message for p in problems))
        self.problems = problems


MAX_PROBLEMS = 100  # as many as an error message shows
MAX_SHOWN = 16 * 1024  # characters of an error message; further problems are only counted


def render(source: str, problems: list[ExpressionProblem]) -> str:
    """Return the problems with their lines and a caret below each position."""
    lines = source.split("\n")
    shown: list[str] = []
    size = 0
    for problem in sorted(problems, key=lambda p: p.pos)[:MAX_PROBLEMS]:
        if size > MAX_SHOWN:
            break
        before = source[: problem.pos]
        row = before.count("\n")
        column = len(before) - (before.rfind("\n") + 1)
        text = lines[row].replace("\t", " ") if row < len(lines) else ""
        head = f"ERROR: <input>:{row + 1}:{column + 1}: {problem.message}"
        shown.append(head if len(text) > MAX_SHOWN else f"{head}\n | {text}\n | {'.' * column}^")
        size += len(shown[-1])
    if len(shown) < len(problems):
        shown.append(f"… and {len(problems) - len(shown)} more")
    return "\n".join(shown)
