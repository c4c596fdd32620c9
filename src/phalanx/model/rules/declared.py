"""Validate objects by their tables: required, bounds, enums, formats, one-of, immutable, gates.

This follows declarative validation of Kubernetes 1.37: the order of complaints is the order of fields, a field that
did not change is not checked again, and "immutable" is said once, before the content is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from phalanx.model import names, tables
from phalanx.model.fieldpath import (
    all_invalid,
    child,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
    too_many,
)
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.schema import Field, ListOf, Object, Type

_FORMATS: dict[str, Callable[[str], list[str]]] = {
    "k8s-short-name": names.short_name,
    "k8s-long-name": names.long_name,
    "k8s-label-key": names.label_key,
    "k8s-path-segment-name": names.path_segment,
}


def declared_errors(
    record: str, new: Json, old: Json | None, path: str, gates: Gates | None = None, *, show: bool = False
) -> list[FieldError]:
    """Return what the table has against `new`, a value of a record; without `old` it is new. No record: nothing.

    `show`: complaints about immutable fields repeat the new value, as hand-written rules of Kubernetes do.
    """
    judge = _Judge(gates or Gates(), show)
    if record:
        judge.record(tables.record(record), path, new, old)
    return judge.errors


def declared_defaults(record: str, obj: Json, *, embedded: bool = True) -> None:
    """Complete a value of a record as its table says; text that may be absent and is empty counts as absent.

    `embedded`: also the objects of other APIs in it, such as pod templates. Custom resources leave these as written.
    """
    if record:
        _complete(tables.record(record), obj, None if embedded else record.rpartition(".")[0])


def _complete(record: Object, obj: Json, only: str | None) -> None:
    """Set the defaults of a record and of those in it; `only`: those of this API version."""
    if only is not None and not record.name.startswith(f"{only}."):
        return
    for field in _defaulted(record):
        kind, value = field.type, obj.get(field.name)
        if only is not None and isinstance(kind, Object) and not kind.name.startswith(f"{only}."):
            continue
        if field.default is not None:
            if value is None or (value == "" and not field.pointer):
                obj[field.name] = field.default
        elif isinstance(kind, Object):
            if value is None and not field.pointer:
                value = obj[field.name] = {}
            if value is not None:
                _complete(kind, value, only)
        elif isinstance(kind, ListOf) and isinstance(kind.item, Object):
            for item in value or ():
                _complete(kind.item, item, only)


def drop_gated(record: str, new: Json, old: Json, gates: Gates) -> None:
    """Remove fields whose gate is off, unless the stored object already uses them."""
    for name, field in tables.record(record).fields.items():
        gate = field.checks.gate or field.checks.drop
        if gate and not gates(gate) and old.get(name) in (None, []):
            new.pop(name, None)


def same(left: Any, right: Any) -> bool:
    """Return True if both are equal for the API: an empty list equals an absent list."""
    if left == right:
        return True
    if not left and not right and not isinstance(left, dict) and not isinstance(right, dict):
        return left in (None, [], "") and right in (None, [], "")
    return bool(_bare(left) == _bare(right))


def _bare(value: Any) -> Any:
    """Return the value without nulls and empty lists."""
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if inner is not None and inner != []}
    if isinstance(value, list):
        return [_bare(inner) for inner in value]
    return value


@cache
def _judged(record: Object) -> tuple[Field, ...]:
    """Return the fields for which a table declares anything, at any depth."""
    return tuple(field for field in record.fields.values() if _any(field, _declares, {record}))


@cache
def _defaulted(record: Object) -> tuple[Field, ...]:
    return tuple(field for field in record.fields.values() if _any(field, lambda f: f.default is not None, {record}))


def _declares(field: Field) -> bool:
    return field.checks.any or bool(field.limits) or (isinstance(field.type, Object) and bool(field.type.one_of))


def _any(field: Field, declares: Callable[[Field], bool], seen: set[Object]) -> bool:
    if declares(field):
        return True
    kind: Type = field.type
    if isinstance(kind, ListOf):
        kind = kind.item
    if not isinstance(kind, Object) or kind in seen:
        return False
    seen.add(kind)
    return any(_any(inner, declares, seen) for inner in kind.fields.values())


class _Judge:
    """Collects complaints about one object."""

    def __init__(self, gates: Gates, show: bool) -> None:
        self.gates = gates
        self.show = show
        self.errors: list[FieldError] = []

    def record(self, schema: Object, path: str, new: Json, old: Json | None) -> None:
        if schema.one_of:
            self._union(schema, path, new, old)
        for field in _judged(schema):
            name = field.name
            before = old.get(name) if old is not None else None
            self._field(field, child(path, name), new.get(name), before, old is not None)

    def _union(self, schema: Object, path: str, new: Json, old: Json | None) -> None:
        """Check that exactly one member is set.

        An update that leaves the set members unchanged is not checked again.
        """
        found, before = (
            [name for name in schema.one_of if _given(schema.fields[name], obj.get(name))] for obj in (new, old or {})
        )
        if len(found) == 1 or (old is not None and found == before):
            return
        listed = ", ".join(f"`{name}`" for name in schema.one_of)
        if found:
            self.errors.append(invalid(path, f"{{{', '.join(found)}}}", f"must specify exactly one of: {listed}"))
        else:
            self.errors.append(invalid(path, "", f"must specify one of: {listed}"))

    def _field(self, field: Field, path: str, new: Any, old: Any, update: bool) -> None:
        checks, kind, given = field.checks, field.type, _given(field, new)
        if update and (new == old if field.pointer and not isinstance(kind, Object) else same(new, old)):
            return
        off = bool(checks.gate) and not self.gates(checks.gate)
        if off and given:
            self.errors.append(forbidden(path))
        if update and self._is_fixed(checks.fixed):
            self.errors.append(immutable(path, new if self.show else None))
        elif off and (checks.fixed or not update):
            return
        elif update and checks.kept and (new is None) != (old is None):
            verb = "set once created" if old is None else "cleared once set"
            self.errors.append(invalid(path, None, f"field cannot be {verb}"))
        elif checks.nonempty and (new is None if field.pointer else not new):
            self.errors.append(required(path))
        elif isinstance(kind, Object):
            if given or not field.pointer:
                self.record(kind, path, new or {}, (old or {}) if update else None)
        elif isinstance(kind, ListOf):
            self._list(field, kind, path, new or [], (old or []) if update else None)
        elif given:
            self._value(field, path, new)

    def _is_fixed(self, when: str) -> bool:
        """Return True if a field is immutable now.

        `when`: always, or while a gate is on ("+Gate") or off ("-Gate").
        """
        return bool(when) and (when == "always" or self.gates(when[1:]) == (when[0] == "+"))

    def _value(self, field: Field, path: str, value: Any) -> None:
        for limit, bound in field.limits:
            if limit == "enum" and value not in bound:
                self.errors.append(not_supported(path, value, bound))
            elif limit == "minimum" and value < bound:
                self.errors.append(invalid(path, value, f"must be greater than or equal to {bound}"))
            elif limit == "maximum" and value > bound:
                self.errors.append(invalid(path, value, f"must be less than or equal to {bound}"))
            elif limit == "format":
                self.errors += all_invalid(path, value, _FORMATS[bound](value))

    def _list(self, field: Field, kind: ListOf, path: str, new: list[Any], old: list[Any] | None) -> None:
        """Judge items of a list; those of a list with fixed items may change inside, but not come or go."""
        limit = dict(field.limits).get("maxItems", len(new))
        fixed = old is not None and field.checks.fixed_items
        if len(new) > limit:
            self.errors.append(too_many(path, len(new), limit))
            if not fixed:
                return
        key = kind.keys[0] if kind.keys else ""
        known = {item.get(key) or "": item for item in old or ()} if key else {}
        if fixed:
            found = {item.get(key) or "" for item in new}
            added = [index for index, item in enumerate(new) if (item.get(key) or "") not in known]
            gone = [name for name in known if name not in found]
            self.errors += [forbidden(f"{path}[{index}]", "item may not be added") for index in added]
            self.errors += [forbidden(path, "item may not be removed") for _ in gone]
            if added or gone or len(new) > limit:
                return
        seen: set[str] = set()
        for index, item in enumerate(new if key else ()):
            if (item.get(key) or "") in seen:
                self.errors.append(duplicate(f"{path}[{index}]", item))
            seen.add(item.get(key) or "")
        if not isinstance(kind.item, Object):
            for index, item in enumerate(new if field.limits else ()):
                self._value(field, f"{path}[{index}]", item)
        else:
            for index, item in enumerate(new):
                earlier = known.get(item.get(key) or "")
                if earlier is None or not same(item, earlier):
                    self.record(kind.item, f"{path}[{index}]", item, earlier)


def _given(field: Field, value: Any) -> bool:
    return value is not None if field.pointer else bool(value)
