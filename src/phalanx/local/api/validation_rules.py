"""`x-kubernetes-validations`: rules in CEL that a CustomResourceDefinition has for its objects.

Rules are compiled once per definition. An object has a budget of cost units for all of its rules. A rule about a value
that did not change does not refuse an update but causes a warning (ratcheting), unless it compares with the old value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from phalanx.base.well_known import EMBEDDED_RESOURCE, LIST_MAP_KEYS, LIST_TYPE
from phalanx.cel import types as t
from phalanx.cel.declarations import Functions
from phalanx.cel.environment import FOR_NEW, KUBERNETES, Environment
from phalanx.cel.estimate import MOST, estimate
from phalanx.cel.program import Program
from phalanx.cel.schemas import SchemaTypes, value_of
from phalanx.cel.sizes import Sized, size_of_schema
from phalanx.cel.syntax import CompileError
from phalanx.cel.validators import mentions
from phalanx.cel.values import NONE, EvaluationError, some
from phalanx.model.fieldpath import child, duplicate, forbidden, invalid, not_supported, required
from phalanx.model.kinds import FieldError, Json

RULES = "x-kubernetes-validations"
CALL_LIMIT = 1_000_000  # cost units of one rule
RULE_COST_LIMIT = 10_000_000  # cost units that a rule may be estimated at, for all places where it applies
CRD_COST_LIMIT = 100_000_000  # cost units that all rules of a definition may be estimated at
OBJECT_BUDGET = 10_000_000  # cost units of all rules of an object
MESSAGE_BYTES = 5 * 1024  # of what a messageExpression may give
ROOT = "<nil>"  # the path that errors about a whole object have
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_CONTRIBUTED = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
_OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


@dataclass(slots=True)
class ValidationRule:
    """One rule and its compiled parts."""

    body: Json
    program: Program | CompileError
    message: Program | CompileError | None
    uses_old: bool

    @property
    def text(self) -> str:
        return str(self.body.get("rule") or "").strip()

    @property
    def fixed_message(self) -> str:
        """Return the message of the rule, or the default message."""
        return str(self.body.get("message") or "").strip() or f"failed rule: {self.text}"


@dataclass(slots=True)
class RuleNode:
    """A schema with rules, or with rules further down."""

    schema: Json
    rules: list[ValidationRule] = field(default_factory=list)
    properties: dict[str, RuleNode] = field(default_factory=dict)
    items: RuleNode | None = None
    values: RuleNode | None = None
    all_of: list[RuleNode] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.rules or self.properties or self.items or self.values or self.all_of)


def compile_rules(schema: Json) -> RuleNode | None:
    """Return the rules of a whole object; None if there are none."""
    types = SchemaTypes()
    types.type_of(schema, "selfType", root=True)
    return _node(schema, schema.get(RULES), "selfType", types, True)


def _node(schema: Json, rules: Any, name: str, types: SchemaTypes, root: bool = False) -> RuleNode | None:
    node = RuleNode(schema)
    own = types.type_of(schema, name, root or bool(schema.get(EMBEDDED_RESOURCE)))
    if rules and own is not None:
        node.rules = [_rule(rule, own, types) for rule in rules if isinstance(rule, dict)]
    for key, part in (schema.get("properties") or {}).items():
        found = _node(part, part.get(RULES), f"{name}.{key}", types) if isinstance(part, dict) else None
        if found:
            node.properties[key] = found
    extra, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(extra, dict):
        node.values = _node(extra, extra.get(RULES), f"{name}.@values", types)
    if isinstance(items, dict):
        node.items = _node(items, items.get(RULES), f"{name}.@items", types)
    for part in schema.get("allOf") or ():
        if isinstance(part, dict) and part.get(RULES):
            node.all_of.append(RuleNode(schema, [_rule(rule, own, types) for rule in part[RULES]] if own else []))
    return None if node.empty else node


def _rule(body: Json, own: t.Type, types: SchemaTypes, functions: Functions = KUBERNETES) -> ValidationRule:
    old = t.optional_of(own) if body.get("optionalOldSelf") else own
    environment = Environment({"self": own, "oldSelf": old}, types.objects, functions)
    program = environment.compile(str(body.get("rule") or ""))
    message: Program | CompileError | None = None
    text = str(body.get("messageExpression") or "")
    if text.strip():
        message = environment.compile(text)
    if isinstance(program, Program) and program.type.kind not in ("bool",):
        program = CompileError("cel expression must evaluate to a bool")
    elif isinstance(program, CompileError):
        program = CompileError(program.full)
    if isinstance(message, Program) and message.type.kind != "string":
        message = CompileError("messageExpression must evaluate to a string")
    elif isinstance(message, CompileError):
        message = CompileError(f"messageExpression {message.full.removeprefix('program ')}")
    uses_old = isinstance(program, Program) and mentions(program.checked.node, "oldSelf")
    return ValidationRule(body, program, message, uses_old)


class _OutOfBudget(Exception):
    """No further rule is evaluated."""


class RuleEvaluation:
    """One object against the rules of its definition."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []
        self._budget = OBJECT_BUDGET

    def run(self, node: RuleNode, new: Json, old: Json | None) -> list[FieldError]:
        """Return what the rules have against an object; `old` is None for a new object."""
        with suppress(_OutOfBudget):
            self._visit(node, "", _Pair(new, old, old is not None and new == old))
        return self.errors

    def _visit(self, node: RuleNode, path: str, pair: _Pair) -> None:
        if pair.new is None:
            return
        self._own(node, path, pair, pair.unchanged)
        for part in node.all_of:
            self._own(part, path, pair, False)
        for below, where, inner in _below(node, path, pair):
            self._visit(below, where, inner)

    def _own(self, node: RuleNode, path: str, pair: _Pair, ratchet: bool) -> None:
        if not node.rules:
            return
        path = path or ROOT
        kind = str(node.schema.get("type") or "")
        value = value_of(pair.new, node.schema)
        old = None if pair.old is None else value_of(pair.old, node.schema)
        for rule in node.rules:
            optional = bool(rule.body.get("optionalOldSelf"))
            if rule.uses_old and pair.old is None and not optional:
                continue
            variables = {"self": value, "oldSelf": old}
            if optional:
                variables["oldSelf"] = NONE if pair.old is None else some(old)
            problem = self._evaluate(rule, variables, path, kind, pair.new)
            if problem is not None:
                warns = ratchet and problem[1] and not rule.uses_old
                self.errors.append(replace(problem[0], warns=True) if warns else problem[0])

    def _evaluate(
        self, rule: ValidationRule, variables: Json, path: str, kind: str, shown: Any
    ) -> tuple[FieldError, bool] | None:
        """Return (problem, whether the rule was evaluated to false); None if the rule holds."""
        if isinstance(rule.program, CompileError):
            return invalid(path, kind, f"rule compile error: {rule.program.message}"), False
        try:
            held, cost = rule.program.evaluate(variables, min(CALL_LIMIT, max(self._budget, 0)))
        except EvaluationError as error:
            return self._failure(rule, error, path, kind), False
        self._budget -= cost
        if held is True:
            return None
        at = (("" if path == ROOT else path) + _normalized(str(rule.body.get("fieldPath") or ""))).removeprefix(".")
        at = at or ROOT
        return _refusal(rule, at, None if kind in ("object", "array") else shown, self._message(rule, variables)), True

    def _failure(self, rule: ValidationRule, error: EvaluationError, path: str, kind: str) -> FieldError:
        text, what = str(error), rule.text
        if text.startswith("no such overload"):
            reason = "call arguments did not match a supported operator, function or macro signature for rule"
            return invalid(path, kind, f"'{text}': {reason}: {what}")
        if text.startswith("operation cancelled: actual cost limit exceeded"):
            if self._budget < CALL_LIMIT:
                self.errors.append(invalid(path, kind, _OUT_OF_BUDGET))
            else:
                reason = "no further validation rules will be run due to call cost exceeds limit for rule"
                self.errors.append(invalid(path, kind, f"'{text}': {reason}: {what}"))
            raise _OutOfBudget
        return invalid(path, kind, f"{text} evaluating rule: {what}")

    def _message(self, rule: ValidationRule, variables: Json) -> str:
        if not isinstance(rule.message, Program):
            return rule.fixed_message
        try:
            text, cost = rule.message.evaluate(variables, min(CALL_LIMIT, max(self._budget, 0)))
        except EvaluationError:
            return rule.fixed_message
        self._budget -= cost
        text = text.strip() if isinstance(text, str) else ""
        return text if text and "\n" not in text and len(text.encode()) <= MESSAGE_BYTES else rule.fixed_message


