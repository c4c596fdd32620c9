"""Columns of nodes, namespaces, events, leases, budgets, quotas, configuration and roles."""

from __future__ import annotations

from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    column,
    condition,
    meta,
    name,
    pairs,
    since,
    spec,
    status,
    text,
)

_ROLE = "node-role.kubernetes.io/"


def _node_status(obj: Json, now: float) -> str:
    ready = condition(obj, "Ready")
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if spec(obj).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(obj: Json, now: float) -> str:
    found = set()
    for key, value in (meta(obj).get("labels") or {}).items():
        if key.startswith(_ROLE) and len(key) > len(_ROLE):
            found.add(key[len(_ROLE) :])
        elif key == "kubernetes.io/role" and value:
            found.add(value)
    return ",".join(sorted(found)) or NONE


def _node_address(kind: str) -> Column:
    def cell(obj: Json, now: float) -> str:
        for address in status(obj).get("addresses") or ():
            if address.get("type") == kind:
                return str(address.get("address"))
        return NONE

    return column("Internal-IP" if kind == "InternalIP" else "External-IP", cell, wide=True)


def _kernel(obj: Json, now: float) -> str:
    info: Json = status(obj).get("nodeInfo") or {}
    version = info.get("kernelVersion") or UNKNOWN
    return f"{version} ({info['architecture']})" if info.get("architecture") else version


NODE: tuple[Column, ...] = (
    NAME,
    column("Status", _node_status),
    column("Roles", _roles),
    AGE,
    column("Version", text("status.nodeInfo.kubeletVersion", "")),
    _node_address("InternalIP"),
    _node_address("ExternalIP"),
    column("OS-Image", text("status.nodeInfo.osImage", UNKNOWN), wide=True),
    column("Kernel-Version", _kernel, wide=True),
    column("Container-Runtime", text("status.nodeInfo.containerRuntimeVersion", UNKNOWN), wide=True),
)
NAMESPACE: tuple[Column, ...] = (NAME, column("Status", text("status.phase", "")), AGE)
LEASE: tuple[Column, ...] = (NAME, column("Holder", text("spec.holderIdentity", "")), AGE)
PDB: tuple[Column, ...] = (
    NAME,
    column("Min Available", text("spec.minAvailable", "N/A")),
    column("Max Unavailable", text("spec.maxUnavailable", "N/A")),
    column("Allowed Disruptions", text("status.disruptionsAllowed", 0), type="integer"),
    AGE,
)


# -- events ----------------------------------------------------------------------------------------------------------


