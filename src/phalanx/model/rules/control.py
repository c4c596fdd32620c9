"""Kinds of control loops that do not run here: autoscalers, certificates, fairness, runtime classes, migrations.

They are kept faithfully and judged lightly; no part of this cluster acts on them, but for RuntimeClass in admission.
"""

from __future__ import annotations

import copy

from phalanx.model import names, version_views
from phalanx.model.fieldpath import all_invalid, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import resources
from phalanx.model.rules.assembly import OwnRules

_PERCENT = {"type": "Percent", "value": 100, "periodSeconds": 15}
_BEHAVIOR: dict[str, Json] = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, _PERCENT],
    },
    "scaleDown": {"selectPolicy": "Max", "policies": [_PERCENT]},
}


def _autoscaler_default(obj: Json) -> None:
    spec: Json = obj["spec"]
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is not None:
        for side, usual in _BEHAVIOR.items():
            rules = behavior.setdefault(side, {})
            for field, value in usual.items():
                if rules.get(field) is None:
                    rules[field] = copy.deepcopy(value)


def horizontal_pod_autoscaler(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        low, high = obj["spec"].get("minReplicas") or 0, obj["spec"].get("maxReplicas") or 0
        if high >= low:
            return []
        return [invalid("spec.maxReplicas", high, "must be greater than or equal to `minReplicas`")]

    return OwnRules(
        default=_autoscaler_default,
        errors=errors_of,
        from_storage={"v1": version_views.from_v2},
        to_storage={"v1": version_views.to_v2},
    )


def certificate_signing_request(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        seconds = (obj.get("spec") or {}).get("expirationSeconds")
        if seconds is None or seconds >= 600:
            return []
        return [invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 600 seconds")]

    return OwnRules(create=create)


def cluster_trust_bundle(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        signer, name = (obj.get("spec") or {}).get("signerName") or "", str(obj["metadata"].get("name") or "")
        prefix = signer.replace("/", ":") + ":"
        if not signer or name.startswith(prefix):
            return []
        text = f"ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
        return [invalid("metadata.name", name, text)]

    return OwnRules(errors=errors_of, name=lambda name: [] if ":" in name else names.dns_subdomain(name))


def api_service(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors: list[FieldError] = []
        named = f"{spec.get('version') or ''}.{spec.get('group') or ''}"
        if obj["metadata"].get("name") != named:
            errors.append(
                invalid("metadata.name", obj["metadata"].get("name"), f'must be `spec.version+"."+spec.group`: {named}')
            )
        for field, most in (("groupPriorityMinimum", 20000), ("versionPriority", 1000)):
            if not 0 < (spec.get(field) or 0) <= most:
                errors.append(invalid(f"spec.{field}", spec.get(field) or 0, f"must be positive and less than {most}"))
        return errors

    def first_status(obj: Json) -> Json:
        if (obj.get("spec") or {}).get("service"):
            return {}  # nothing forwards to it, so its state is unknown
        condition = {
            "type": "Available",
            "status": "True",
            "lastTransitionTime": obj["metadata"].get("creationTimestamp"),
        }
        return {"conditions": [{**condition, "reason": "Local", "message": "Local APIServices are always available"}]}

    return OwnRules(
        errors=errors_of,
        first_status=first_status,
        name=names.path_segment,  # `v1.` is the one of the core group
    )


def flow_schema(gates: Gates) -> OwnRules:
    def default(obj: Json) -> None:
        spec: Json = obj.setdefault("spec", {})
        if not spec.get("matchingPrecedence"):
            spec["matchingPrecedence"] = 1000

    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        if (spec.get("priorityLevelConfiguration") or {}).get("name"):
            return []
        return [required("spec.priorityLevelConfiguration.name", "must reference a priority level")]

    return OwnRules(default=default, errors=errors_of)


def priority_level(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        kind = spec.get("type") or ""
        if kind not in ("Exempt", "Limited"):
            return [not_supported("spec.type", kind, ("Exempt", "Limited"))]
        if kind == "Limited" and spec.get("limited") is None:
            return [required("spec.limited", "must not be empty when type is Limited")]
        return []

    return OwnRules(errors=errors_of)


def runtime_class(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        handler = obj.get("handler") or ""
        errors = all_invalid("handler", handler, names.dns_label(handler))
        return errors + resources.resource_list((obj.get("overhead") or {}).get("podFixed"), "overhead.podFixed")

    return OwnRules(create=create)