@dataclass(slots=True)
class _Pair:
    """A value, the value it is correlated with, and whether what is nearest in the old object is the same."""

    new: Any
    old: Any
    unchanged: bool


_TYPE = ("apiVersion", "kind")  # of the object itself: their rules hold for unchanged values too


def _below(node: RuleNode, path: str, pair: _Pair) -> Iterator[tuple[RuleNode, str, _Pair]]:
    new, old = pair.new, pair.old
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for key, value in new.items():
            part = node.properties.get(key)
            where = child(path, key)
            if part is None and node.values is not None and key not in (node.schema.get("properties") or {}):
                part, where = node.values, f"{path}[{key}]"
            if part is not None:
                known = before.get(key)
                same = key in before and known == value if old is not None else pair.unchanged
                yield part, where, _Pair(value, known, same and (path != "" or key not in _TYPE))
    elif isinstance(new, list) and node.items is not None:
        keys = node.schema.get(LIST_MAP_KEYS) or ()
        correlated = node.schema.get(LIST_TYPE) == "map" and isinstance(old, list)
        for i, value in enumerate(new):
            known = _matching_old_item(value, old, keys) if correlated else None
            same = known == value if correlated else pair.unchanged
            yield node.items, f"{path}[{i}]", _Pair(value, known, same and value is not None)


