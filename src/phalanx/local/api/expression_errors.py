"""What is wrong with the expressions (CEL) in an object that is being written: policies, webhooks, device selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from phalanx.cel import types as t
from phalanx.cel.admission import APPLY_TYPE, JSON_PATCH_TYPE, AdmissionEnvironment, compile_variables
from phalanx.cel.devices import MAX_COST, compile_device_selector
from phalanx.cel.syntax import CompileError
from phalanx.local.api.policies import environment_of
from phalanx.local.api.rule_matching import MUTATING, MUTATING_POLICIES, VALIDATING, VALIDATING_POLICIES
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_supported, required, too_many
from phalanx.model.kinds import FieldError, Json, Kind
from phalanx.model.names import label_key
from phalanx.model.rules.devices import MAX_EXPRESSION, expressions

_MAX_CONDITIONS = 64  # of one webhook or policy
_MAX_ANNOTATION_EXPRESSION = 5 * 1024  # bytes
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WITH_SELECTORS = ("deviceclasses", "resourceclaims", "resourceclaimtemplates")


def expression_errors(kind: Kind, obj: Json, old: Json | None = None) -> list[FieldError]:
    """Return what is wrong with the expressions of an object and was not wrong before; most kinds have none."""
    look = _CHECKS.get(kind.storage_key)
    errors = list(look(obj)) if look is not None else []
    if look is None or not errors or old is None:
        return errors
    known = {str(error) for error in look(old)}
    return [error for error in errors if str(error) not in known]


def _compiled(
    environment: AdmissionEnvironment, text: Any, at: str, *wanted: t.Type, empty: str | None = None
) -> Iterator[FieldError]:
    expression = str(text or "")
    if not expression.strip():
        if empty is not None:
            yield required(at, empty)
        return
    found = environment.compile_to(expression, *wanted)
    if isinstance(found, CompileError):
        yield invalid(at, expression, found.message)


def _conditions(environment: AdmissionEnvironment, conditions: Any, at: str) -> Iterator[FieldError]:
    listed = conditions or []
    if len(listed) > _MAX_CONDITIONS:
        yield too_many(at, len(listed), _MAX_CONDITIONS)
    seen: set[str] = set()
    for i, condition in enumerate(listed):
        name = str(condition.get("name") or "")
        yield from _compiled(environment, condition.get("expression"), f"{at}[{i}].expression", t.BOOL, empty="")
        if not name:
            yield required(f"{at}[{i}].name")
        else:
            yield from all_invalid(f"{at}[{i}].name", name, label_key(name))
        if name and name in seen:
            yield duplicate(f"{at}[{i}].name", name)
        seen.add(name)


def _webhooks(obj: Json) -> Iterator[FieldError]:
    for i, hook in enumerate(obj.get("webhooks") or ()):
        if hook.get("matchConditions"):
            environment = AdmissionEnvironment(composed=False, new=True)
            yield from _conditions(environment, hook["matchConditions"], f"webhooks[{i}].matchConditions")


def _variables(environment: AdmissionEnvironment, spec: Json) -> Iterator[FieldError]:
    for i, variable in enumerate(spec.get("variables") or ()):
        at, name = f"spec.variables[{i}]", str(variable.get("name") or "")
        if not name.strip():
            yield required(f"{at}.name", "name is not specified")
        elif not _IDENTIFIER.fullmatch(name):
            yield invalid(f"{at}.name", name, "must be a valid CEL identifier")
        text = str(variable.get("expression") or "")
        if not text.strip():
            yield required(f"{at}.expression", "expression is not specified")
            continue
        for found in compile_variables(environment, [variable]).values():
            if isinstance(found, CompileError):
                yield invalid(f"{at}.expression", text, found.message)


def _policy(spec: Json, *, patch: bool) -> tuple[AdmissionEnvironment, list[FieldError]]:
    environment = environment_of(spec, patch=patch, new=True)
    errors = list(_variables(environment, spec))
    conditions = environment_of(spec, composed=False, new=True)
    errors += _conditions(conditions, spec.get("matchConditions"), "spec.matchConditions")
    return environment, errors


def _validating(obj: Json) -> Iterator[FieldError]:
    spec: Json = obj.get("spec") or {}
    environment, errors = _policy(spec, patch=False)
    yield from errors
    for i, rule in enumerate(spec.get("validations") or ()):
        yield from _validation(environment, rule, f"spec.validations[{i}]")
    for i, annotation in enumerate(spec.get("auditAnnotations") or ()):
        at = f"spec.auditAnnotations[{i}]"
        key, text = str(annotation.get("key") or ""), str(annotation.get("valueExpression") or "")
        yield from all_invalid(f"{at}.key", key, label_key(f"{(obj.get('metadata') or {}).get('name')}/{key}"))
        if not text.strip():
            yield required(f"{at}.valueExpression", "valueExpression is not specified")
        elif len(text.encode()) > _MAX_ANNOTATION_EXPRESSION:
            limit = f"must not exceed {_MAX_ANNOTATION_EXPRESSION} bytes in length"
            yield required(f"{at}.valueExpression", limit)
        else:
            yield from _compiled(environment, text, f"{at}.valueExpression", t.STRING, t.NULL)


def _validation(environment: AdmissionEnvironment, rule: Json, at: str) -> Iterator[FieldError]:
    yield from _compiled(environment, rule.get("expression"), f"{at}.expression", t.BOOL)
    wording = rule.get("messageExpression") or ""
    if wording and not wording.strip():
        yield invalid(f"{at}.messageExpression", wording, "must be non-empty if specified")
    else:
        yield from _compiled(environment, wording, f"{at}.messageExpression", t.STRING)
    message = rule.get("message") or ""
    if message and not message.strip():
        yield invalid(f"{at}.message", message, "message must be non-empty if specified")
    elif "\n" in message.strip():
        yield invalid(f"{at}.message", message, "message must not contain line breaks")
    if rule.get("reason") and rule["reason"] not in _REASONS:
        yield not_supported(f"{at}.reason", rule["reason"], _REASONS)


_MUTATIONS = {
    "ApplyConfiguration": ("applyConfiguration", "jsonPatch", APPLY_TYPE),
    "JSONPatch": ("jsonPatch", "applyConfiguration", t.list_of(JSON_PATCH_TYPE)),
}


def _mutating(obj: Json) -> Iterator[FieldError]:
    spec: Json = obj.get("spec") or {}
    environment, errors = _policy(spec, patch=True)
    yield from errors
    for i, mutation in enumerate(spec.get("mutations") or ()):
        form = str(mutation.get("patchType") or "")
        if form not in _MUTATIONS:
            continue  # the rules of the kind report it
        field, other, wanted = _MUTATIONS[form]
        at = f"spec.mutations[{i}]"
        if mutation.get(other) is not None:
            yield invalid(f"{at}.{other}", f"{{{other}}}", f"must not be specified when patchType is {form}")
        if mutation.get(field) is None:
            yield required(f"{at}.{field}", f"must be specified when patchType is {form}")
        else:
            text = mutation[field].get("expression")
            yield from _compiled(environment, text, f"{at}.{field}.expression", wanted, empty="")


def _device_selectors(obj: Json) -> Iterator[FieldError]:
    """Yield what is wrong with selectors of devices; their rules of the kind look at what is missing or too long."""
    for path, expression in expressions(obj, str(obj.get("kind") or "")):
        if len(expression.encode()) > MAX_EXPRESSION:
            continue
        found = compile_device_selector(expression, new=True)
        if isinstance(found, CompileError):
            yield invalid(path, expression, found.message)
        elif found.max_cost > MAX_COST:
            yield forbidden(path, "too complex, exceeds cost limit")


_CHECKS: dict[str, Callable[[Json], Iterator[FieldError]]] = {
    MUTATING: _webhooks,
    VALIDATING: _webhooks,
    VALIDATING_POLICIES: _validating,
    MUTATING_POLICIES: _mutating,
    **{f"{plural}.resource.k8s.io": _device_selectors for plural in _WITH_SELECTORS},
}
