"""Estimate the maximum cost of an expression before it runs.

Follows upstream's estimate: sizes of variables come from their schemas; unknown sizes are unbounded.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

from . import types as t
from .checker import Checked
from .declarations import REGEX_FACTOR, STRING_FACTOR
from .functions.authorizer import CHECK_COST
from .macros import UNUSED
from .program import LIST_COST, MAP_COST, STRUCT_COST
from .sizes import Sized
from .syntax import CallExpression, Const, Fold, Ident, ListExpr, MapExpr, Node, Select, StructExpr
from .types import Type

MOST = 2**64 - 1


class Size(NamedTuple):
    """Minimum and maximum size."""

    least: int
    most: int


UNKNOWN = Size(0, MOST)
ONE = Size(1, 1)
_SCALARS = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
_COMPARISONS = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_NAME_PATTERN = 128  # code points of the longest pattern of a named format


class ArgumentEstimate(NamedTuple):
    """An argument of a call: its node, its size and the size of its elements."""

    node: Node
    size: Size
    element: Size


def estimate(checked: Checked, roots: dict[str, Sized], default: Sized | None = None) -> int:
    """Return the maximum cost. `roots`: sizes of variables.

    `default`: size of values that come from no variable, such as the parts of a split string. In rules of definitions
    upstream uses the size of `self` for these.
    """
    return _Estimate(checked, roots, default).cost(checked.node)


def _times(size: int, factor: float) -> int:
    return min(MOST, ceil(size * factor)) if size < MOST else MOST


def _union(a: Size, b: Size) -> Size:
    return Size(min(a.least, b.least), max(a.most, b.most))


class _Estimate:
    def __init__(self, checked: Checked, roots: dict[str, Sized], default: Sized | None) -> None:
        self.checked = checked
        self.roots = roots
        self.default = default
        self.paths: dict[int, list[str]] = {}
        self.sizes: dict[int, Size] = {}
        self.entries: dict[int, tuple[Size, Size]] = {}  # sizes of (keys, values) of list and map literals
        self.scopes: list[dict[str, tuple[list[str], Size | None, tuple[Size, Size] | None]]] = []
        self.visitors: dict[type, Callable[[Any], int]] = {
            Const: lambda node: 0,
            Ident: self.ident,
            Select: self.select,
            CallExpression: self.call,
            ListExpr: self.list_literal,
            MapExpr: self.map_literal,
            StructExpr: lambda node: STRUCT_COST + sum(self.cost(v) for _, v, _ in node.fields),
            Fold: self.fold,
        }

    def cost(self, node: Node) -> int:
        return min(MOST, self.visitors[type(node)](node))

    def type_of(self, node: Node) -> Type:
        return self.checked.types.get(id(node), t.DYN)

    # -- names ---------------------------------------------------------------------------------------------------------

    def local(self, name: str) -> tuple[list[str], Size | None, tuple[Size, Size] | None] | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def ident(self, node: Ident) -> int:
        found = self.local(node.name)
        self.paths[id(node)] = found[0] if found else [node.name]
        return 1

    def select(self, node: Select) -> int:
        if id(node) in self.checked.names:
            return 1
        cost = self.cost(node.operand)
        if node.test:
            return cost
        path = self.paths.get(id(node.operand))
        if path:
            self.paths[id(node)] = [*path, node.name]
        return cost + (1 if self.type_of(node.operand).kind in ("map", "object", "param", "dyn") else 0)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def size(self, node: Node) -> Size:
        return self.known_size(node) or UNKNOWN

    def known_size(self, node: Node) -> Size | None:
        found = self.sizes.get(id(node)) or _literal_size(node)
        if found is not None:
            return found
        sized = self.sized(self.paths.get(id(node)))
        if sized is not None:
            return Size(0, sized.most)
        if _is_scalar(self.type_of(node)):
            return ONE
        local = self.local(node.name) if isinstance(node, Ident) else None
        return local[1] if local else None

    def sized(self, path: list[str] | None) -> Sized | None:
        root = self.roots.get(path[0], self.default) if path else None
        return root.at(path[1:]) if root is not None and path else None

    def entry(self, node: Node) -> tuple[Size, Size] | None:
        found = self.entries.get(id(node))
        local = self.local(node.name) if found is None and isinstance(node, Ident) else None
        return local[2] if local else found

    def element(self, node: Node) -> Size:
        """Return the size of the elements of a list."""
        found = self.entry(node)
        if found is not None:
            return found[1]
        path = self.paths.get(id(node))
        sized = self.sized([*path, "@items"]) if path else None
        if sized is not None:
            return Size(0, sized.most)
        one = self.type_of(node)
        return ONE if one.params and _is_scalar(one.params[0]) else UNKNOWN

    # -- values that are built -----------------------------------------------------------------------------------------

    def list_literal(self, node: ListExpr) -> int:
        cost = LIST_COST
        item: Size | None = None if node.elements else Size(0, 0)
        for part in node.elements:
            cost += self.cost(part)
            size = self.size(part)
            item = size if item is None else _union(item, size)
        self.entries[id(node)] = (ONE, item or Size(0, 0))
        return cost

    def map_literal(self, node: MapExpr) -> int:
        cost = MAP_COST
        keys = values = None if node.entries else Size(0, 0)
        for key, value, _ in node.entries:
            cost += self.cost(key) + self.cost(value)
            keys = self.size(key) if keys is None else _union(keys, self.size(key))
            values = self.size(value) if values is None else _union(values, self.size(value))
        self.entries[id(node)] = (keys or Size(0, 0), values or Size(0, 0))
        return cost

    # -- loops ---------------------------------------------------------------------------------------------------------

    def fold(self, node: Fold) -> int:
        """Return the estimated cost of a loop: that of one step times the largest size of its range."""
        cost = self.cost(node.range) + self.cost(node.init)
        known = (self.paths.get(id(node.init), []), self.known_size(node.init), self.entry(node.init))
        self.scopes.append({node.accu: known})
        if node.var == UNUSED:  # cel.bind: no loop
            cost += self.cost(node.result)
            self.scopes.pop()
            self.copy(node, node.result)
            return cost
        self.scopes.append(self.variables(node))
        each = self.cost(node.condition) + self.cost(node.step)
        steps = self.entry(node.step)
        self.scopes.pop()
        cost += self.cost(node.result)
        self.scopes.pop()
        count = self.size(node.range)
        if isinstance(node.init, Const):
            self.sizes[id(node)] = self.size(node.init)
        elif isinstance(node.init, (ListExpr, MapExpr)):
            self.sizes[id(node)] = count
            if steps is not None:
                self.entries[id(node)] = steps
        return cost + min(MOST, count.most * each)

    def variables(self, node: Fold) -> dict[str, tuple[list[str], Size | None, tuple[Size, Size] | None]]:
        path, entry = self.paths.get(id(node.range), []), self.entry(node.range)
        is_list = self.type_of(node.range).kind == "list" or isinstance(node.range, ListExpr)
        keys = ([*path, "@indices" if is_list else "@keys"], entry[0] if entry else None, None)
        values = ([*path, "@items" if is_list else "@values"], entry[1] if entry else None, None)
        if node.var2:
            return {node.var: keys, node.var2: values}
        return {node.var: values if is_list else keys}

    def copy(self, target: Node, source: Node) -> None:
        size, entry = self.known_size(source), self.entry(source)
        if size is not None:
            self.sizes[id(target)] = size
        if entry is not None:
            self.entries[id(target)] = entry

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, node: CallExpression) -> int:
        function = self.checked.namespaced.get(id(node), node.function)
        nodes = list(node.args)
        if node.target is not None and id(node) not in self.checked.namespaced:
            nodes.insert(0, node.target)
        costs = [self.cost(one) for one in nodes]
        if function in ("_&&_", "_||_"):
            return sum(costs)
        if function == "_?_:_":
            self.choice(node, nodes)
            return costs[0] + max(costs[1:])
        if function == "dyn":
            self.copy(node, nodes[0])
            return 1 + costs[0]
        parts = [ArgumentEstimate(one, self.size(one), self.element(one)) for one in nodes]
        if function in ("_[_]", "_[?_]"):
            self.index(node, nodes[0])
            return 1 + sum(costs)
        if function == "matches" and node.target is None:
            return 1 + sum(costs)  # upstream counts the pattern of `s.matches(p)` only
        own, size = self.own_cost(function, parts)
        if size is not None:
            self.sizes[id(node)] = size
        if function == "_+_":
            first, second = self.entry(nodes[0]), self.entry(nodes[1])
            if first and second:
                self.entries[id(node)] = (_union(first[0], second[0]), _union(first[1], second[1]))
        return min(MOST, own + sum(costs))

    def choice(self, node: CallExpression, nodes: list[Node]) -> None:
        self.sizes[id(node)] = _union(self.size(nodes[1]), self.size(nodes[2]))
        first, second = self.entry(nodes[1]), self.entry(nodes[2])
        if first and second:
            self.entries[id(node)] = (_union(first[0], second[0]), _union(first[1], second[1]))

    def index(self, node: CallExpression, operand: Node) -> None:
        entry = self.entry(operand)
        if entry is not None:
            self.sizes[id(node)] = entry[1]
        step = "@items" if self.type_of(operand).kind == "list" else "@values"
        self.paths[id(node)] = [*self.paths.get(id(operand), []), step]

    def own_cost(self, function: str, parts: list[ArgumentEstimate]) -> tuple[int, Size | None]:
        """Return (cost, size of the result) of a call without its arguments."""
        if function in ("_==_", "_!=_") or function in _COMPARISONS:
            return self.comparison(function, parts), None
        if function == "_+_":
            size = Size(*(min(MOST, a + b) for a, b in zip(parts[0].size, parts[1].size, strict=True)))
            kind = self.type_of(parts[0].node).kind
            return (_times(size.most, STRING_FACTOR) if kind in ("string", "bytes", "dyn") else 1), size
        rule = _RULES.get(function)
        if rule is None or (function in ("string", "bytes") and not self.converts_text(parts)):
            return 1, None
        if function == "ip" and self.type_of(parts[0].node).kind == "opaque":  # of a CIDR
            return 1, None
        if function == "@in" and self.type_of(parts[1].node).kind == "map":
            return 1, None
        is_list = self.type_of(parts[0].node).kind == "list" if parts else False
        return rule(parts, is_list)

    def converts_text(self, parts: list[ArgumentEstimate]) -> bool:
        """Return whether a conversion copies text: between strings and bytes."""
        return self.type_of(parts[0].node).kind in ("string", "bytes")

    def comparison(self, function: str, parts: list[ArgumentEstimate]) -> int:
        kinds = {self.type_of(part.node).kind for part in parts}
        if function in _COMPARISONS and not kinds & {"string", "bytes", "dyn"}:
            return 1
        if "opaque" in kinds:
            return 1
        return _times(min(part.size.most for part in parts), STRING_FACTOR)


def _is_scalar(one: Type) -> bool:
    return one.kind in _SCALARS or one.kind in ("type", "null") or (t.is_optional(one) and _is_scalar(one.params[0]))


def _literal_size(node: Node) -> Size | None:
    if isinstance(node, Const):
        size = len(node.value) if isinstance(node.value, (str, bytes)) else 1
        return Size(size, size)
    if isinstance(node, ListExpr):
        return Size(len(node.elements), len(node.elements))
    if isinstance(node, MapExpr):
        return Size(len(node.entries), len(node.entries))
    return None


Rule = Callable[[list[ArgumentEstimate], bool], tuple[int, Size | None]]


def _reads(times: int = 1, keeps: bool = False) -> Rule:
    def rule(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
        return _times(parts[0].size.most, times * STRING_FACTOR), parts[0].size if keeps else None

    return rule


def _argument(index: int) -> Rule:
    return lambda parts, _: (_times(parts[index].size.most, STRING_FACTOR), None)


def _traverses(parts: list[ArgumentEstimate], is_list: bool) -> tuple[int, Size | None]:
    if not is_list:
        return _times(parts[0].size.most, STRING_FACTOR), None
    each = 1 + _times(parts[0].element.most, STRING_FACTOR) if parts[0].element != ONE else 1
    return min(MOST, parts[0].size.most * each), None


def _includes(parts: list[ArgumentEstimate], is_list: bool) -> tuple[int, Size | None]:
    return _traverses(parts, is_list) if is_list else (parts[0].size.most, None)


def _pattern(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    text = _times(min(MOST, parts[0].size.most + 1), STRING_FACTOR)
    return min(MOST, text * _times(parts[1].size.most, REGEX_FACTOR)), Size(0, parts[0].size.most)


def _contains(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    return (
        min(MOST, _times(parts[0].size.most, STRING_FACTOR) * _times(parts[1].size.most, STRING_FACTOR)),
        None,
    )


def _in(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    return parts[1].size.most if parts[1].size.most < MOST else MOST, None


def _quotes(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    size = parts[0].size
    return _times(size.most, STRING_FACTOR), Size(size.least + 2, min(MOST, size.most * 2 + 2))


def _replace(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    size, old, new = parts[0].size, parts[1].size, parts[2].size
    if old.least == 0:
        most = min(MOST, (size.most + 1) * new.most + size.most)
    elif new.most <= old.least:
        most = size.most
    else:
        most = min(MOST, ceil(size.most / old.least) * new.most)
    return _times(size.most, 2 * STRING_FACTOR), Size(0, most)


def _split(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    limit = parts[2].node if len(parts) > 2 else None
    most = limit.value if isinstance(limit, Const) and limit.value >= 0 else parts[0].size.most
    return _times(parts[0].size.most, 2 * STRING_FACTOR), Size(0, most)


def _join(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    count = parts[0].size.most
    most = min(MOST, count * parts[0].element.most)
    if len(parts) > 1:
        most = min(MOST, most + max(count - 1, 0) * parts[1].size.most)
    return _times(most, STRING_FACTOR), Size(0, most)


def _to_bytes(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    return _times(parts[0].size.most, STRING_FACTOR), Size(parts[0].size.least, min(MOST, 4 * parts[0].size.most))


def _product(factor: int) -> Rule:
    return lambda parts, _: (min(MOST, 1 + factor * parts[0].size.most * parts[1].size.most), None)


def _square(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    return min(MOST, LIST_COST + 2 * parts[0].size.most ** 2), parts[0].size


def _linear(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    return min(MOST, LIST_COST + parts[0].size.most), parts[0].size


def _range(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    node = parts[0].node
    most = max(node.value, 0) if isinstance(node, Const) else MOST
    return min(MOST, LIST_COST + most), Size(0, most)


def _check(_: list[ArgumentEstimate], __: bool) -> tuple[int, Size | None]:
    return CHECK_COST, None


def _selector(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    size = parts[1].size.most
    return min(MOST, LIST_COST + _times(size, STRING_FACTOR) + _times(_times(size, 0.5), 50)), None


def _validate(parts: list[ArgumentEstimate], _: bool) -> tuple[int, Size | None]:
    return _times(_times(parts[1].size.most, STRING_FACTOR), _NAME_PATTERN * REGEX_FACTOR), None


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traverses),
    "includes": _includes,
    **dict.fromkeys(
        ("url", "jsonpatch.escapeKey", "lowerAscii", "upperAscii", "substring", "trim"), _reads(keeps=True)
    ),
    **dict.fromkeys(
        ("quantity", "isQuantity", "semver", "isSemver", "cidr", "ip", "isIP", "isCIDR", "format"), _reads()
    ),
    **dict.fromkeys(("startsWith", "endsWith"), _argument(1)),
    **dict.fromkeys(("matches", "find", "findAll"), _pattern),
    **dict.fromkeys(("fieldSelector", "labelSelector"), _selector),
    **dict.fromkeys(("distinct", "sort", "@sortByAssociatedKeys"), _square),
    **dict.fromkeys(("slice", "flatten", "reverse"), _linear),
    "ip.isCanonical": _reads(2),
    "strings.quote": _quotes,
    "string": _reads(keeps=True),
    "bytes": _to_bytes,
    "replace": _replace,
    "split": _split,
    "join": _join,
    "contains": _contains,
    "@in": _in,
    "sets.contains": _product(1),
    "sets.intersects": _product(1),
    "sets.equivalent": _product(2),
    "lists.range": _range,
    "check": _check,
    "validate": _validate,
}
