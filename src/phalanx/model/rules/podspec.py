"""Validate pod specs of pods and pod templates. Cheap checks first: this runs for every pod that is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.base.well_known import PREEMPTION_POLICIES
from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_supported, required, too_long
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.memo import Memo
from phalanx.model.rules import containers, placement, resources, volumes
from phalanx.model.rules.meta import annotation_errors, label_errors

NameRule = Callable[[str], list[str]]
MAX_INT32 = 2**31 - 1
Part = Callable[[Any, str, Json], list[FieldError]]  # what a field says, its path, the whole spec
_HOSTNAME_LENGTH = 64  # bytes, a limit of Linux
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")


def drop_gated(gates: Gates, spec: Json | None, old: Json | None) -> None:
    """Drop group membership while GenericWorkload is off, unless the stored object has it."""
    if spec is None or gates("GenericWorkload"):
        return
    before = old or {}
    if before.get("schedulingGroup") is None and before.get("workloadRef") is None:
        spec.pop("schedulingGroup", None)
        spec.pop("workloadRef", None)


def _named_once(items: list[Json], path: str) -> list[FieldError]:
    """Check that resource claims have unique DNS labels as names."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = f"{path}[{index}].name"
        name = item.get("name") or ""
        if not name:
            errors.append(required(at))
        elif name in seen:
            errors.append(duplicate(at, name))
        else:
            errors += all_invalid(at, name, names.dns_label(name))
        seen.add(name)
    return errors


def _claims(claims: list[Json], path: str) -> list[FieldError]:
    errors = _named_once(claims, path)
    for index, claim in enumerate(claims):
        at = f"{path}[{index}]"
        by_name, by_template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
        if by_name is not None and by_template is not None:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.append(invalid(at, claim, text))
        elif by_name is None and by_template is None:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.append(invalid(at, claim, text))
    return errors


def group_membership(spec: Json, path: str) -> list[FieldError]:
    """Check `schedulingGroup` (1.36+) and `workloadRef` (KEP-4671 v1alpha1); only one may be set."""
    errors: list[FieldError] = []
    group, reference = spec.get("schedulingGroup"), spec.get("workloadRef")
    if group is not None:
        name = group.get("podGroupName")
        at = f"{path}.schedulingGroup.podGroupName"
        if name is None:
            errors.append(invalid(at, None, "must specify one of: `podGroupName`"))
        else:
            errors += all_invalid(at, name, names.long_name(name))
    if reference is None:
        return errors
    if group is not None:
        errors.append(forbidden(f"{path}.workloadRef", "may not be set when schedulingGroup is set"))
    for field, rule in (("name", names.dns_subdomain), ("podGroup", names.dns_label)):
        value = reference.get(field)
        if not value:
            errors.append(required(f"{path}.workloadRef.{field}"))
        else:
            errors += all_invalid(f"{path}.workloadRef.{field}", value, rule(value))
    key = reference.get("podGroupReplicaKey")
    if key:
        errors += all_invalid(f"{path}.workloadRef.podGroupReplicaKey", key, names.dns_label(key))
    return errors


