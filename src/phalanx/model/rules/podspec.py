"""What a pod spec may say, in pods and in pod templates. Cheap checks first: this runs on every pod that is written."""

from __future__ import annotations

from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_found, not_supported, required
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import placement, resources
from phalanx.model.rules.meta import annotation_errors, label_errors

MAX_INT32 = 2**31 - 1
_DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
_PROTOCOLS = ("SCTP", "TCP", "UDP")


def drop_gated(gates: Gates, spec: Json | None, old: Json | None) -> None:
    """Group membership leaves silently while GenericWorkload is off, unless the stored object has it."""
    if spec is None or gates("GenericWorkload"):
        return
    before = old or {}
    if before.get("schedulingGroup") is None and before.get("workloadRef") is None:
        spec.pop("schedulingGroup", None)
        spec.pop("workloadRef", None)


def _ports(ports: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at = f"{path}[{index}]"
        name = port.get("name")
        if name:
            if problems := names.port_name(name):
                errors += all_invalid(f"{at}.name", name, problems)
            elif name in seen:
                errors.append(duplicate(f"{at}.name", name))
            seen.add(name)
        number = port.get("containerPort") or 0
        if not number:
            errors.append(required(f"{at}.containerPort"))
        else:
            errors += all_invalid(f"{at}.containerPort", number, names.port_number(number))
        host = port.get("hostPort") or 0
        if host:
            errors += all_invalid(f"{at}.hostPort", host, names.port_number(host))
        protocol = port.get("protocol") or "TCP"
        if protocol not in _PROTOCOLS:
            errors.append(not_supported(f"{at}.protocol", protocol, _PROTOCOLS))
    return errors


def _mounts(container: Json, path: str, volumes: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at = f"{path}.volumeMounts[{index}]"
        name = mount.get("name") or ""
        if not name:
            errors.append(required(f"{at}.name"))
        elif name not in volumes:
            errors.append(not_found(f"{at}.name", name))
        place = mount.get("mountPath") or ""
        if not place:
            errors.append(required(f"{at}.mountPath"))
        elif place in places:
            errors.append(invalid(f"{at}.mountPath", place, "must be unique"))
        places.add(place)
    return errors


def _container(container: Json, path: str, volumes: set[str], claims: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    name = container.get("name")
    if not name:
        errors.append(required(f"{path}.name"))
    elif problems := names.dns_label(name):
        errors += all_invalid(f"{path}.name", name, problems)
    if not container.get("image"):
        errors.append(required(f"{path}.image"))
    policy = container.get("terminationMessagePolicy")
    if policy is not None and policy not in ("File", "FallbackToLogsOnError"):
        allowed = ("FallbackToLogsOnError", "File")
        errors.append(not_supported(f"{path}.terminationMessagePolicy", policy, allowed))
    if found := container.get("ports"):
        errors += _ports(found, f"{path}.ports")
    for index, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            errors.append(required(f"{path}.env[{index}].name"))
        if variable.get("value") and variable.get("valueFrom"):
            text = "may not be specified when `value` is not empty"
            errors.append(invalid(f"{path}.env[{index}].valueFrom", "", text))
    if container.get("volumeMounts"):
        errors += _mounts(container, path, volumes)
    policy = container.get("imagePullPolicy")
    if policy is not None and policy not in _PULL_POLICIES:
        errors.append(not_supported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES))
    if found := container.get("resources"):
        errors += resources.requirements(found, f"{path}.resources")
        for index, claim in enumerate(found.get("claims") or ()):
            if claim.get("name") not in claims:
                at = f"{path}.resources.claims[{index}].name"
                errors.append(not_found(at, claim.get("name") or ""))
    return errors


def _containers(spec: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    volumes = {volume.get("name") or "" for volume in spec.get("volumes") or ()}
    claims = {claim.get("name") or "" for claim in spec.get("resourceClaims") or ()}
    containers = spec.get("containers")
    if not containers:
        return [required(f"{path}.containers")]
    seen: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            at = f"{path}.{field}[{index}]"
            name = container.get("name") or ""
            if name in seen:
                errors.append(duplicate(f"{at}.name", name))
            seen.add(name)
            errors += _container(container, at, volumes, claims)
            restart = container.get("restartPolicy")
            if restart is not None and restart not in _RESTART_POLICIES:
                errors.append(not_supported(f"{at}.restartPolicy", restart, _RESTART_POLICIES))
    return errors


def _named_once(items: list[Json], path: str) -> list[FieldError]:
    """Volumes and resource claims: DNS labels, each once."""
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
    """Everything most pods do not have: one look-up each."""
    errors: list[FieldError] = []
    get = spec.get
    if found := get("nodeSelector"):
        errors += label_errors(found, f"{path}.nodeSelector")
    if found := get("affinity"):
        errors += placement.affinity(found, f"{path}.affinity")
    if found := get("schedulingGates"):
        errors += _gates(found, f"{path}.schedulingGates")
    if found := get("topologySpreadConstraints"):
        errors += placement.spread(found, f"{path}.topologySpreadConstraints")
    for field, rule in (
        ("serviceAccountName", names.dns_subdomain),
        ("nodeName", names.dns_subdomain),
        ("hostname", names.dns_label),
        ("subdomain", names.dns_label),
        ("priorityClassName", names.dns_subdomain),
        ("runtimeClassName", names.dns_subdomain),
    ):
        value = get(field)
        if value and (problems := rule(value)):
            errors += all_invalid(f"{path}.{field}", value, problems)
    deadline = get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_INT32:
        text = f"must be between 1 and {MAX_INT32}, inclusive"
        errors.append(invalid(f"{path}.activeDeadlineSeconds", deadline, text))
    if found := (get("securityContext") or {}).get("sysctls"):
        errors += _sysctls(found, spec, f"{path}.securityContext.sysctls")
    if found := get("tolerations"):
        errors += placement.tolerations(found, f"{path}.tolerations")
    policy = get("preemptionPolicy")
    if policy is not None and policy not in ("PreemptLowerPriority", "Never"):
        errors.append(not_supported(f"{path}.preemptionPolicy", policy, ("Never", "PreemptLowerPriority")))
    if found := get("overhead"):
        errors += resources.resource_list(found, f"{path}.overhead")
    if get("schedulingGroup") is not None or get("workloadRef") is not None:
        errors += group_membership(spec, path)
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
    """Complaints about a defaulted pod spec."""
    errors: list[FieldError] = []
    if found := spec.get("volumes"):
        errors += _named_once(found, f"{path}.volumes")
    if found := spec.get("resourceClaims"):
        errors += _claims(found, f"{path}.resourceClaims")
    errors += _containers(spec, path)
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


def template_errors(template: Json, path: str) -> list[FieldError]:
    """A pod template: its labels, annotations and spec."""
    meta: Json = template.get("metadata") or {}
    errors = label_errors(meta.get("labels"), f"{path}.labels")
    errors += annotation_errors(meta.get("annotations"), f"{path}.annotations")
    return errors + errors_of(template.get("spec") or {}, f"{path}.spec")
