"""Policies: of admission, whose expressions (CEL) the API server checks, and WorkloadPolicies."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model.fieldpath import not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.assembly import assemble
from phalanx.model.rules.contract import Rules

Errors = Callable[[Json], list[FieldError]]

_ACTIONS = ("Audit", "Deny", "Warn")
_PATCHES = ("ApplyConfiguration", "JSONPatch")
_CHOICES = {"failurePolicy": ("Fail", "Ignore"), "reinvocationPolicy": ("IfNeeded", "Never")}
_RULE_FIELDS = ("operations", "apiGroups", "apiVersions", "resources")


def validating(gates: Gates) -> Rules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _policy_errors(spec)
        if not spec.get("validations") and not spec.get("auditAnnotations"):
            for field in ("validations", "auditAnnotations"):
                errors.append(required(f"spec.{field}", "validations or auditAnnotations must be non-empty"))
        for number, rule in enumerate(spec.get("validations") or ()):
            if not (rule.get("expression") or "").strip():
                errors.append(required(f"spec.validations[{number}].expression", "expression is not specified"))
        return errors

    return _policy(errors_of, status_apart=True)


def mutating(gates: Gates) -> Rules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _policy_errors(spec)
        if not spec.get("mutations"):
            errors.append(required("spec.mutations", "mutations must be non-empty"))
        for number, mutation in enumerate(spec.get("mutations") or ()):
            if mutation.get("patchType") not in _PATCHES:
                errors.append(not_supported(f"spec.mutations[{number}].patchType", mutation.get("patchType"), _PATCHES))
        if not spec.get("reinvocationPolicy"):
            errors.append(required("spec.reinvocationPolicy"))
        return errors

    return _policy(errors_of, status_apart=False)


def validating_binding(gates: Gates) -> Rules:
    def errors_of(obj: Json) -> list[FieldError]:
        actions = (obj.get("spec") or {}).get("validationActions") or []
        errors = _binding_errors(obj)
        if not actions:
            errors.append(required("spec.validationActions", "at least one validation action is required"))
        for number, action in enumerate(actions):
            if action not in _ACTIONS:
                errors.append(not_supported(f"spec.validationActions[{number}]", action, _ACTIONS))
        return errors

    return _binding(errors_of)


def mutating_binding(gates: Gates) -> Rules:
    return _binding(_binding_errors)


def workload_policy(gates: Gates) -> Rules:
    """A target is needed. Other wrong values are kept and reported in the status, where the author looks for them."""

    def errors_of(obj: Json) -> list[FieldError]:
        target: Json = (obj.get("spec") or {}).get("targetRef") or {}
        return [required(f"spec.targetRef.{field}") for field in ("kind", "name") if not target.get(field)]

    return assemble(create=errors_of, update=lambda new, old: errors_of(new))


def _policy(errors_of: Errors, *, status_apart: bool) -> Rules:
    def default(obj: Json) -> None:
        spec: Json = obj.setdefault("spec", {})
        spec.setdefault("failurePolicy", "Fail")
        _default_match(spec.get("matchConstraints"))

    return assemble(
        default=default,
        create=errors_of,
        update=lambda new, old: errors_of(new),
        namespaced=False,
        status_apart=status_apart,
    )


def _binding(errors_of: Errors) -> Rules:
    return assemble(
        default=lambda obj: _default_match((obj.get("spec") or {}).get("matchResources")),
        create=errors_of,
        update=lambda new, old: errors_of(new),
        namespaced=False,
        status_apart=False,
    )


def _default_match(match: Json | None) -> None:
    if match is None:
        return
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    for field in ("resourceRules", "excludeResourceRules"):
        for rule in match.get(field) or ():
            rule.setdefault("scope", "*")


def _policy_errors(spec: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    for field, allowed in _CHOICES.items():
        if spec.get(field) and spec[field] not in allowed:
            errors.append(not_supported(f"spec.{field}", spec[field], allowed))
    match = spec.get("matchConstraints")
    if match is None:
        return [*errors, required("spec.matchConstraints")]
    if not match.get("resourceRules"):
        errors.append(required("spec.matchConstraints.resourceRules"))
    return errors + _match_errors(match, "spec.matchConstraints")


def _binding_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    errors = [] if spec.get("policyName") else [required("spec.policyName")]
    return errors + _match_errors(spec.get("matchResources") or {}, "spec.matchResources")


def _match_errors(match: Json, at: str) -> list[FieldError]:
    return [
        required(f"{at}.{rules}[{number}].{field}")
        for rules in ("resourceRules", "excludeResourceRules")
        for number, rule in enumerate(match.get(rules) or ())
        for field in _RULE_FIELDS
        if not rule.get(field)
    ]
