"""Policies of admission; the API server checks their expressions (CEL)."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model.fieldpath import required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.assembly import OwnRules

Errors = Callable[[Json], list[FieldError]]


def validating(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors: list[FieldError] = []
        if not spec.get("validations") and not spec.get("auditAnnotations"):
            for field in ("validations", "auditAnnotations"):
                errors.append(required(f"spec.{field}", "validations or auditAnnotations must be non-empty"))
        for number, rule in enumerate(spec.get("validations") or ()):
            if not (rule.get("expression") or "").strip():
                errors.append(required(f"spec.validations[{number}].expression", "expression is not specified"))
        return errors

    return _policy(errors_of)


def mutating(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        return [] if spec.get("mutations") else [required("spec.mutations", "mutations must be non-empty")]

    return _policy(errors_of)


def validating_binding(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        actions = (obj.get("spec") or {}).get("validationActions") or []
        return [] if actions else [required("spec.validationActions", "at least one validation action is required")]

    return _binding(errors_of)


def mutating_binding(gates: Gates) -> OwnRules:
    return _binding(lambda obj: [])


def _policy(errors_of: Errors) -> OwnRules:
    def judge(obj: Json) -> list[FieldError]:
        match = obj["spec"].get("matchConstraints")
        if match is None or match.get("resourceRules"):
            return errors_of(obj)
        return [required("spec.matchConstraints.resourceRules"), *errors_of(obj)]

    return OwnRules(default=lambda obj: _default_match(obj["spec"].get("matchConstraints")), errors=judge)


def _binding(errors_of: Errors) -> OwnRules:
    return OwnRules(default=lambda obj: _default_match((obj.get("spec") or {}).get("matchResources")), errors=errors_of)


def _default_match(match: Json | None) -> None:
    if match is not None:
        match.setdefault("namespaceSelector", {})
        match.setdefault("objectSelector", {})
