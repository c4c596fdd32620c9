"""Compile-time checks of literals: durations, timestamps, regular expressions, lists and maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .checker import Checked
from .functions.standard import compiled
from .functions.times import checked_timestamp, parse_duration, parse_timestamp
from .syntax import CallExpression, Const, ExpressionProblem, Fold, Ident, ListExpr, MapExpr, Node, Select, StructExpr
from .types import Type, is_optional
from .values import EvaluationError


def _timestamp(value: Any) -> object:
    return parse_timestamp(value) if isinstance(value, str) else checked_timestamp(value * 10**9)


_CHECKS: dict[tuple[str, bool], tuple[Callable[[Any], Any], str]] = {
    ("duration", False): (parse_duration, "invalid duration argument"),
    ("timestamp", False): (_timestamp, "invalid timestamp argument"),
    ("matches", True): (compiled, "invalid matches argument"),
}


def children(node: Node) -> Iterator[Node]:
    """Yield the parts of a node."""
    if isinstance(node, Select):
        yield node.operand
    elif isinstance(node, CallExpression):
        if node.target is not None:
            yield node.target
        yield from node.args
    elif isinstance(node, ListExpr):
        yield from node.elements
    elif isinstance(node, MapExpr):
        for key, value, _ in node.entries:
            yield key
            yield value
    elif isinstance(node, StructExpr):
        for _, value, _ in node.fields:
            yield value
    elif isinstance(node, Fold):
        yield from (node.range, node.init, node.condition, node.step, node.result)


def nodes(root: Node) -> Iterator[Node]:
    """Yield every node of an expression once, each before its parts."""
    pending: list[Node] = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            pending.extend(children(node))
            yield node


def literal_problems(checked: Checked) -> list[ExpressionProblem]:
    """Return the literals with invalid values."""
    problems: list[ExpressionProblem] = []
    exempt: set[int] = set()  # arguments of format() may have several types
    for node in nodes(checked.node):
        if isinstance(node, CallExpression):
            problems += _argument_problems(node)
            if node.function == "format" and node.target is not None:
                exempt.update(map(id, node.args))
        elif id(node) in exempt:
            exempt.update(map(id, children(node)))
        elif isinstance(node, ListExpr):
            problems += _mixed(checked, [(e, i in node.optional) for i, e in enumerate(node.elements)])
        elif isinstance(node, MapExpr):
            problems += _mixed(checked, [(key, False) for key, _, _ in node.entries])
            problems += _mixed(checked, [(value, optional) for _, value, optional in node.entries])
    return problems


def _argument_problems(node: CallExpression) -> list[ExpressionProblem]:
    if not node.args or not isinstance(node.args[-1], Const):
        return []
    found = _CHECKS.get((node.function, node.target is not None))
    literal = node.args[-1]
    texts = (str,) if node.function != "timestamp" else (str, int)
    if found is None or not isinstance(literal.value, texts):
        return []
    parse, message = found
    try:
        parse(literal.value)
    except EvaluationError:
        return [ExpressionProblem(literal.pos, message)]
    return []


def bad_pattern(checked: Checked) -> str:
    """Return what is wrong with a constant pattern of find() or findAll(), which is compiled with the expression."""
    for node in nodes(checked.node):
        if isinstance(node, CallExpression) and node.function in ("find", "findAll") and node.args:
            pattern = node.args[0]
            if isinstance(pattern, Const) and isinstance(pattern.value, str):
                try:
                    compiled(pattern.value)
                except EvaluationError as problem:
                    return str(problem)
    return ""


def _unknown(one: Type) -> bool:
    return one.kind == "dyn" or any(map(_unknown, one.params))


def _mixed(checked: Checked, elements: list[tuple[Node, bool]]) -> list[ExpressionProblem]:
    first: Type | None = None
    for node, optional in elements:
        found = checked.types[id(node)]
        if optional and is_optional(found):
            found = found.params[0]
        if first is None:
            first = found
        elif first != found and not _unknown(first) and not _unknown(found):
            return [ExpressionProblem(node.pos, f"expected type '{first}' but found '{found}'")]
    return []


def mentions(root: Node, name: str) -> bool:
    """Return whether an expression uses a variable with this name."""
    return any(isinstance(node, Ident) and node.name.removeprefix(".") == name for node in nodes(root))
