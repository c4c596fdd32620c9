"""Expand the macros of CEL (`has`, `all`, `exists`, `map`, …) to loops.

A loop is a Fold: its cost and error handling follow from its operators, as upstream.
"""

from __future__ import annotations

from collections.abc import Callable

from .syntax import (
    CallExpression,
    Const,
    ExpressionError,
    ExpressionProblem,
    Fold,
    Ident,
    ListExpr,
    MapExpr,
    Node,
    Select,
)

ACCUMULATOR = "@result"
UNUSED = "#unused"

Expansion = Callable[[int, Node, list[Node]], Node | None]


def _call(pos: int, function: str, *args: Node) -> Node:
    return CallExpression(pos, function, None, list(args))


def _accu(pos: int) -> Node:
    return Ident(pos, ACCUMULATOR)


def _variable(node: Node, what: str = "argument must be a simple name") -> str:
    if isinstance(node, Ident) and not node.name.startswith("."):
        if node.name == ACCUMULATOR:
            raise ExpressionError([ExpressionProblem(node.pos, "iteration variable overwrites accumulator variable")])
        return node.name
    raise ExpressionError([ExpressionProblem(node.pos, what)])


def _two(args: list[Node]) -> tuple[str, str]:
    first, second = _variable(args[0]), _variable(args[1])
    if first == second:
        raise ExpressionError([ExpressionProblem(args[1].pos, f"duplicate variable name: {second}")])
    return first, second


def expand_has(pos: int, arg: Node) -> Node:
    """Expand `has(a.b)`."""
    if isinstance(arg, Select) and not arg.test:
        return Select(pos, arg.operand, arg.name, test=True)
    raise ExpressionError([ExpressionProblem(arg.pos, "invalid argument to has() macro")])


def _fold(
    pos: int, over: Node, names: tuple[str, str], init: Node, condition: Node, step: Node, result: Node | None = None
) -> Node:
    return Fold(pos, over, names[0], names[1], ACCUMULATOR, init, condition, step, result or _accu(pos))


def _all(pos: int, over: Node, names: tuple[str, str], test: Node) -> Node:
    return _fold(
        pos,
        over,
        names,
        Const(pos, True),
        _call(pos, "@not_strictly_false", _accu(pos)),
        _call(pos, "_&&_", _accu(pos), test),
    )


def _exists(pos: int, over: Node, names: tuple[str, str], test: Node) -> Node:
    return _fold(
        pos,
        over,
        names,
        Const(pos, False),
        _call(pos, "@not_strictly_false", _call(pos, "!_", _accu(pos))),
        _call(pos, "_||_", _accu(pos), test),
    )


def _exists_one(pos: int, over: Node, names: tuple[str, str], test: Node) -> Node:
    step = _call(pos, "_?_:_", test, _call(pos, "_+_", _accu(pos), Const(pos, 1)), _accu(pos))
    result = _call(pos, "_==_", _accu(pos), Const(pos, 1))
    return _fold(pos, over, names, Const(pos, 0), Const(pos, True), step, result)


def _collect(pos: int, over: Node, names: tuple[str, str], value: Node, test: Node | None) -> Node:
    step = _call(pos, "_+_", _accu(pos), ListExpr(pos, [value]))
    if test is not None:
        step = _call(pos, "_?_:_", test, step, _accu(pos))
    return _fold(pos, over, names, ListExpr(pos, []), Const(pos, True), step)


def _one_variable(build: Callable[[int, Node, tuple[str, str], Node], Node]) -> Expansion:
    return lambda pos, over, args: build(pos, over, (_variable(args[0]), ""), args[1])


def _two_variables(build: Callable[[int, Node, tuple[str, str], Node], Node]) -> Expansion:
    return lambda pos, over, args: build(pos, over, _two(args), args[2])


def _map(pos: int, over: Node, args: list[Node]) -> Node:
    name = _variable(args[0])
    return _collect(pos, over, (name, ""), args[-1], args[1] if len(args) == 3 else None)


def _filter(pos: int, over: Node, args: list[Node]) -> Node:
    name = _variable(args[0])
    return _collect(pos, over, (name, ""), Ident(pos, name), args[1])


def _transform_list(pos: int, over: Node, args: list[Node]) -> Node:
    return _collect(pos, over, _two(args), args[-1], args[2] if len(args) == 4 else None)


def _transform(pos: int, over: Node, args: list[Node], *insert: Node) -> Node:
    step = _call(pos, "cel.@mapInsert", _accu(pos), *insert)
    if len(args) == 4:
        step = _call(pos, "_?_:_", args[2], step, _accu(pos))
    return _fold(pos, over, _two(args), MapExpr(pos, []), Const(pos, True), step)


def _transform_map(pos: int, over: Node, args: list[Node]) -> Node:
    return _transform(pos, over, args, Ident(pos, _variable(args[0])), args[-1])


def _transform_map_entry(pos: int, over: Node, args: list[Node]) -> Node:
    return _transform(pos, over, args, args[-1])


def _bound(pos: int, name: str, value: Node, body: Node) -> Node:
    """Bind a name to a value in `body`: a loop without iterations."""
    return Fold(pos, ListExpr(pos, []), UNUSED, "", name, value, Const(pos, False), Ident(pos, name), body)


def _bind(pos: int, _: Node, args: list[Node]) -> Node:
    return _bound(pos, _variable(args[0], "cel.bind() variable names must be simple identifiers"), args[1], args[2])


def _sort_by(pos: int, target: Node, args: list[Node]) -> Node:
    name = "@sort_input"
    keys = _map(pos, Ident(pos, name), args)
    return _bound(pos, name, target, CallExpression(pos, "@sortByAssociatedKeys", Ident(pos, name), [keys]))


def _optional(pos: int, function: str, *args: Node) -> Node:
    return CallExpression(pos, function, Ident(pos, "optional"), list(args))


def _with_value(pos: int, target: Node, name: str, body: Node, wrap: bool) -> Node:
    """Return the body for the value of an optional, else none. The target is bound to a name to evaluate it once."""
    source = "@optional"
    value = _bound(pos, name, CallExpression(pos, "value", Ident(pos, source), []), body)
    present = CallExpression(pos, "hasValue", Ident(pos, source), [])
    chosen = _call(pos, "_?_:_", present, _optional(pos, "of", value) if wrap else value, _optional(pos, "none"))
    return _bound(pos, source, target, chosen)


def _opt_map(pos: int, target: Node, args: list[Node]) -> Node:
    name = _variable(args[0], "optMap() variable name must be a simple identifier")
    return _with_value(pos, target, name, args[1], wrap=True)


def _opt_flat_map(pos: int, target: Node, args: list[Node]) -> Node:
    name = _variable(args[0], "optFlatMap() variable name must be a simple identifier")
    return _with_value(pos, target, name, args[1], wrap=False)


MEMBER_MACROS: dict[tuple[str, int], Expansion] = {
    ("all", 2): _one_variable(_all),
    ("all", 3): _two_variables(_all),
    ("exists", 2): _one_variable(_exists),
    ("exists", 3): _two_variables(_exists),
    ("exists_one", 2): _one_variable(_exists_one),
    ("existsOne", 2): _one_variable(_exists_one),
    ("existsOne", 3): _two_variables(_exists_one),
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_map_entry,
    ("transformMapEntry", 4): _transform_map_entry,
    ("sortBy", 2): _sort_by,
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_flat_map,
}
NAMESPACED_MACROS: dict[tuple[str, int], Expansion] = {("cel.bind", 3): _bind}
