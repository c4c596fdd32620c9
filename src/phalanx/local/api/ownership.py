"""From objects to field sets: which fields a value has, and which two values of one type differ in.

Compiled once per type, because every write walks its object here. Works on plain JSON; where a value does not match
its type, or the type says "atomic", the value counts as one indivisible field. Sets are made with their keys sorted,
as Kubernetes writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from phalanx.local.api.fieldset import LEAF, Fields, in_order
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

_encode = msgspec.json.encode
_MISSING: Any = object()
_TCP = {"protocol": "TCP"}  # the one defaulted list-map key of the API

Key = Callable[[Any], str | None]  # list item -> its path element, None when it has none
Plan = tuple[
    tuple[str, str, "Walker | None", bool], ...
]  # name, path element, walker (None for leaves), always present
MOST_PLANS = 256  # of one type; objects of one kind have few sets of names


def item_key(schema: ListOf) -> Key:
    """Return the key of an item of a set or map list."""
    if schema.kind == "set":

        def by_value(item: Any) -> str | None:
            return "v:" + _encode(item).decode()

        return by_value
    if len(schema.keys) == 1:
        name = schema.keys[0]
        head = 'k:{"' + name + '":'

        def by_one(item: Any) -> str | None:
            value = item.get(name) if type(item) is dict else None
            return None if value is None else head + _encode(value).decode() + "}"

        return by_one
    names = tuple(sorted(schema.keys))

    def by_many(item: Any) -> str | None:
        if type(item) is not dict:
            return None
        found = {}
        for name in names:
            value = item.get(name, _TCP.get(name))
            if value is not None:
                found[name] = value
        return "k:" + _encode(found).decode() if found else None

    return by_many


class Walker:
    """Knows one type. `atomic` values are leaves."""

    __slots__ = ("_children", "_item", "_plans", "atomic", "key", "plain", "schema")

    def __init__(self, schema: Type, *, atomic: bool = False) -> None:
        self.schema = schema
        self.atomic = atomic or _is_atomic(schema)
        self.key: Key | None = None
        if isinstance(schema, ListOf) and not self.atomic:
            self.key = item_key(schema)
        # Object: name -> (path element, walker, plain struct?); filled on first use because types are recursive.
        self._children: dict[str, tuple[str, Walker, bool]] | None = None
        self._item: Walker | None = None  # of a list or map; likewise
        self._plans: dict[tuple[str, ...], Plan] = {}  # names of the fields of a value -> how to walk them, sorted
        self.plain = isinstance(schema, Object) and not self.atomic

    def children(self) -> dict[str, tuple[str, Walker, bool]]:
        if self._children is None:
            assert isinstance(self.schema, Object)
            self._children = {
                name: (f"f:{name}", walker_of(f), _always_there(f)) for name, f in self.schema.fields.items()
            }
        return self._children

    def item(self) -> Walker:
        if self._item is None:
            assert isinstance(self.schema, ListOf | MapOf)
            item = self.schema.item if isinstance(self.schema, ListOf) else self.schema.value
            self._item = _walker(item, atomic=False)
        return self._item

    def _plan(self, names: tuple[str, ...]) -> Plan:
        """Build and cache the plan for all values with these names.

        Sorting the names once costs less than sorting the set of every value.
        """
        table = self._children or self.children()
        plan = []
        for name in sorted(names):
            known = table.get(name)
            inner = None if known is None or known[1].atomic else known[1]
            plan.append((name, f"f:{name}", inner, known is not None and known[2]))
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[names] = tuple(plan)
        return self._plans[names]

    def added(self, value: Any) -> Fields:
        """Return the node of a value that was added as a whole: it owns itself and everything below."""
        if self.atomic or not value:
            return LEAF
        if self.plain:
            if type(value) is not dict:
                return LEAF
            names = tuple(value)
            out: Fields = {".": LEAF}
            for name, element, inner, _ in self._plans.get(names) or self._plan(names):
                out[element] = LEAF if inner is None else inner.added(value[name])
            return out
        walker = self.item()
        out = {".": LEAF}
        if self.key is None:
            if type(value) is not dict:
                return LEAF
            for name in sorted(value):
                out["f:" + name] = LEAF if walker.atomic else walker.added(value[name])
            return out
        if type(value) is not list:
            return LEAF
        for item in value:
            path = self.key(item)
            if path is not None:
                out[path] = LEAF if walker.atomic else walker.added(item)
        return out if len(value) == 1 else in_order(out)

    def filled(self, value: Any) -> Fields:
        """Return the node of a record that was always there, empty, and got content.

        It does not own itself.
        """
        if not self.plain or type(value) is not dict:
            whole = self.added(value)
            if whole and self.key is not None:  # a list that is always present (spec.containers)
                whole = {key: node for key, node in whole.items() if key != "."}
            return whole
        out: Fields = {}
        names = tuple(value)
        for name, element, inner, always in self._plans.get(names) or self._plan(names):
            if inner is None:
                out[element] = LEAF
            else:
                item = value[name]
                out[element] = inner.filled(item) if always and item else inner.added(item)
        return out

    def applied(self, value: Any) -> Fields:
        """Return the node of an applied value: leaves, map entries and list items are owned."""
        if self.atomic or not value:
            return LEAF
        out: Fields = {}
        if self.plain:
            if type(value) is not dict:
                return LEAF
            names = tuple(value)
            for name, element, inner, _ in self._plans.get(names) or self._plan(names):
                out[element] = LEAF if inner is None else inner.applied(value[name])
            return out
        walker = self.item()
        if self.key is None:
            if type(value) is not dict:
                return LEAF
            for name in sorted(value):
                out["f:" + name] = _with_self(walker.applied(value[name]))
            return out
        if type(value) is not list:
            return LEAF
        for item in value:
            path = self.key(item)
            if path is not None:
                out[path] = _with_self(walker.applied(item))
        return in_order(out)

    def compare(self, old: Any, new: Any, changed: Fields, removed: Fields) -> bool:
        """Collect the differences below this node.

        Return False if the value differs as a whole; the caller records it then.
        """
        if self.atomic:
            return False
        if self.key is not None:
            return type(old) is list and type(new) is list and self._compare_items(old, new, changed, removed)
        if type(old) is not dict or type(new) is not dict:
            return False
        table = (self._children or self.children()) if self.plain else None
        value_walker = None if self.plain else self.item()
        for name, item in new.items():
            before = old.get(name, _MISSING)
            if before is not _MISSING and before == item:
                continue
            if table is not None:
                known = table.get(name)
                if known is None:
                    changed["f:" + name] = LEAF
                    continue
                element, walker, always = known
            else:
                element, walker, always = "f:" + name, value_walker, False  # type: ignore[assignment]
            if before is _MISSING:
                changed[element] = walker.filled(item) if always and item else walker.added(item)
            else:
                _descend(walker, element, before, item, changed, removed)
        for name, before in old.items():
            if name not in new:
                if table is not None:
                    known = table.get(name)
                    removed["f:" + name] = known[1].added(before) if known is not None else LEAF
                else:
                    removed["f:" + name] = value_walker.added(before)  # type: ignore[union-attr]
        return True

    def _compare_items(self, old: list[Any], new: list[Any], changed: Fields, removed: Fields) -> bool:
        assert self.key is not None
        walker = self.item()
        before: dict[str, Any] = {}
        for item in old:
            element = self.key(item)
            if element is not None:
                before.setdefault(element, item)
        seen = set()
        for item in new:
            element = self.key(item)
            if element is None or element in seen:
                continue
            seen.add(element)
            there = before.get(element, _MISSING)
            if there is _MISSING:
                changed[element] = walker.added(item)
            elif there != item:
                _descend(walker, element, there, item, changed, removed)
        for element, item in before.items():
            if element not in seen:
                removed[element] = walker.added(item)
        return True


def _descend(walker: Walker, element: str, old: Any, new: Any, changed: Fields, removed: Fields) -> None:
    below: Fields = {}
    gone: Fields = {}
    if not walker.compare(old, new, below, gone):
        changed[element] = LEAF
        return
    if below:
        changed[element] = in_order(below)
    if gone:
        removed[element] = gone


def _with_self(node: Fields) -> Fields:
    return {".": LEAF, **node} if node else LEAF


def _is_atomic(schema: Type) -> bool:
    if isinstance(schema, Scalar):
        return True
    if isinstance(schema, ListOf):
        return schema.kind == "atomic"
    return schema.atomic


def _always_there(field: Field) -> bool:
    """Return True if the field exists in every object, so that no manager adds it.

    That is so for values (not pointers) of records and for required lists.
    """
    if isinstance(field.type, Object):
        return not field.pointer
    return isinstance(field.type, ListOf) and field.required


_WALKERS: dict[tuple[int, bool], Walker] = {}


def _walker(schema: Type, *, atomic: bool) -> Walker:
    key = (id(schema), atomic)
    found = _WALKERS.get(key)
    if found is None or found.schema is not schema:
        if len(_WALKERS) > 50_000:  # definitions of custom resources come and go
            _WALKERS.clear()
        found = _WALKERS[key] = Walker(schema, atomic=atomic)
    return found


def walker_of(field: Field) -> Walker:
    return _walker(field.type, atomic=field.atomic)


def walker_of_type(schema: Type) -> Walker:
    return _walker(schema, atomic=False)
