"""What a pod spec may say, in pods and in pod templates. Cheap checks first: this runs on every pod that is written."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model import names
from phalanx.model.alike import Alike
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import containers, placement, resources, volumes
from phalanx.model.rules.meta import annotation_errors, label_errors

NameRule = Callable[[str], list[str]]
MAX_INT32 = 2**31 - 1
_FIRST_NAMES: tuple[tuple[str, NameRule], ...] = (
    ("serviceAccountName", names.dns_subdomain),
    ("nodeName", names.dns_subdomain),
)
_HOST_NAMES: tuple[tuple[str, NameRule], ...] = (("hostname", names.dns_label), ("subdomain", names.dns_label))
_CLASS_NAMES: tuple[tuple[str, NameRule], ...] = (
    ("priorityClassName", names.dns_subdomain),
    ("runtimeClassName", names.dns_subdomain),
)
_PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")


def drop_gated(gates: Gates, spec: Json | None, old: Json | None) -> None:
    """Group membership leaves silently while GenericWorkload is off, unless the stored object has it."""
    if spec is None or gates("GenericWorkload"):
        return
    before = old or {}
    if before.get("schedulingGroup") is None and before.get("workloadRef") is None:
        spec.pop("schedulingGroup", None)
        spec.pop("workloadRef", None)


def _named_once(items: list[Json], path: str) -> list[FieldError]:
    """Resource claims: DNS labels, each once."""
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
    """`schedulingGroup` (1.36+) and `workloadRef` (KEP-4671 v1alpha1): two words for the same thing, one at a time."""
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


def _optional_parts(spec: Json, path: str) -> list[FieldError]:
    """Everything most pods do not have: one look-up each, in the order in which Kubernetes complains."""
    errors: list[FieldError] = []
    get = spec.get
    if found := get("nodeSelector"):
        errors += label_errors(found, f"{path}.nodeSelector")
    if found := get("securityContext"):
        errors += containers.user_ids(found, f"{path}.securityContext", "fsGroup", "runAsUser", "runAsGroup")
        if found.get("sysctls"):
            errors += _sysctls(found["sysctls"], spec, f"{path}.securityContext.sysctls")
    if found := get("affinity"):
        errors += placement.affinity(found, f"{path}.affinity")
    if get("dnsPolicy") == "None" and not (get("dnsConfig") or {}).get("nameservers"):
        errors += _no_name_servers(get("dnsConfig"), f"{path}.dnsConfig")
    for index, gate in enumerate(get("readinessGates") or ()):
        kind = gate.get("conditionType") or ""
        errors += all_invalid(f"{path}.readinessGates[{index}].conditionType", kind, names.label_key(kind))
    if found := get("schedulingGates"):
        errors += _gates(found, f"{path}.schedulingGates")
    if found := get("topologySpreadConstraints"):
        errors += placement.spread(found, f"{path}.topologySpreadConstraints")
    errors += _name_errors(spec, path, _FIRST_NAMES)
    deadline = get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_INT32:
        text = f"must be between 1 and {MAX_INT32}, inclusive"
        errors.append(invalid(f"{path}.activeDeadlineSeconds", deadline, text))
    errors += _name_errors(spec, path, _HOST_NAMES)
    if found := get("tolerations"):
        errors += placement.tolerations(found, f"{path}.tolerations")
    for index, alias in enumerate(get("hostAliases") or ()):
        ip = alias.get("ip") or ""
        errors += all_invalid(f"{path}.hostAliases[{index}].ip", ip, names.ip_address(ip))
    errors += _name_errors(spec, path, _CLASS_NAMES)
    policy = get("preemptionPolicy")
    if policy is not None and policy not in _PREEMPTION_POLICIES:
        errors.append(not_supported(f"{path}.preemptionPolicy", policy, _PREEMPTION_POLICIES))
    if found := get("overhead"):
        errors += resources.resource_list(found, f"{path}.overhead")
    if (found := get("os")) is not None and found.get("name") not in ("linux", "windows"):
        errors += _system(found.get("name") or "", f"{path}.os")
    if get("schedulingGroup") is not None or get("workloadRef") is not None:
        errors += group_membership(spec, path)
    return errors


def _name_errors(spec: Json, path: str, fields: tuple[tuple[str, NameRule], ...]) -> list[FieldError]:
    errors: list[FieldError] = []
    for field, rule in fields:
        value = spec.get(field)
        if value and (problems := rule(value)):
            errors += all_invalid(f"{path}.{field}", value, problems)
    return errors


def _no_name_servers(config: Json | None, path: str) -> list[FieldError]:
    if config is None:
        return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
    return [required(f"{path}.nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None")]


def _system(name: str, path: str) -> list[FieldError]:
    if not name:
        return [required(f"{path}.name", "cannot be empty")]
    return [not_supported(path, name, ("linux", "windows"))]


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
    """Complaints about a defaulted pod spec."""
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


_is_right = Alike(lambda spec: not _errors(spec, ""))


def template_errors(template: Json, path: str) -> list[FieldError]:
    """A pod template: its labels, annotations and spec."""
    meta: Json = template.get("metadata") or {}
    errors = label_errors(meta.get("labels"), f"{path}.labels")
    errors += annotation_errors(meta.get("annotations"), f"{path}.annotations")
    return errors + errors_of(template.get("spec") or {}, f"{path}.spec")
