"""Roles and their bindings: validation of rules and subjects.

Requests are authorized in `local.api.rights`. Names of roles may have colons.
"""

from __future__ import annotations

from phalanx.base.well_known import RBAC_API
from phalanx.model import names
from phalanx.model.fieldpath import invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.assembly import OwnRules


def _rule(rule: Json, path: str, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    urls = rule.get("nonResourceURLs")
    if urls:
        if namespaced:
            text = "namespaced rules cannot apply to non-resource URLs"
            errors.append(invalid(f"{path}.nonResourceURLs", urls, text))
        if any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
            text = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(invalid(f"{path}.nonResourceURLs", urls, text))
    else:
        for field, what in (("apiGroups", "api group"), ("resources", "resource")):
            if not rule.get(field):
                errors.append(required(f"{path}.{field}", f"resource rules must supply at least one {what}"))
    return errors


def _role(*, namespaced: bool) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        return [
            error
            for index, rule in enumerate(obj.get("rules") or ())
            for error in _rule(rule, f"rules[{index}]", namespaced)
        ]

    return OwnRules(
        create=errors_of,
        update=lambda new, old: errors_of(new) if new.get("rules") != old.get("rules") else [],
        name=names.path_segment,
    )


def _subject(subject: Json, path: str, namespaced: bool) -> list[FieldError]:
    kind, group = subject.get("kind") or "", subject.get("apiGroup") or ""
    errors: list[FieldError] = []
    if kind == "ServiceAccount":
        if group:
            errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind in ("User", "Group"):
        if group != RBAC_API:
            errors.append(not_supported(f"{path}.apiGroup", group, (RBAC_API,)))
    else:
        errors.append(not_supported(f"{path}.kind", kind, ("ServiceAccount", "User", "Group")))
    return errors


def _binding(*, namespaced: bool) -> OwnRules:
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)

    def default(obj: Json) -> None:
        reference = obj.get("roleRef")
        if reference is not None and not reference.get("apiGroup"):
            reference["apiGroup"] = RBAC_API
        for subject in obj.get("subjects") or ():
            if subject.get("kind") in ("User", "Group") and not subject.get("apiGroup"):
                subject["apiGroup"] = RBAC_API

    def errors_of(obj: Json) -> list[FieldError]:
        reference: Json = obj.get("roleRef") or {}
        errors: list[FieldError] = []
        if reference.get("apiGroup") != RBAC_API:
            errors.append(not_supported("roleRef.apiGroup", reference.get("apiGroup") or "", (RBAC_API,)))
        if reference.get("kind") not in kinds:
            errors.append(not_supported("roleRef.kind", reference.get("kind") or "", kinds))
        for index, subject in enumerate(obj.get("subjects") or ()):
            errors += _subject(subject, f"subjects[{index}]", namespaced)
        return errors

    return OwnRules(default=default, errors=errors_of, name=names.path_segment)


def role(gates: Gates) -> OwnRules:
    return _role(namespaced=True)


def cluster_role(gates: Gates) -> OwnRules:
    return _role(namespaced=False)


def role_binding(gates: Gates) -> OwnRules:
    return _binding(namespaced=True)


def cluster_role_binding(gates: Gates) -> OwnRules:
    return _binding(namespaced=False)