def _matching_old_item(value: Any, old: list[Any], keys: Any) -> Any:
    if not isinstance(value, dict):
        return None
    wanted = [value.get(k) for k in keys]
    return next((o for o in old if isinstance(o, dict) and [o.get(k) for k in keys] == wanted), None)


def _refusal(rule: ValidationRule, path: str, value: Any, detail: str) -> FieldError:
    reason = rule.body.get("reason")
    if reason == "FieldValueForbidden":
        return forbidden(path, detail)
    if reason == "FieldValueRequired":
        return required(path, detail)
    if reason == "FieldValueDuplicate":
        return duplicate(path, value)
    if value is None:
        return FieldError(path, "FieldValueInvalid", f"Invalid value: {detail}")
    return invalid(path, value, detail)


_BLOCKING = ("FieldValueRequired", "FieldValueNotSupported", "FieldValueTooLong", "FieldValueTooMany")
_UNCHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)


def rule_errors(node: RuleNode | None, new: Json, old: Json | None, known: list[FieldError]) -> list[FieldError]:
    """Return what the rules have against an object; `known` is what its schema has against it."""
    if node is None:
        return []
    if any(error.type in _BLOCKING or " must be of type " in error.message for error in known):
        return [invalid(ROOT, None, _UNCHECKED)]
    return RuleEvaluation().run(node, new, old)


# -- the definition itself ---------------------------------------------------------------------------------------------

_STEP = re.compile(r"\.([^.\[\]]+)|\['((?:[^'\\]|\\.)*)'\]")


def _normalized(path: str) -> str:
    """Return a field path as errors print it: `.a['b']` is `.a.b` of a property."""
    return "".join(f".{a or b}" for a, b in _STEP.findall(path.strip()))


def _known_path(path: str, schema: Json) -> bool:
    text, here = path.strip(), schema
    steps = _STEP.findall(text)
    if not text or _STEP.sub("", text):
        return False
    for dotted, quoted in steps:
        name = dotted or quoted.replace("\\'", "'")
        below = (here.get("properties") or {}).get(name) or here.get("additionalProperties")
        if not isinstance(below, dict):
            return False
        here = below
    return True


