"""Assignability of types and the values of type parameters."""

from __future__ import annotations

from collections.abc import Iterable

from .types import DYN, Type, param

_NULLABLE = frozenset({"null", "object", "opaque", "timestamp", "duration"})


class Substitution:
    """Present values of type parameters."""

    def __init__(self) -> None:
        self._known: dict[str, Type] = {}
        self._count = 0

    def fresh(self) -> Type:
        """Return an unused type parameter."""
        self._count += 1
        return param(f"_var{self._count}")

    def instantiate(self, params: tuple[Type, ...], result: Type) -> tuple[list[Type], Type]:
        """Return the types of an overload with fresh type parameters."""
        renamed: dict[str, Type] = {}

        def rename(one: Type) -> Type:
            if one.kind == "param":
                if one.name not in renamed:
                    renamed[one.name] = self.fresh()
                return renamed[one.name]
            return Type(one.kind, one.name, tuple(map(rename, one.params))) if one.params else one

        return [rename(p) for p in params], rename(result)

    def resolve(self, one: Type, keep_params: bool = False) -> Type:
        """Return a type with known parameters replaced; unknown ones become dyn unless `keep_params`."""
        if one.kind == "param":
            known = self._known.get(one.name)
            if known is None:
                return one if keep_params else DYN
            return self.resolve(known, keep_params)
        if not one.params:
            return one
        return Type(one.kind, one.name, tuple(self.resolve(p, keep_params) for p in one.params))

    def assign(self, source: Type, target: Type) -> bool:
        """Unify two types; return True if a value of `source` may be used as `target`."""
        return self.assign_all((source,), (target,))

    def assign_all(self, sources: Iterable[Type], targets: Iterable[Type]) -> bool:
        """Unify pairs of types; a failure changes nothing."""
        before = dict(self._known)
        if all(self._unify(a, b) for a, b in zip(sources, targets, strict=True)):
            return True
        self._known = before
        return False

    def _unify(self, a: Type, b: Type) -> bool:
        names = [one.name for one in (a, b) if one.kind == "param"]
        a, b = self._shallow(a), self._shallow(b)
        if a == b:
            return True
        if (a.kind == "dyn") != (b.kind == "dyn"):
            for name in names:  # `c ? 1 : x` with x of type dyn has type dyn
                self._generalize(name)
        if b.kind == "param":
            return self._bind(b, a)
        if a.kind == "param":
            return self._bind(a, b)
        if a.kind in ("dyn", "error") or b.kind in ("dyn", "error"):
            return True
        if a.kind == "null" or b.kind == "null":
            return (b if a.kind == "null" else a).kind in _NULLABLE
        if a.kind != b.kind or a.name != b.name:
            return False
        if a.kind == "type":  # type values are comparable with each other
            return True
        if len(a.params) != len(b.params):
            return False
        return all(self._unify(x, y) for x, y in zip(a.params, b.params, strict=True))

    def _generalize(self, name: str) -> None:
        while (known := self._known.get(name)) is not None and known.kind == "param":
            name = known.name
        self._known[name] = DYN

    def _shallow(self, one: Type) -> Type:
        while one.kind == "param" and one.name in self._known:
            one = self._known[one.name]
        return one

    def _bind(self, parameter: Type, value: Type) -> bool:
        if self._occurs(parameter, value):
            return False
        self._known[parameter.name] = value
        return True

    def _occurs(self, parameter: Type, value: Type) -> bool:
        value = self._shallow(value)
        return value == parameter or any(self._occurs(parameter, p) for p in value.params)
