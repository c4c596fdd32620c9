"""Loops of expressions: `all`, `map` and the other macros, with variables in slots of the frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .dispatch import EvaluationFrame, Run
from .macros import UNUSED
from .syntax import CallExpression, Const, Fold, ListExpr, MapExpr, Node
from .values import CostLimitExceeded, EvaluationError, FieldMap, kind_of


class Loops:
    """Plans loops and assigns slots to loop variables."""

    def __init__(self, plan: Callable[[Node], Run]) -> None:
        self._plan = plan
        self._scopes: list[dict[str, int]] = []
        self.slots = 0

    @property
    def depth(self) -> int:
        """Return the number of open scopes; with a node it identifies a plan."""
        return len(self._scopes)

    def _declare(self, *names: str) -> list[int]:
        scope: dict[str, int] = {}
        for name in names:
            scope[name] = self.slots
            self.slots += 1
        self._scopes.append(scope)
        return list(scope.values())

    def variable(self, name: str) -> Run | None:
        """Return the closure that reads a loop variable; None if no loop declares it."""
        slot = next((scope[name] for scope in reversed(self._scopes) if name in scope), None)
        if slot is None:
            return None

        def run(frame: EvaluationFrame) -> Any:
            frame.cost += 1
            value = frame.slots[slot]
            if type(value) is EvaluationError:  # an accumulator stores the error of its last step
                raise value
            return value

        return run

    def _collects(self, node: Fold) -> _Collects | None:
        """Return how a loop extends its list or map, if it does nothing else; it is then extended in place."""
        test, step = None, node.step
        if isinstance(step, CallExpression) and step.function == "_?_:_":
            test, step = step.args[0], step.args[1]
        if not isinstance(step, CallExpression) or not isinstance(node.init, (ListExpr, MapExpr)) or node.var == UNUSED:
            return None
        planned = None if test is None else self._plan(test)
        if step.function == "_+_" and isinstance(step.args[1], ListExpr) and not step.args[1].optional:
            [element] = step.args[1].elements
            return _Collects(planned, None, self._plan(element), _ADD_ELEMENT)
        if step.function == "cel.@mapInsert" and len(step.args) == 3:
            return _Collects(planned, self._plan(step.args[1]), self._plan(step.args[2]), _INSERT)
        return None

    def fold(self, node: Fold) -> Run:
        """Return the closure of a loop."""
        over, init = self._plan(node.range), self._plan(node.init)
        [accu] = self._declare(node.accu)
        names = self._declare(node.var, node.var2) if node.var2 else self._declare(node.var)
        collects = self._collects(node)
        condition, step = self._plan(node.condition), self._plan(node.step)
        self._scopes.pop()
        result = self._plan(node.result)
        self._scopes.pop()
        always = isinstance(node.condition, Const) and node.condition.value is True
        if collects is not None:
            return _collecting(over, names, accu, collects, result)

        def run(frame: EvaluationFrame) -> Any:
            elements = _elements(over(frame), len(names) == 2)
            slots = frame.slots
            slots[accu] = _value_or_error(init, frame)
            for element in elements:
                if len(names) == 2:
                    slots[names[0]], slots[names[1]] = element
                else:
                    slots[names[0]] = element
                if not always and not condition(frame):
                    break
                slots[accu] = _value_or_error(step, frame)
                if frame.cost > frame.limit:
                    raise CostLimitExceeded
                if always and type(slots[accu]) is EvaluationError:
                    break
            return result(frame)

        return run


_ADD_ELEMENT = 12  # cost units of `result + [element]`: a name, a list, a call
_INSERT = 2  # cost units of an insertion: a name and a call


class _Collects(NamedTuple):
    """A loop that adds an element or an entry in each iteration whose test is true."""

    test: Run | None
    key: Run | None  # of an entry
    value: Run
    cost: int


def _collecting(over: Run, names: list[int], accu: int, collects: _Collects, result: Run) -> Run:
    """Return the closure of a loop that extends in place; its cost is that of copying."""
    test, key_of, value_of, cost = collects

    def run(frame: EvaluationFrame) -> Any:
        elements = _elements(over(frame), len(names) == 2)
        slots = frame.slots
        found: list[Any] = []
        entries: dict[Any, Any] = {}
        for element in elements:
            if len(names) == 2:
                slots[names[0]], slots[names[1]] = element
            else:
                slots[names[0]] = element
            chosen = True if test is None else test(frame)
            if chosen is True and key_of is None:
                found.append(value_of(frame))
            elif chosen is True and key_of is not None:
                key = key_of(frame)
                if key in entries:
                    raise EvaluationError(f"insert failed: key {key} already exists")
                entries[key] = value_of(frame)
            elif chosen is not False:
                raise EvaluationError("no such overload")
            frame.cost += cost if chosen else 1
            if frame.cost > frame.limit:
                raise CostLimitExceeded
        slots[accu] = found if key_of is None else entries
        return result(frame)

    return run


def _value_or_error(run: Run, frame: EvaluationFrame) -> Any:
    try:
        return run(frame)
    except CostLimitExceeded:
        raise
    except EvaluationError as problem:
        return EvaluationError(str(problem))


def _elements(value: Any, pairs: bool) -> Any:
    if isinstance(value, list):
        return enumerate(value) if pairs else value
    if isinstance(value, FieldMap):
        names = value.keys()
        return [(k, value.get_field(k)) for k in names] if pairs else names
    if isinstance(value, dict):
        return list(value.items()) if pairs else list(value)
    raise EvaluationError(f"got '{_go_type(value)}', expected iterable type")


_GO_TYPES = {
    "kubernetes.Quantity": "cel.Quantity",
    "kubernetes.Semver": "cel.Semver",
    "optional_type": "*types.Optional",
}


def _go_type(value: Any) -> str:
    """Return upstream's name for the type of a value."""
    kind = kind_of(value)
    return _GO_TYPES.get(kind) or f"types.{kind.capitalize()}"