def definition_rule_errors(schema: Json, path: str) -> list[FieldError]:
    """Return what is wrong with the rules of a definition's schema, which is structural."""
    check = _Definition(SchemaTypes())
    check.types.type_of(schema, "selfType", root=True)
    errors = list(check.errors(schema, path, "selfType", _Place(), root=True))
    if check.total > CRD_COST_LIMIT:
        for _, where in sorted(check.costly, key=lambda found: -found[0])[:4]:
            errors.append(forbidden(where, _CONTRIBUTED))
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        errors.append(forbidden(path, _too_costly(what, check.total, CRD_COST_LIMIT)))
    return errors


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in an object a schema applies: how often (None: unbounded), and in which list without keys."""

    times: int | None = 1
    loose: str = ""

    def below(self, schema: Json, loose: str = "") -> _Place:
        limit: Any = 1
        if schema.get("type") == "array":
            limit = schema.get("maxItems")
        elif isinstance(schema.get("additionalProperties"), dict):
            limit = schema.get("maxProperties")
        times = None if self.times is None or limit is None else self.times * max(int(limit), 0)
        return _Place(times, self.loose or loose)


def _too_costly(what: str, cost: int, limit: int) -> str:
    factor = cost / limit
    if factor > 100:
        shown = "more than 100x"
    else:
        shown = f"{factor:f}x" if factor < 1.5 else f"{factor:.1f}x"
    limits = "maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared"
    return f"{what} exceeds budget by factor of {shown} (try simplifying the rule, or adding {limits})"


@dataclass(slots=True)
class _Definition:
    """The rules of one definition, and what they can cost together."""

    types: SchemaTypes
    total: int = 0
    costly: list[tuple[int, str]] = field(default_factory=list)

    def errors(self, schema: Json, path: str, name: str, place: _Place, root: bool = False) -> Iterator[FieldError]:
        """Yield what is wrong with the rules of a schema and of the schemas in it."""
        rules = schema.get(RULES) or ()
        form = [error for i, rule in enumerate(rules) for error in _form_errors(rule, schema, f"{path}.{RULES}[{i}]")]
        yield from form
        is_root = root or bool(schema.get(EMBEDDED_RESOURCE))
        own = self.types.type_of(schema, name, is_root) if rules else None
        sized = size_of_schema(schema, is_root) if rules else None
        if not form and own is not None:
            for i, body in enumerate(rules):
                rule, at = _rule(body, own, self.types, FOR_NEW), f"{path}.{RULES}[{i}]"
                yield from _compile_errors(rule, at, place.loose)
                yield from self.cost_errors(rule, at, place, sized)
        for key, part in (schema.get("properties") or {}).items():
            if isinstance(part, dict):
                yield from self.errors(part, f"{path}.properties[{key}]", f"{name}.{key}", place.below(schema))
        extra, items = schema.get("additionalProperties"), schema.get("items")
        if isinstance(extra, dict):
            yield from self.errors(extra, f"{path}.additionalProperties", f"{name}.@values", place.below(schema))
        if isinstance(items, dict):
            loose = "" if schema.get(LIST_TYPE) == "map" else path
            yield from self.errors(items, f"{path}.items", f"{name}.@items", place.below(schema, loose))

    def cost_errors(self, rule: ValidationRule, at: str, place: _Place, sized: Sized | None) -> Iterator[FieldError]:
        """Yield what the expressions of a rule can cost too much."""
        known = {"self": sized, "oldSelf": sized} if sized is not None else {}
        times = place.times if place.times is not None else (sized.cardinality if sized is not None else 1)
        for program, field_name, what in (
            (rule.program, "rule", "estimated rule cost"),
            (rule.message, "messageExpression", "estimated messageExpression cost"),
        ):
            if not isinstance(program, Program):
                continue
            cost = min(MOST, estimate(program.checked, known, sized) * (times if field_name == "rule" else 1))
            if cost > RULE_COST_LIMIT:
                yield forbidden(f"{at}.{field_name}", _too_costly(what, cost, RULE_COST_LIMIT))
            self.total = min(MOST, self.total + cost)
            if cost >= CRD_COST_LIMIT // 100:
                self.costly.append((cost, f"{at}.{field_name}"))


def _form_errors(rule: Json, schema: Json, at: str) -> Iterator[FieldError]:
    text, message = str(rule.get("rule") or "").strip(), str(rule.get("message") or "")
    if not text:
        yield required(f"{at}.rule", "rule is not specified")
    elif message and not message.strip():
        yield invalid(f"{at}.message", message, "must be non-empty if specified")
    elif "\n" in message.strip():
        yield invalid(f"{at}.message", message, "must not contain line breaks")
    elif "\n" in text and not message.strip():
        yield required(f"{at}.message", "message must be specified if rule contains line breaks")
    expression = str(rule.get("messageExpression") or "")
    if expression and not expression.strip():
        yield required(f"{at}.messageExpression", "messageExpression must be non-empty if specified")
    if rule.get("reason") is not None and rule["reason"] not in _REASONS:
        yield not_supported(f"{at}.reason", rule["reason"], _REASONS)
    where = str(rule.get("fieldPath") or "")
    if where and not where.strip():
        yield invalid(f"{at}.fieldPath", where, "must be non-empty if specified")
    if "\n" in where:
        yield invalid(f"{at}.fieldPath", where, "must not contain line breaks")
    if where and not _known_path(where, schema):
        yield invalid(f"{at}.fieldPath", where, "must be a valid path")


def _compile_errors(rule: ValidationRule, at: str, loose: str) -> Iterator[FieldError]:
    if isinstance(rule.program, CompileError):
        yield invalid(f"{at}.rule", rule.body, rule.program.message)
    if isinstance(rule.message, CompileError):
        yield invalid(f"{at}.messageExpression", rule.body, rule.message.message)
    if rule.uses_old and loose:
        why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {loose}"
        yield invalid(f"{at}.rule", rule.text, why)
    elif isinstance(rule.program, Program) and not rule.uses_old and rule.body.get("optionalOldSelf") is not None:
        yield invalid(
            f"{at}.optionalOldSelf", rule.body["optionalOldSelf"], "may not be set if oldSelf is not used in rule"
        )
