"""The type checker: resolves the overloads of every call and reports type errors with upstream's texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import types as t
from .declarations import Functions, Overload
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
    StructExpr,
)
from .types import Type
from .unification import Substitution
from .values import Uint

FindObject = Callable[[str], t.ObjectFields | None]


@dataclass(slots=True)
class Checked:
    """Results of the checker; nodes are identified by `id()`."""

    node: Node
    type: Type = t.ERROR
    types: dict[int, Type] = field(default_factory=dict)
    overloads: dict[int, tuple[Overload, ...]] = field(default_factory=dict)
    namespaced: dict[int, str] = field(default_factory=dict)  # calls like `optional.of(x)`: the whole name
    names: dict[int, str] = field(default_factory=dict)  # selects that are one dotted name
    fields: dict[int, str] = field(default_factory=dict)  # selects on objects: the name in the object


def check(
    node: Node,
    variables: Mapping[str, Type],
    functions: Functions,
    find_object: FindObject,
) -> Checked:
    """Return the types of an expression, or raise ExpressionError with every problem found."""
    checker = _Checker(variables, functions, find_object, Checked(node))
    result = checker.visit(node)
    if checker.problems:
        raise ExpressionError(checker.problems)
    checked = checker.checked
    checked.type = checker.subst.resolve(result)
    for key, value in checked.types.items():
        checked.types[key] = checker.subst.resolve(value)
    return checked


_CONSTANTS: dict[type, Type] = {
    bool: t.BOOL,
    int: t.INT,
    Uint: t.UINT,
    float: t.DOUBLE,
    str: t.STRING,
    bytes: t.BYTES,
    type(None): t.NULL,
}


class _Checker:
    def __init__(
        self, variables: Mapping[str, Type], functions: Functions, find_object: FindObject, checked: Checked
    ) -> None:
        self.variables = variables
        self.functions = functions
        self.find_object = find_object
        self.checked = checked
        self.subst = Substitution()
        self.scopes: list[dict[str, Type]] = []
        self.problems: list[ExpressionProblem] = []
        self.visitors: dict[type, Callable[[Any], Type]] = {
            Const: lambda node: _CONSTANTS[type(node.value)],
            Ident: self.ident,
            Select: self.select,
            CallExpression: self.call,
            ListExpr: self.list_literal,
            MapExpr: self.map_literal,
            StructExpr: self.struct,
            Fold: self.fold,
        }

    def visit(self, node: Node) -> Type:
        key = id(node)
        found = self.checked.types.get(key)
        if found is None:  # a macro may use a node twice
            found = self.checked.types[key] = self.visitors[type(node)](node)
        return found

    def report(self, node: Node, message: str) -> Type:
        self.problems.append(ExpressionProblem(node.pos, message))
        return t.ERROR

    def undeclared(self, node: Node, name: str) -> Type:
        return self.report(node, f"undeclared reference to '{name}' (in container '')")

    def lookup(self, name: str) -> Type | None:
        bare = name.removeprefix(".")
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        found = self.variables.get(bare)
        if found is not None:
            return found
        named = t.NAMED_TYPES.get(bare)
        if named is not None:
            return t.type_of(named)
        return t.type_of(t.object_type(bare)) if self.find_object(bare) else None

    def ident(self, node: Ident) -> Type:
        return self.lookup(node.name) or self.undeclared(node, node.name)

    def qualified(self, node: Node) -> str | None:
        """Return `a.b.c` if a node consists only of names."""
        parts: list[str] = []
        while isinstance(node, Select) and not node.test:
            parts.append(node.name)
            node = node.operand
        if not isinstance(node, Ident):
            return None
        parts.append(node.name)
        return ".".join(reversed(parts))

    def select(self, node: Select) -> Type:
        if not node.test:
            name = self.qualified(node)
            found = self.lookup(name) if name else None
            if found is not None and name is not None:
                self.checked.names[id(node)] = name
                return found
        result = self.field_type(node, self.visit(node.operand), node.name)
        return t.BOOL if node.test else result

    def field_type(self, node: Node, operand: Type, name: str) -> Type:
        operand = self.subst.resolve(operand, keep_params=True)
        if t.is_optional(operand):
            inner = self.field_type(node, operand.params[0], name)
            return inner if t.is_optional(inner) else t.optional_of(inner)
        if operand.kind in ("dyn", "error", "param"):
            return t.DYN
        if operand.kind == "map":
            return operand.params[1]
        if operand.kind == "object":
            declared = self.find_object(operand.name)
            if declared is not None and name in declared.fields:
                real, found = declared.fields[name]
                self.checked.fields[id(node)] = real
                return found
            if declared is not None and declared.open:
                return t.DYN
            return self.report(node, f"undefined field '{name}'")
        return self.report(node, f"type '{operand}' does not support field selection")

    def call(self, node: CallExpression) -> Type:
        if node.function == "_?._":
            return self.optional_select(node)
        target, name = node.target, node.function.removeprefix(".")
        if target is not None:
            prefix = self.qualified(target)
            if prefix is not None and f"{prefix}.{name}" in self.functions:
                name, target = f"{prefix}.{name}", None
                self.checked.namespaced[id(node)] = name
        overloads = self.functions.get(name)
        args = [self.visit(arg) for arg in node.args]
        if overloads is None:
            if target is not None:
                self.visit(target)
            return self.undeclared(node, name)
        types = args if target is None else [self.visit(target), *args]
        found, result = self.resolve(overloads, types, target is not None)
        if not found:
            shown = [str(self.subst.resolve(a)) for a in types]
            if target is None:
                signature = f"({', '.join(shown)})"
            else:
                signature = f"{shown[0]}.({', '.join(shown[1:])})"
            return self.report(node, f"found no matching overload for '{name}' applied to '{signature}'")
        self.checked.overloads[id(node)] = found
        return result

    def resolve(
        self, overloads: tuple[Overload, ...], args: list[Type], is_member: bool
    ) -> tuple[tuple[Overload, ...], Type]:
        found: list[Overload] = []
        result: Type | None = None
        for overload in overloads:
            if overload.member != is_member or len(overload.params) != len(args):
                continue
            params, candidate = self.subst.instantiate(overload.params, overload.result)
            if not self.subst.assign_all(args, params):
                continue
            found.append(overload)
            candidate = self.subst.resolve(candidate, keep_params=True)
            if result is None:
                result = candidate
            elif result.kind != "dyn" and result != candidate:
                result = t.DYN
        return tuple(found), result or t.ERROR

    def optional_select(self, node: CallExpression) -> Type:
        operand, name = node.args
        found = self.subst.resolve(self.visit(operand), keep_params=True)
        inner = found.params[0] if t.is_optional(found) else found
        assert isinstance(name, Const)
        self.checked.types[id(name)] = t.STRING
        result = self.field_type(node, inner, name.value)
        return result if t.is_optional(result) else t.optional_of(result)

    def join(self, previous: Type | None, current: Type) -> Type:
        """Return the common type of elements; a validator reports literals with several types."""
        if previous is None:
            return current
        if self.subst.assign(previous, current):
            return current if current.kind == "dyn" else previous
        return t.DYN

    def mismatch(self, node: Node, expected: Type, found: Type) -> Type:
        shown = self.subst.resolve(expected), self.subst.resolve(found)
        return self.report(node, f"expected type '{shown[0]}' but found '{shown[1]}'")

    def unwrap(self, node: Node, optional: bool) -> Type:
        found = self.visit(node)
        if not optional:
            return found
        resolved = self.subst.resolve(found, keep_params=True)
        if t.is_optional(resolved):
            return resolved.params[0]
        if resolved.kind in ("dyn", "error"):
            return t.DYN
        return self.mismatch(node, t.optional_of(resolved), resolved)

    def list_literal(self, node: ListExpr) -> Type:
        element: Type | None = None
        for i, item in enumerate(node.elements):
            element = self.join(element, self.unwrap(item, i in node.optional))
        return t.list_of(element or self.subst.fresh())

    def map_literal(self, node: MapExpr) -> Type:
        key: Type | None = None
        value: Type | None = None
        for k, v, optional in node.entries:
            key = self.join(key, self.visit(k))
            value = self.join(value, self.unwrap(v, optional))
        return t.map_of(key or self.subst.fresh(), value or self.subst.fresh())

    def struct(self, node: StructExpr) -> Type:
        declared = self.find_object(node.name.removeprefix("."))
        for _, value, optional in node.fields:
            self.unwrap(value, optional)
        if declared is None:
            return self.undeclared(node, node.name)
        for name, value, optional in node.fields:
            if name not in declared.fields:
                if not declared.open:
                    self.report(value, f"undefined field '{name}'")
                continue
            expected, found = declared.fields[name][1], self.unwrap(value, optional)
            if not self.subst.assign(expected, found):
                shown = self.subst.resolve(found)
                self.report(value, f"expected type of field '{name}' is '{expected}' but provided type is '{shown}'")
        return t.object_type(declared.name)

    def fold(self, node: Fold) -> Type:
        """Return the type of a loop; check its range, condition and step."""
        over = self.subst.resolve(self.visit(node.range), keep_params=True)
        if over.kind == "list":
            first, second = (over.params[0], t.DYN) if not node.var2 else (t.INT, over.params[0])
        elif over.kind == "map":
            first, second = over.params
        elif over.kind in ("dyn", "error", "param") and over != t.ANY:
            first = second = t.DYN
        else:
            first = second = t.ERROR
            message = f"expression of type '{over}' cannot be range of a comprehension (must be list, map, or dynamic)"
            self.report(node.range, message)
        accu = self.visit(node.init)
        self.scopes.append({node.accu: accu})
        self.scopes.append({node.var: first, node.var2: second} if node.var2 else {node.var: first})
        self.expect(node.condition, t.BOOL)
        self.expect(node.step, accu)
        self.scopes.pop()
        result = self.visit(node.result)
        self.scopes.pop()
        return result

    def expect(self, node: Node, expected: Type) -> None:
        found = self.visit(node)
        if not self.subst.assign(expected, found):
            self.mismatch(node, expected, found)