def _first_seen(obj: Json, now: float) -> str:
    return since(obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _last_seen(obj: Json, now: float) -> str:
    series = (obj.get("series") or {}).get("lastObservedTime")
    return since(series or obj.get("lastTimestamp") or obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _event_object(obj: Json, now: float) -> str:
    about: Json = obj.get("involvedObject") or obj.get("regarding") or {}
    kind = str(about.get("kind") or "").lower()
    return f"{kind}/{about['name']}" if about.get("name") else kind


def _event_source(obj: Json, now: float) -> str:
    source: Json = obj.get("source") or obj.get("deprecatedSource") or {}
    component = source.get("component") or obj.get("reportingComponent") or obj.get("reportingController") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return ", ".join(part for part in (component, host) if part)


def _event_message(obj: Json, now: float) -> str:
    return str(obj.get("message") or obj.get("note") or "").strip()


def _event_count(obj: Json, now: float) -> int:
    return int((obj.get("series") or {}).get("count") or obj.get("count") or obj.get("deprecatedCount") or 1)


def _event_part(obj: Json, now: float) -> str:
    return str((obj.get("involvedObject") or obj.get("regarding") or {}).get("fieldPath") or "")


EVENT: tuple[Column, ...] = (
    column("Last Seen", _last_seen),
    column("Type", text("type", "")),
    column("Reason", text("reason", "")),
    column("Object", _event_object),
    column("Subobject", _event_part, wide=True),
    column("Source", _event_source, wide=True),
    column("Message", _event_message),
    column("First Seen", _first_seen, wide=True),
    column("Count", _event_count, wide=True),
    Column("Name", "string", name, priority=1, format="name"),
)


# -- quotas ----------------------------------------------------------------------------------------------------------


def _quota(limits: bool) -> Column:
    def cell(obj: Json, now: float) -> str:
        hard: Json = status(obj).get("hard") or {}
        used: Json = status(obj).get("used") or {}
        wanted = [key for key in sorted(hard) if key.startswith("limits") == limits]
        return ", ".join(f"{key}: {used.get(key, '0')}/{hard[key]}" for key in wanted)

    return column("Limit" if limits else "Request", cell)


QUOTA: tuple[Column, ...] = (NAME, _quota(False), _quota(True), AGE)


# -- configuration and access ----------------------------------------------------------------------------------------


def _keys(*fields: str) -> Column:
    def cell(obj: Json, now: float) -> str:
        return str(sum(len(obj.get(field) or ()) for field in fields))

    return column("Data", cell)


CONFIG_MAP: tuple[Column, ...] = (NAME, _keys("data", "binaryData"), AGE)
SECRET: tuple[Column, ...] = (NAME, column("Type", text("type", "")), _keys("data"), AGE)


def _external(obj: Json, now: float) -> str:
    found = spec(obj)
    if found.get("type") == "ExternalName":
        return str(found.get("externalName") or "")
    addresses = list(found.get("externalIPs") or ())
    if found.get("type") == "LoadBalancer":
        ingress = (status(obj).get("loadBalancer") or {}).get("ingress") or ()
        addresses = [entry.get("ip") or entry.get("hostname") for entry in ingress] + addresses
        return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or NONE


def _ports(obj: Json, now: float) -> str:
    shown = []
    for port in spec(obj).get("ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        shown.append(f"{port.get('port')}{node}/{port.get('protocol') or 'TCP'}")
    return ",".join(shown) or NONE


SERVICE: tuple[Column, ...] = (
    NAME,
    column("Type", text("spec.type", "")),
    column("Cluster-IP", text("spec.clusterIP")),
    column("External-IP", _external),
    column("Port(s)", _ports),
    AGE,
    column("Selector", lambda obj, now: pairs(spec(obj).get("selector")), wide=True),
)

CREATED_AT = Column("Created At", "date", lambda obj, now: meta(obj).get("creationTimestamp") or UNKNOWN)
DATED: tuple[Column, ...] = (NAME, CREATED_AT)


def _subjects(kind: str) -> Column:
    def cell(obj: Json, now: float) -> str:
        found = [subject for subject in obj.get("subjects") or () if subject.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{subject.get('namespace', '')}/{subject.get('name')}" for subject in found)
        return ", ".join(str(subject.get("name")) for subject in found)

    titles = {"User": "Users", "Group": "Groups", "ServiceAccount": "ServiceAccounts"}
    return column(titles[kind], cell, wide=True)


def _role(obj: Json, now: float) -> str:
    reference: Json = obj.get("roleRef") or {}
    return f"{reference.get('kind')}/{reference.get('name')}"


ROLE_BINDING: tuple[Column, ...] = (
    NAME,
    column("Role", _role),
    AGE,
    _subjects("User"),
    _subjects("Group"),
    _subjects("ServiceAccount"),
)


_UNSET = "<unset>"


def _count(field: str) -> Column:
    return Column(field.capitalize(), "integer", lambda obj, _: len((obj.get("spec") or {}).get(field) or ()))


def _param_kind(obj: Json, _: float) -> str:
    wanted = (obj.get("spec") or {}).get("paramKind")
    return f"{wanted.get('apiVersion', '')}/{wanted.get('kind', '')}" if wanted else _UNSET


def _param_ref(obj: Json, _: float) -> str:
    ref: Json = (obj.get("spec") or {}).get("paramRef") or {}
    if ref.get("name"):
        return f"{ref.get('namespace') or '*'}/{ref['name']}"
    labels = (ref.get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or _UNSET


_PARAM_KIND = Column("ParamKind", "string", _param_kind)
WEBHOOKS = (NAME, Column("Webhooks", "integer", lambda obj, _: len(obj.get("webhooks") or ())), AGE)
VALIDATING = (NAME, _count("validations"), _PARAM_KIND, AGE)
MUTATING = (NAME, _count("mutations"), _PARAM_KIND, AGE)
BINDING = (
    NAME,
    Column("PolicyName", "string", lambda obj, _: str((obj.get("spec") or {}).get("policyName") or "")),
    Column("ParamRef", "string", _param_ref),
    AGE,
)