def _gates(gates: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name") or ""
        errors += all_invalid(f"{path}[{index}]", name, names.label_key(name))
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
    return errors


def _named(rule: NameRule) -> Part:
    return lambda name, path, spec: all_invalid(path, name, rule(name)) if name else []


def _each_named(field: str, rule: NameRule) -> Part:
    """Return a check of a list of objects that have a name in this field."""

    def errors_of(found: list[Json], path: str, spec: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        for index, item in enumerate(found):
            name = item.get(field) or ""
            errors += all_invalid(f"{path}[{index}].{field}", name, rule(name))
        return errors

    return errors_of


def _security_context(found: Json, path: str, spec: Json) -> list[FieldError]:
    errors = containers.user_ids(found, path, "fsGroup", "runAsUser", "runAsGroup")
    if found.get("sysctls"):
        errors += _sysctls(found["sysctls"], spec, f"{path}.sysctls")
    return errors


def _name_servers(policy: str, path: str, spec: Json) -> list[FieldError]:
    config, at = spec.get("dnsConfig"), path.removesuffix("dnsPolicy") + "dnsConfig"
    if policy != "None" or (config or {}).get("nameservers"):
        return []
    if config is None:
        return [required(at, "must provide `dnsConfig` when `dnsPolicy` is None")]
    return [required(f"{at}.nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None")]


def _deadline(seconds: int, path: str, spec: Json) -> list[FieldError]:
    allowed = 1 <= seconds <= MAX_INT32
    return [] if allowed else [invalid(path, seconds, f"must be between 1 and {MAX_INT32}, inclusive")]


def _preemption_policy(policy: str, path: str, spec: Json) -> list[FieldError]:
    return [] if policy in PREEMPTION_POLICIES else [not_supported(path, policy, PREEMPTION_POLICIES)]


def _system(found: Json, path: str, spec: Json) -> list[FieldError]:
    name = found.get("name") or ""
    if not name:
        return [required(f"{path}.name", "cannot be empty")]
    return [] if name in ("linux", "windows") else [not_supported(path, name, ("linux", "windows"))]


def _group(found: Json, path: str, spec: Json) -> list[FieldError]:
    return group_membership(spec, path.rpartition(".")[0])


def _reference(found: Json, path: str, spec: Json) -> list[FieldError]:
    return _group(found, path, spec) if spec.get("schedulingGroup") is None else []  # said there


# Everything most pods do not have, in the order in which Kubernetes complains.
def _hostname_override(name: str, path: str, spec: Json) -> list[FieldError]:
    errors = [
        forbidden(path, f"may not be specified when {field} is true")
        for field in ("setHostnameAsFQDN", "hostNetwork")
        if spec.get(field)
    ]
    if len(name.encode()) > _HOSTNAME_LENGTH:
        errors.append(too_long(path, _HOSTNAME_LENGTH))
    return errors + all_invalid(path, name, names.dns_subdomain(name))


_OPTIONAL: tuple[tuple[str, Part], ...] = (
    ("nodeSelector", lambda found, path, spec: label_errors(found, path)),
    ("securityContext", _security_context),
    ("affinity", lambda found, path, spec: placement.affinity(found, path)),
    ("dnsPolicy", _name_servers),
    ("readinessGates", _each_named("conditionType", names.label_key)),
    ("schedulingGates", lambda found, path, spec: _gates(found, path)),
    ("topologySpreadConstraints", lambda found, path, spec: placement.spread(found, path)),
    ("serviceAccountName", _named(names.dns_subdomain)),
    ("nodeName", _named(names.dns_subdomain)),
    ("activeDeadlineSeconds", _deadline),
    ("hostname", _named(names.dns_label)),
    ("subdomain", _named(names.dns_label)),
    ("hostnameOverride", _hostname_override),
    ("tolerations", lambda found, path, spec: placement.tolerations(found, path)),
    ("hostAliases", _each_named("ip", names.ip_address)),
    ("priorityClassName", _named(names.dns_subdomain)),
    ("runtimeClassName", _named(names.dns_subdomain)),
    ("preemptionPolicy", _preemption_policy),
    ("overhead", lambda found, path, spec: resources.resource_list(found, path)),
    ("os", _system),
    ("schedulingGroup", _group),
    ("workloadRef", _reference),
)


def _optional_parts(spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for field, rule in _OPTIONAL:
        found = spec.get(field)
        if found is not None:
            errors += rule(found, f"{path}.{field}", spec)
    return errors


def _sysctls(found: list[Json], spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, setting in enumerate(found):
        at, name = f"{path}[{index}].name", setting.get("name") or ""
        if not name:
            errors.append(required(at))
        elif problems := names.sysctl(name):
            errors += all_invalid(at, name, problems)
        elif name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
        dotted = name.replace("/", ".")
        if spec.get("hostNetwork") and dotted.startswith("net."):
            errors.append(invalid(at, name, "may not be specified when 'hostNetwork' is true"))
        elif spec.get("hostIPC") and dotted.startswith(("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")):
            errors.append(invalid(at, name, "may not be specified when 'hostIPC' is true"))
    return errors


def errors_of(spec: Json, path: str = "spec") -> list[FieldError]:
    """Check a defaulted pod spec."""
    return [] if _is_right(spec) else _errors(spec, path)


def _errors(spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if found := spec.get("volumes"):
        errors += volumes.errors_of(found, f"{path}.volumes")
    if found := spec.get("resourceClaims"):
        errors += _claims(found, f"{path}.resourceClaims")
    errors += containers.errors_of(spec, path)
    if found := spec.get("resources"):
        errors += resources.requirements(found, f"{path}.resources")
    restart = spec.get("restartPolicy")
    if not restart:
        errors.append(required(f"{path}.restartPolicy"))
    elif restart not in _RESTART_POLICIES:
        errors.append(not_supported(f"{path}.restartPolicy", restart, _RESTART_POLICIES))
    policy = spec.get("dnsPolicy")
    if policy and policy not in _DNS_POLICIES:
        errors.append(not_supported(f"{path}.dnsPolicy", policy, _DNS_POLICIES))
    return errors + _optional_parts(spec, path)


_is_right = Memo(lambda spec: not _errors(spec, ""))


def template_errors(template: Json, path: str) -> list[FieldError]:
    """Check the labels, annotations and spec of a pod template."""
    meta: Json = template.get("metadata") or {}
    errors = label_errors(meta.get("labels"), f"{path}.labels")
    errors += annotation_errors(meta.get("annotations"), f"{path}.annotations")
    return errors + errors_of(template.get("spec") or {}, f"{path}.spec")
