"""Compiled expressions: every node of the syntax tree is a closure that adds its cost to the evaluation.

Costs are those of upstream's interpreter: one unit for a name, a selection or a call, more for functions that read
strings or lists; operators && || ?: and constants are free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .checker import Checked
from .declarations import Overload
from .dispatch import EvaluationFrame, Run, call_closure, equality_closure
from .loops import Loops
from .syntax import CallExpression, Const, Fold, Ident, ListExpr, MapExpr, Node, Select, StructExpr
from .types import Type
from .values import NONE, CostLimitExceeded, EvaluationError, FieldMap, ObjectValue, Optional, TypeValue, kind_of, some

LIST_COST = 10
MAP_COST = 30
STRUCT_COST = 40


class Program:
    """A compiled expression for repeated evaluation."""

    __slots__ = ("checked", "expression", "run", "slots", "type")

    def __init__(self, expression: str, checked: Checked) -> None:
        self.expression = expression
        self.checked = checked
        self.type: Type = checked.type
        planner = _Planner(checked)
        self.run: Run = planner.plan(checked.node)
        self.slots = planner.loops.slots

    def evaluate(self, variables: Mapping[str, Any], cost_limit: int) -> tuple[Any, int]:
        """Return (value, cost), or raise EvaluationError."""
        frame = EvaluationFrame(variables, self.slots, cost_limit)
        value = self.run(frame)
        if frame.cost > cost_limit:
            raise CostLimitExceeded
        return value, frame.cost


def select_field(value: Any, name: Any) -> Any:
    """Return `value.name`; a value without fields has no such key."""
    if isinstance(value, dict):
        try:
            return value[name]
        except KeyError:
            pass
    elif isinstance(value, FieldMap):
        return value.get_field(name)
    elif isinstance(value, Optional):
        return optional_field(value, name)
    raise EvaluationError(f"no such key: {name}")


def has_field(value: Any, name: Any) -> bool:
    """Return `has(value.name)`."""
    if isinstance(value, dict):
        return name in value
    if isinstance(value, FieldMap):
        return value.has_field(name)
    if isinstance(value, Optional):
        return value.present and has_field(value.value, name)
    return False


def optional_field(value: Any, name: Any) -> Optional:
    """Return `value.?name` or `value[?name]`."""
    if isinstance(value, Optional):
        return optional_field(value.value, name) if value.present else NONE
    if isinstance(value, list):
        return some(value[int(name)]) if kind_of(name) in ("int", "uint") and 0 <= name < len(value) else NONE
    if isinstance(value, (dict, FieldMap)):
        return some(select_field(value, name)) if has_field(value, name) else NONE
    return NONE


def index_value(value: Any, index: Any) -> Any:
    """Return `value[index]` of a list, a map or an optional of those."""
    if isinstance(value, list):
        if kind_of(index) not in ("int", "uint", "double") or index != int(index):
            raise EvaluationError(f"unsupported index type '{kind_of(index)}' in list")
        at = int(index)
        if not 0 <= at < len(value):
            raise EvaluationError(f"index out of bounds: {at}")
        return value[at]
    if isinstance(value, (dict, FieldMap)):
        return select_field(value, index)
    if isinstance(value, Optional):
        return optional_field(value, index)
    raise EvaluationError("no such overload")


class _Planner:
    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.constants: dict[int, Any] = {}  # id of a node → its value
        self.done: dict[tuple[int, int], Run] = {}
        self.loops = Loops(self.plan)
        self.planners: dict[type, Callable[[Any], Run]] = {
            Const: self.const,
            Ident: self.ident,
            Select: self.select,
            CallExpression: self.call,
            ListExpr: self.list_literal,
            MapExpr: self.map_literal,
            StructExpr: self.struct,
            Fold: self.loops.fold,
        }

    def plan(self, node: Node) -> Run:
        key = (id(node), self.loops.depth)
        run = self.done.get(key)
        if run is None:
            run = self.done[key] = self.planners[type(node)](node)
        return run

    def constant(self, node: Node, value: Any) -> Run:
        self.constants[id(node)] = value
        return lambda frame: value

    def const(self, node: Const) -> Run:
        return self.constant(node, node.value)

    def ident(self, node: Ident) -> Run:
        local = self.loops.variable(node.name)
        if local is not None:
            return local
        return self.name(node, node.name.removeprefix("."))

    def name(self, node: Node, name: str) -> Run:
        found = self.checked.types[id(node)]
        if found.kind == "type":
            named = found.params[0] if found.params else found
            return self.constant(node, TypeValue(_type_name(named)))

        def run(frame: EvaluationFrame) -> Any:
            frame.cost += 1
            try:
                return frame.variables[name]
            except KeyError:
                raise EvaluationError(f"no such attribute(s): {name}") from None

        return run

    def select(self, node: Select) -> Run:
        whole = self.checked.names.get(id(node))
        if whole is not None:
            return self.name(node, whole)
        operand = self.plan(node.operand)
        name = self.checked.fields.get(id(node), node.name)
        cost = 1 if _is_attribute(node.operand) else 2
        if node.test:
            return _presence(operand, name, cost - 1)

        def run(frame: EvaluationFrame) -> Any:
            value = operand(frame)
            frame.cost += cost
            if type(value) is dict:
                try:
                    return value[name]
                except KeyError:
                    raise EvaluationError(f"no such key: {name}") from None
            return select_field(value, name)

        return run

    def call(self, node: CallExpression) -> Run:
        special = _SPECIAL.get(node.function)
        if special is not None and node.target is None:
            return special(self, node)
        args = list(node.args)
        if node.target is not None and id(node) not in self.checked.namespaced:
            args.insert(0, node.target)
        runs = [self.plan(a) for a in args]
        overloads = self.checked.overloads[id(node)]
        name = self.checked.namespaced.get(id(node), node.function)
        if name in ("or", "orValue") and overloads[0].member:
            return _optional_or(runs[0], runs[1], name == "orValue")
        if len(runs) == 1 and id(args[0]) in self.constants and name in _CONVERSIONS:
            folded = self.convert(node, overloads, self.constants[id(args[0])])
            if folded is not None:
                return folded
        if name in _PARSERS and all(id(a) in self.constants for a in args):
            parsed = _parsed(overloads, tuple(self.constants[id(a)] for a in args))
            if parsed is not None:
                return parsed
        if name in ("_==_", "_!=_"):
            return equality_closure(runs[0], runs[1], name == "_!=_")
        static = all(self.checked.types[id(a)].kind not in ("dyn", "param", "error") for a in args)
        return call_closure(name, overloads, runs, static)

    def convert(self, node: Node, overloads: tuple[Overload, ...], value: Any) -> Run | None:
        """Return a constant for a conversion of a constant, such as `int("1")`; None if it fails."""
        try:
            return self.constant(node, overloads[0].run(value)) if len(overloads) == 1 else None
        except EvaluationError:
            return None

    def logic(self, node: CallExpression) -> Run:
        terms: list[Run] = []
        pending: list[Node] = [node]
        while pending:
            one = pending.pop()
            if isinstance(one, CallExpression) and one.function == node.function and one.target is None:
                pending.extend(reversed(one.args))
            else:
                terms.append(self.plan(one))
        return _logic(terms, node.function == "_||_")

    def conditional(self, node: CallExpression) -> Run:
        condition, yes, no = (self.plan(a) for a in node.args)

        def run(frame: EvaluationFrame) -> Any:
            chosen = condition(frame)
            if chosen is True:
                return yes(frame)
            if chosen is False:
                return no(frame)
            raise EvaluationError("no such overload")

        return run

    def not_strictly_false(self, node: CallExpression) -> Run:
        operand = self.plan(node.args[0])

        def run(frame: EvaluationFrame) -> bool:
            try:
                value = operand(frame)
            except CostLimitExceeded:
                raise
            except EvaluationError:
                value = True
            frame.cost += 1
            return value is not False

        return run

    def index(self, node: CallExpression) -> Run:
        operand, index = (self.plan(a) for a in node.args)
        cost = 1 if _is_attribute(node.args[0]) else 2
        get = optional_field if node.function == "_[?_]" else index_value

        def run(frame: EvaluationFrame) -> Any:
            value = operand(frame)
            key = index(frame)
            frame.cost += cost
            return get(value, key)

        def constant_key(frame: EvaluationFrame) -> Any:
            value = operand(frame)
            frame.cost += cost
            return get(value, literal)

        literal = self.constants.get(id(node.args[1]))
        return run if literal is None else constant_key

    def optional_select(self, node: CallExpression) -> Run:
        operand = self.plan(node.args[0])
        assert isinstance(node.args[1], Const)
        name = self.checked.fields.get(id(node), node.args[1].value)
        cost = 1 if _is_attribute(node.args[0]) else 2

        def run(frame: EvaluationFrame) -> Any:
            value = operand(frame)
            frame.cost += cost
            return optional_field(value, name)

        return run

    def list_literal(self, node: ListExpr) -> Run:
        runs = [self.plan(e) for e in node.elements]
        if not node.optional and all(id(e) in self.constants for e in node.elements):
            return self.constant(node, [self.constants[id(e)] for e in node.elements])
        optional = node.optional

        def run(frame: EvaluationFrame) -> Any:
            values = [one(frame) for one in runs]
            frame.cost += LIST_COST
            if optional:
                kept = [(i, v) for i, v in enumerate(values) if i not in optional or _optional(v).present]
                return [v.value if i in optional else v for i, v in kept]
            return values

        return run

    def map_literal(self, node: MapExpr) -> Run:
        parts = [(self.plan(k), self.plan(v), optional) for k, v, optional in node.entries]
        if all(id(k) in self.constants and id(v) in self.constants and not o for k, v, o in node.entries):
            keys = [self.constants[id(k)] for k, _, _ in node.entries]
            if len(set(map(repr, keys))) == len(keys):
                return self.constant(node, {self.constants[id(k)]: self.constants[id(v)] for k, v, _ in node.entries})

        def run(frame: EvaluationFrame) -> Any:
            result: dict[Any, Any] = {}
            for key_of, value_of, optional in parts:
                key, value = key_of(frame), value_of(frame)
                if kind_of(key) not in ("bool", "int", "uint", "string", "double"):
                    raise EvaluationError("unsupported key type")
                if key in result:
                    raise EvaluationError(f"Failed with repeated key [{key}]")
                if not optional:
                    result[key] = value
                elif _optional(value).present:
                    result[key] = value.value
            frame.cost += MAP_COST
            return result

        return run

    def struct(self, node: StructExpr) -> Run:
        parts = [(name, self.plan(value), optional) for name, value, optional in node.fields]
        type_name = node.name.removeprefix(".")

        def run(frame: EvaluationFrame) -> Any:
            fields: dict[str, Any] = {}
            for name, value_of, optional in parts:
                value = value_of(frame)
                if not optional:
                    fields[name] = value
                elif _optional(value).present:
                    fields[name] = value.value
            frame.cost += STRUCT_COST
            return ObjectValue(type_name, fields)

        return run


_SPECIAL: dict[str, Callable[[_Planner, CallExpression], Run]] = {
    "_&&_": _Planner.logic,
    "_||_": _Planner.logic,
    "_?_:_": _Planner.conditional,
    "@not_strictly_false": _Planner.not_strictly_false,
    "_[_]": _Planner.index,
    "_[?_]": _Planner.index,
    "_?._": _Planner.optional_select,
}
_CONVERSIONS = frozenset({"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"})

_PARSERS = frozenset({"quantity", "semver", "ip", "cidr", "url"})  # parsed once where the text is a constant


def _parsed(overloads: tuple[Overload, ...], values: tuple[Any, ...]) -> Run | None:
    """Return the closure of a text that is parsed at compile time; its cost is still charged."""
    if len(overloads) != 1:
        return None
    try:
        value = overloads[0].run(*values)
    except EvaluationError:
        return None
    charge = overloads[0].cost(values, value) if overloads[0].cost else 1

    def run(frame: EvaluationFrame) -> Any:
        frame.cost += charge
        return value

    return run


def _type_name(named: Type) -> str:
    return {"null": "null_type", "duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}.get(
        named.kind, named.name
    )


def _is_attribute(node: Node) -> bool:
    return isinstance(node, (Ident, Select)) or (
        isinstance(node, CallExpression) and node.function in ("_[_]", "_[?_]", "_?._")
    )


def _optional(value: Any) -> Optional:
    if isinstance(value, Optional):
        return value
    raise EvaluationError("cannot initialize optional entry with a value that is not optional")


def _presence(operand: Run, name: str, cost: int) -> Run:
    def run(frame: EvaluationFrame) -> bool:
        value = operand(frame)
        frame.cost += cost
        return has_field(value, name)

    return run


def _optional_or(left: Run, right: Run, unwrap: bool) -> Run:
    def run(frame: EvaluationFrame) -> Any:
        value = left(frame)
        if not isinstance(value, Optional):
            raise EvaluationError("no such overload")
        if value.present:
            return value.value if unwrap else value
        return right(frame)

    return run


def _logic(terms: list[Run], decisive: bool) -> Run:
    """Return the closure of && (decisive False) or || (decisive True): the decisive value overrides an error."""

    def run(frame: EvaluationFrame) -> bool:
        error: EvaluationError | None = None
        for term in terms:
            try:
                value: Any = term(frame)
            except CostLimitExceeded:
                raise
            except EvaluationError as problem:
                error = error or problem
                continue
            if value is decisive:
                return bool(value)
            if type(value) is not bool:
                error = error or EvaluationError("no such overload")
        if error is not None:
            raise error
        return not decisive

    return run
