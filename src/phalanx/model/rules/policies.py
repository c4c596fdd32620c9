"""Policies: of admission, whose expressions (CEL) the API server checks, and WorkloadPolicies."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model.fieldpath import required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.assembly import assemble
from phalanx.model.rules.contract import Rules

Errors = Callable[[Json], list[FieldError]]


def validating(gates: Gates) -> Rules:
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

    return _policy("Validating", errors_of, status_apart=True)


def mutating(gates: Gates) -> Rules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        return [] if spec.get("mutations") else [required("spec.mutations", "mutations must be non-empty")]

    return _policy("Mutating", errors_of, status_apart=False)


def validating_binding(gates: Gates) -> Rules:
    def errors_of(obj: Json) -> list[FieldError]:
        actions = (obj.get("spec") or {}).get("validationActions") or []
        return [] if actions else [required("spec.validationActions", "at least one validation action is required")]

    return _binding("Validating", errors_of)


def mutating_binding(gates: Gates) -> Rules:
    return _binding("Mutating", lambda obj: [])


def workload_policy(gates: Gates) -> Rules:
    """Return the rules of WorkloadPolicy, which requires a target.

    Other invalid values are kept and reported in the status, where the author looks for them.
    """

    return assemble("phalanx/v1alpha1.WorkloadPolicy")


def _policy(kind: str, errors_of: Errors, *, status_apart: bool) -> Rules:
    def judge(obj: Json) -> list[FieldError]:
        match = obj["spec"].get("matchConstraints")
        if match is None or match.get("resourceRules"):
            return errors_of(obj)
        return [required("spec.matchConstraints.resourceRules"), *errors_of(obj)]

    return assemble(
        f"admissionregistration/v1.{kind}AdmissionPolicy",
        default=lambda obj: _default_match(obj["spec"].get("matchConstraints")),
        create=judge,
        update=lambda new, old: judge(new),
        namespaced=False,
        status_apart=status_apart,
    )


def _binding(kind: str, errors_of: Errors) -> Rules:
    return assemble(
        f"admissionregistration/v1.{kind}AdmissionPolicyBinding",
        default=lambda obj: _default_match((obj.get("spec") or {}).get("matchResources")),
        create=errors_of,
        update=lambda new, old: errors_of(new),
        namespaced=False,
        status_apart=False,
    )


def _default_match(match: Json | None) -> None:
    if match is not None:
        match.setdefault("namespaceSelector", {})
        match.setdefault("objectSelector", {})
