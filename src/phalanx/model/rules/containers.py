"""The containers of a pod: names, images, ports, environment, mounts, probes, handlers, resources.

Cheap looks first: this runs on every pod that is written, and most containers have little of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_found, not_supported, required
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import resources, volumes

_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_SIDECAR_ONLY = ("lifecycle", *_PROBES)
_MAX_ID = 2**31 - 1
_VARIABLE = "a valid environment variable name must consist only of printable ASCII characters other than '='"
_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_FIELDS = frozenset(
    (
        "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
        "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
    )
)  # fmt: skip


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


def _mounts(container: Json, path: str, known: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at = f"{path}.volumeMounts[{index}]"
        name = mount.get("name") or ""
        if not name:
            errors.append(required(f"{at}.name"))
        elif name not in known:
            errors.append(not_found(f"{at}.name", name))
        place = mount.get("mountPath") or ""
        if not place:
            errors.append(required(f"{at}.mountPath"))
        elif place in places:
            errors.append(invalid(f"{at}.mountPath", place, "must be unique"))
        places.add(place)
        for field in ("subPath", "subPathExpr"):
            if mount.get(field):
                errors += volumes.descending(mount[field], f"{path}.volumeMounts.{field}")
    return errors


def _container(container: Json, path: str, known: set[str], claims: set[str]) -> list[FieldError]:
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
        allowed = ("File", "FallbackToLogsOnError")
        errors.append(not_supported(f"{path}.terminationMessagePolicy", policy, allowed))
    if found := container.get("ports"):
        errors += _ports(found, f"{path}.ports")
    if found := container.get("env"):
        errors += _variables(found, f"{path}.env")
    if found := container.get("envFrom"):
        errors += _environment(found, f"{path}.envFrom")
    if container.get("volumeMounts"):
        errors += _mounts(container, path, known)
    policy = container.get("imagePullPolicy")
    if policy is not None and policy not in _PULL_POLICIES:
        errors.append(not_supported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES))
    if found := container.get("resources"):
        errors += resources.requirements(found, f"{path}.resources")
        errors += _claims_used(found.get("claims") or (), claims, f"{path}.resources.claims")
    if found := container.get("securityContext"):
        errors += user_ids(found, f"{path}.securityContext", "runAsUser", "runAsGroup")
    return errors


def _claims_used(used: Iterable[Json], claims: set[str], path: str) -> list[FieldError]:
    """Check the claims of a container: entries of the pod, each claim or each request of it once."""
    errors: list[FieldError] = []
    known: set[tuple[str, str]] = set()
    for index, each in enumerate(used):
        at, name, request = f"{path}[{index}]", each.get("name") or "", each.get("request") or ""
        if not name:
            errors.append(required(at))
        elif (name, "") in known or (name, request) in known or (not request and name in {n for n, _ in known}):
            errors.append(duplicate(at, f"{name}/{request}" if (name, request) in known and request else name))
        if request:
            errors += all_invalid(f"{at}.request", request, names.dns_label(request))
        if name not in claims:
            errors.append(not_found(at, name))
        known.add((name, request))
    return errors


def user_ids(context: Json, path: str, *fields: str) -> list[FieldError]:
    return [
        invalid(f"{path}.{field}", context[field], f"must be between 0 and {_MAX_ID}, inclusive")
        for field in fields
        if context.get(field) is not None and not 0 <= context[field] <= _MAX_ID
    ]


def _variables(found: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, variable in enumerate(found):
        name = variable.get("name")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
        elif not _is_variable(name):
            errors.append(invalid(f"{path}[{index}].name", name, _VARIABLE))
        if variable.get("valueFrom") is not None:
            errors += _value_from(variable, f"{path}[{index}].valueFrom")
    return errors


def _is_variable(name: str) -> bool:
    return name.isascii() and name.isprintable() and "=" not in name


def _value_from(variable: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    source: Json = variable["valueFrom"]
    given = [kind for kind in _SOURCES if source.get(kind) is not None]
    if "fieldRef" in given:
        errors += _field(source["fieldRef"].get("fieldPath") or "", f"{path}.fieldRef.fieldPath")
    if "resourceFieldRef" in given and not source["resourceFieldRef"].get("resource"):
        errors.append(required(f"{path}.resourceFieldRef.resource"))
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind in given:
            errors += [required(f"{path}.{kind}.{field}") for field in ("name", "key") if not source[kind].get(field)]
    if not given:
        errors.append(
            invalid(
                path, "", f"must specify one of: {', '.join(f'`{kind}`' for kind in _SOURCES[:-1])} or `fileKeyRef`"
            )
        )
    elif variable.get("value"):
        errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(given) > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _field(chosen: str, path: str) -> list[FieldError]:
    if not chosen:
        return [required(path)]
    if chosen in _FIELDS or chosen.startswith(("metadata.labels[", "metadata.annotations[")):
        return []
    return [invalid(path, chosen, f"error converting fieldPath: field label not supported: {chosen}")]


def _environment(found: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, source in enumerate(found):
        at, prefix = f"{path}[{index}]", source.get("prefix")
        if prefix and not _is_variable(prefix):
            errors.append(invalid(f"{at}.prefix", prefix, _VARIABLE))
        given = [kind for kind in ("configMapRef", "secretRef") if source.get(kind) is not None]
        errors += [required(f"{at}.{kind}.name") for kind in given if not source[kind].get("name")]
        if not given:
            errors.append(invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(given) > 1:
            errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _handler(handler: Json, path: str, grace: int | None) -> list[FieldError]:
    """Check the handler of a probe or a hook: it has exactly one type."""
    errors: list[FieldError] = []
    given = [kind for kind in ("exec", "httpGet", "tcpSocket", "grpc", "sleep") if handler.get(kind) is not None]
    for kind in given[1:]:
        errors.append(forbidden(f"{path}.{kind}", "may not specify more than 1 handler type"))
    if not given:
        return [required(path, "must specify a handler type")]
    kind, at = given[0], f"{path}.{given[0]}"
    action: Json = handler[kind]
    first: list[FieldError] = []
    if kind == "exec":
        first = [] if action.get("command") else [required(f"{at}.command")]
    elif kind == "sleep":
        seconds = action.get("seconds") or 0
        if grace is not None and not 0 <= seconds <= grace:
            text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            first = [invalid(at, seconds, text)]
    else:
        if kind == "httpGet" and not action.get("path"):
            first.append(required(f"{at}.path"))
        first += all_invalid(f"{at}.port", action.get("port") or 0, names.port(action.get("port")))
        scheme = action.get("scheme") or "HTTP"
        if kind == "httpGet" and scheme not in ("HTTP", "HTTPS"):
            first.append(not_supported(f"{at}.scheme", scheme, ("HTTP", "HTTPS")))
    return first + errors


def _probe(probe: Json, path: str, which: str, grace: int | None) -> list[FieldError]:
    errors = _handler(probe, path, grace)
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if (probe.get(field) or 0) < 0:
            errors.append(invalid(f"{path}.{field}", probe[field], "must be greater than or equal to 0"))
    if which != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        errors.append(invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))
    return errors


def _watched(container: Json, path: str, grace: int | None) -> list[FieldError]:
    """Check the lifecycle hooks and probes of a container."""
    errors: list[FieldError] = []
    lifecycle: Json = container.get("lifecycle") or {}
    for hook in ("postStart", "preStop"):
        if lifecycle.get(hook) is not None:
            errors += _handler(lifecycle[hook], f"{path}.lifecycle.{hook}", grace)
    for which in _PROBES:
        if container.get(which) is not None:
            errors += _probe(container[which], f"{path}.{which}", which, grace)
    return errors


def _host_ports(container: Json, path: str, taken: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, port in enumerate(container.get("ports") or ()):
        if not port.get("hostPort"):
            continue
        place = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{port['hostPort']}"
        if place in taken:
            errors.append(duplicate(f"{path}.ports[{index}].hostPort", place))
        taken.add(place)
    return errors


def errors_of(spec: Json, path: str) -> list[FieldError]:
    """Check the containers and init containers of a defaulted pod spec."""
    errors: list[FieldError] = []
    known = {volume.get("name") or "" for volume in spec.get("volumes") or ()}
    claims = {claim.get("name") or "" for claim in spec.get("resourceClaims") or ()}
    if not spec.get("containers"):
        return [required(f"{path}.containers")]
    grace = spec.get("terminationGracePeriodSeconds")
    seen: set[str] = set()
    conflicts: list[FieldError] = []
    taken: set[str] = set()
    for index, container in enumerate(spec["containers"]):
        at = f"{path}.containers[{index}]"
        errors += _container(container, at, known, claims)
        errors += _only_once(container, at, seen)
        errors += _watched(container, at, grace)
        errors += _restart(container, at)
        conflicts += _host_ports(container, at, taken)
    errors += conflicts
    for index, container in enumerate(spec.get("initContainers") or ()):
        at = f"{path}.initContainers[{index}]"
        errors += _container(container, at, known, claims)
        errors += _restart(container, at)
        errors += _only_once(container, at, seen)
        errors += _host_ports(container, at, set())
        if container.get("restartPolicy") == "Always":
            errors += _watched(container, at, grace)
            continue
        for field in _SIDECAR_ONLY:
            if container.get(field) is not None:
                text = "may not be set for init containers without restartPolicy=Always"
                errors.append(forbidden(f"{at}.{field}", text))
    if spec.get("ephemeralContainers"):
        errors += _ephemeral(spec, path, known, claims, seen)
    if spec.get("hostNetwork"):
        errors += _host_network(spec, path)
    return errors


def _ephemeral(spec: Json, path: str, known: set[str], claims: set[str], seen: set[str]) -> list[FieldError]:
    """Check ephemeral (debug) containers, which may not have probes or ports."""
    errors: list[FieldError] = []
    others = set(seen)
    for index, container in enumerate(spec["ephemeralContainers"]):
        at = f"{path}.ephemeralContainers[{index}]"
        errors += _container(container, at, known, claims) + _only_once(container, at, seen)
        target = container.get("targetContainerName")
        if target and target not in others:
            errors.append(not_found(f"{at}.targetContainerName", target))
        errors += [
            forbidden(f"{at}.{field}", "cannot be set for an Ephemeral Container")
            for field in ("ports", "resources", *_SIDECAR_ONLY)
            if container.get(field)
        ]
        for place, mount in enumerate(container.get("volumeMounts") or ()):
            errors += [
                forbidden(f"{at}.volumeMounts[{place}].{field}", "cannot be set for an Ephemeral Container")
                for field in ("subPath", "subPathExpr")
                if mount.get(field)
            ]
    return errors


def _only_once(container: Json, path: str, seen: set[str]) -> list[FieldError]:
    name = container.get("name") or ""
    if name and name in seen:
        return [duplicate(f"{path}.name", name)]
    seen.add(name)
    return []


def _restart(container: Json, path: str) -> list[FieldError]:
    policy = container.get("restartPolicy")
    if policy is None or policy in _RESTART_POLICIES:
        return []
    return [not_supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)]


def _host_network(spec: Json, path: str) -> list[FieldError]:
    """Check that host ports equal container ports when the pod uses the host's network."""
    return [
        invalid(f"{path}.{field}[{index}].ports[{place}].hostPort", port.get("hostPort") or 0, text)
        for field in ("containers", "initContainers")
        for index, container in enumerate(spec.get(field) or ())
        for place, port in enumerate(container.get("ports") or ())
        if (port.get("hostPort") or 0) != (port.get("containerPort") or 0)
        for text in ("must match `containerPort` when `hostNetwork` is true",)
    ]
