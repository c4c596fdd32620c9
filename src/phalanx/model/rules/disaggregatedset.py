"""DisaggregatedSet and DisaggregatedSetRoleScaler: defaults of their definitions, rules of their webhook."""

from __future__ import annotations

import copy
import re

from phalanx.model.fieldpath import duplicate, forbidden, invalid, not_supported, required, too_many
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta
from phalanx.model.rules.assembly import OwnRules, number_or_percent, scaled
from phalanx.model.rules.declared import declared_defaults
from phalanx.model.rules.leaderworkerset import SPEC, spec_default, spec_errors

MIN_ROLES, MAX_ROLES, MAX_SLICES = 2, 10, 100
_ROLE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_REVISION = 8  # characters of a revision in names
_SERVICE_NAME = 63  # characters of `<lws>-prv`
_SCALER_NAME = 253
_EXCLUSIVE = (
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
    "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology",
)
_PLACEMENTS = ("ExclusiveSlice", "ExclusiveTopology", "None")


def _default(obj: Json) -> None:
    declared_defaults("disaggregatedset/v1.DisaggregatedSet", obj, embedded=False)
    for role in obj["spec"].get("roles") or ():
        declared_defaults(SPEC, role.setdefault("spec", {}), embedded=False)


def is_external(role: Json) -> bool:
    return bool((role.get("scaling") or {}).get("mode") == "External")


def _roles(name: str, spec: Json, gates: Gates) -> list[FieldError]:
    path, roles = "spec.roles", spec.get("roles") or []
    errors: list[FieldError] = []
    if len(roles) < MIN_ROLES:
        errors.append(invalid(path, len(roles), f"must have at least {MIN_ROLES} items"))
    if len(roles) > MAX_ROLES:
        errors.append(too_many(path, len(roles), MAX_ROLES))
    seen: set[str] = set()
    for index, role in enumerate(roles):
        at, own = f"{path}[{index}]", role.get("name") or ""
        if not _ROLE_NAME.fullmatch(own):
            errors.append(invalid(f"{at}.name", own, "must be a lowercase DNS label of at most 63 characters"))
        if own in seen:
            errors.append(duplicate(at, own))
        seen.add(own)
        errors += _role(name, spec, role, at, gates)
    counts = [role["spec"].get("replicas") or 0 for role in roles if not is_external(role)]
    if any(counts) and not all(counts):
        text = "must be zero for all roles that are not External or for none of them"
        errors.append(invalid(path, counts, f"replicas {text}"))
    return errors


def _role(name: str, spec: Json, role: Json, at: str, gates: Gates) -> list[FieldError]:
    own = role.get("name") or ""
    errors: list[FieldError] = []
    mode = (role.get("scaling") or {}).get("mode", "Static")
    if mode not in ("External", "Static"):
        errors.append(not_supported(f"{at}.scaling.mode", mode, ("External", "Static")))
    if is_external(role) and len(f"{name}-{own}") > _SCALER_NAME:
        errors.append(invalid(f"{at}.name", own, f"the scaler's name must have at most {_SCALER_NAME} characters"))
    last = str(max(int(spec.get("slices") or 1) - 1, 0))
    service = len(name) + len(last) + _REVISION + len(own) + len("---") + len("-prv")
    if service > _SERVICE_NAME:
        text = f"the Service of the role would have a name of {service} characters and may have {_SERVICE_NAME}"
        errors.append(invalid(f"{at}.name", own, text))
    found: Json = role.get("spec") or {}
    rolling = (found.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    where = f"{at}.spec.rolloutStrategy.rollingUpdateConfiguration"
    if rolling.get("partition"):
        errors.append(forbidden(f"{where}.partition", "a DisaggregatedSet rolls its roles together"))
    errors += _both_zero(rolling, found.get("replicas") or 0, where)
    complete = copy.deepcopy(found)
    spec_default(complete)
    return errors + spec_errors(complete, gates, f"{at}.spec")


def _both_zero(rolling: Json, replicas: int, path: str) -> list[FieldError]:
    """Refuse a rollout that may neither add nor remove a group."""
    if not replicas or not rolling:
        return []
    errors: list[FieldError] = []
    for field in ("maxUnavailable", "maxSurge"):
        errors += number_or_percent(rolling.get(field, 0), f"{path}.{field}", up_to_100=True)
    if errors:
        return errors
    unavailable = scaled(rolling.get("maxUnavailable", 0), replicas, up=False)
    if unavailable or scaled(rolling.get("maxSurge", 0), replicas, up=True):
        return []
    text = "must not be 0 when `maxSurge` is 0"
    return [invalid(f"{path}.maxUnavailable", rolling.get("maxUnavailable", 0), text)]


def _placement(spec: Json) -> list[FieldError]:
    policy: Json | None = spec.get("placementPolicy")
    kind = (policy or {}).get("type", "None")
    if policy is None or kind == "None":
        return []
    if kind not in _PLACEMENTS:
        return [not_supported("spec.placementPolicy.type", kind, _PLACEMENTS)]
    errors: list[FieldError] = []
    if not policy.get("topology"):
        errors.append(required("spec.placementPolicy.topology", "when type is not None"))
    for index, role in enumerate(spec.get("roles") or ()):
        template = (role.get("spec") or {}).get("leaderWorkerTemplate") or {}
        holders = (role, template.get("leaderTemplate") or {}, template.get("workerTemplate") or {})
        for key in _EXCLUSIVE:
            if any(key in ((holder.get("metadata") or {}).get("annotations") or {}) for holder in holders):
                text = f"the annotation {key} may not be combined with a placementPolicy"
                errors.append(forbidden(f"spec.roles[{index}]", text))
    return errors


def rules(gates: Gates) -> OwnRules:
    """Return the rules of DisaggregatedSet."""

    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _roles((obj.get("metadata") or {}).get("name") or "", spec, gates) + _placement(spec)
        slices = spec.get("slices", 1)
        if not 1 <= slices <= MAX_SLICES:
            errors.append(invalid("spec.slices", slices, f"must be between 1 and {MAX_SLICES}, inclusive"))
        if slices > 1 and any(is_external(role) for role in spec.get("roles") or ()):
            errors.append(forbidden("spec.slices", "may not exceed 1 while a role's scaling mode is External"))
        return errors

    return OwnRules(default=_default, errors=errors_of, if_changed=True, status=meta.status_conditions, table=False)


def scaler(gates: Gates) -> OwnRules:
    """Return the rules of DisaggregatedSetRoleScaler."""
    return OwnRules(status=meta.status_conditions)
