"""The built-in kinds: API group, version, names, and update rules of each.

Shapes come from `model.tables`, rules from `model.rules`, columns from `model.printing`. This file must not contain
either: it only says which kinds exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from phalanx.model import tables, version_views
from phalanx.model.gates import Gates
from phalanx.model.kinds import SUBRESOURCE_KINDS, Json, Kind, Registry, Scale, Version
from phalanx.model.printing import columns_for
from phalanx.model.rules import rules_for
from phalanx.model.schema import Object
from phalanx.model.zero_values import zeros_of

Show = Callable[[Json], str]


class Shown:
    """The text at a dotted path; `absent` is the zero value of the field's type."""

    __slots__ = ("_absent", "path")

    def __init__(self, path: str, absent: str = "") -> None:
        self.path = tuple(path.split("."))
        self._absent = absent

    def __call__(self, obj: Json) -> str:
        at: Any = obj
        for name in self.path:
            if not isinstance(at, dict):
                return self._absent
            at = at.get(name)
        return self.text(at)

    def text(self, value: Any) -> str:
        if value is None:
            return self._absent
        if value is True or value is False:
            return "true" if value else "false"
        return str(value)


def _event_source(obj: Json) -> str:
    return Shown("source.component")(obj) or Shown("reportingComponent")(obj)


def _pod_ips(obj: Json) -> str:
    ips = (obj.get("status") or {}).get("podIPs") or ()
    return ",".join(str(entry.get("ip", "")) for entry in ips)


def _paths(*paths: str, **absent: str) -> dict[str, Show]:
    return {path: Shown(path, absent.get(path.rpartition(".")[2], "")) for path in paths}


_EVENT_TARGET = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT = _paths("reason", "reportingComponent", "type") | {"source": _event_source}

# By storage key. Rules see the storage version, so the events.k8s.io names read the core fields.
SELECTABLE: dict[str, dict[str, Show]] = {
    "pods": _paths(
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName", hostNetwork="false",
    ) | {"status.podIPs": _pod_ips},
    "nodes": _paths("spec.unschedulable", unschedulable="false"),
    "namespaces": _paths("status.phase"),
    "secrets": _paths("type"),
    "services": _paths("spec.clusterIP", "spec.type"),
    "replicasets.apps": _paths("status.replicas", replicas="0"),
    "replicationcontrollers": _paths("status.replicas", replicas="0"),
    "certificatesigningrequests.certificates.k8s.io": _paths("spec.signerName"),
    "clustertrustbundles.certificates.k8s.io": _paths("spec.signerName"),
    "podcertificaterequests.certificates.k8s.io": _paths("spec.signerName", "spec.podName", "spec.nodeName"),
    "jobs.batch": {"status.successful": Shown("status.succeeded", "0")},
    "resourceslices.resource.k8s.io": _paths("spec.nodeName", "spec.driver"),
    "events": _paths(*(f"involvedObject.{name}" for name in _EVENT_TARGET)) | _EVENT,
    "events.events.k8s.io": {f"regarding.{name}": Shown(f"involvedObject.{name}") for name in _EVENT_TARGET}
    | {"reason": _EVENT["reason"], "reportingController": _EVENT["reportingComponent"], "type": _EVENT["type"]},
}  # fmt: skip


_CREATE = ("create",)
_STATUS = frozenset({"status"})
_SCALED = frozenset({"status", "scale"})

_NOT_FORWARDED = "APIServices are kept, but no request is forwarded to another server here"

_STATUS_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
# Upstream: a write to the status of most kinds may change their metadata, too. Not of these, nor of custom resources.
_STATUS_ALONE = frozenset({
    "volumeattachments.storage.k8s.io", "resourceclaims.resource.k8s.io", "devicetaintrules.resource.k8s.io",
    "servicecidrs.networking.k8s.io", "flowschemas.flowcontrol.apiserver.k8s.io",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "storageversionmigrations.storagemigration.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io", "podgroups.scheduling.k8s.io",
    "compositepodgroups.scheduling.k8s.io", "validatingadmissionpolicies.admissionregistration.k8s.io",
    "apiservices.apiregistration.k8s.io",
})  # fmt: skip
_STATUS_EXCEPT = {"pods": ("ownerReferences",), "deployments.apps": ("labels",)}

# Served group -> directory of its tables.
_TABLE_OF = {
    "": "core",
    "scheduling.phalanx.dev": "phalanx",
    "authentication.k8s.io": "authentication",
    "authorization.k8s.io": "authorization",
}


def _table(group: str) -> str:
    return _TABLE_OF.get(group) or group.split(".", 1)[0]


def _kind(kind: str, group: str = "", plural: str = "", version: str = "v1", **facts: Any) -> Kind:
    schema = tables.record(f"{_table(group)}/{version}.{kind}")
    facts.setdefault("versions", (Version(version, schema),))
    plural = plural or kind.lower() + "s"
    return Kind(kind, group, plural, storage_version=version, singular=kind.lower(), **facts)


def _core() -> Iterator[Kind]:
    yield _kind("Namespace", namespaced=False, short_names=("ns",), subresources=frozenset({"status", "finalize"}),
                generation=False, verbs=("create", "delete", "get", "list", "patch", "update", "watch"))  # fmt: skip
    yield _kind("Node", namespaced=False, short_names=("no",), subresources=_STATUS, generation=False)
    yield _kind("Pod", short_names=("po",), categories=("all",),
                subresources=_STATUS | {"binding", "eviction", "log", "ephemeralcontainers", "resize"})  # fmt: skip
    yield _kind("ConfigMap", short_names=("cm",), generation=False)
    yield _kind("Secret", generation=False)
    yield _kind("Service", short_names=("svc",), categories=("all",), subresources=_STATUS, generation=False,
                create_on_update=True)  # fmt: skip
    yield _kind("Endpoints", plural="endpoints", short_names=("ep",), generation=False, create_on_update=True)
    yield _kind("ReplicationController", short_names=("rc",), categories=("all",), subresources=_SCALED,
                scale=Scale(selector="spec.selector"))  # fmt: skip
    yield _kind("ServiceAccount", short_names=("sa",), subresources=frozenset({"token"}), generation=False)
    yield _kind("PersistentVolume", namespaced=False, short_names=("pv",), subresources=_STATUS, generation=False)
    yield _kind("PersistentVolumeClaim", short_names=("pvc",), subresources=_STATUS, generation=False)
    yield _kind("ResourceQuota", short_names=("quota",), subresources=_STATUS, generation=False)
    yield _kind("LimitRange", short_names=("limits",), generation=False, create_on_update=True)
    yield _kind("PodTemplate")
    yield _kind("Event", short_names=("ev",), generation=False, create_on_update=True)
    view = Version("v1", tables.record("events/v1.Event"), "", version_views.from_core, version_views.to_core)
    yield _kind("Event", "events.k8s.io", short_names=("ev",), generation=False, create_on_update=True,
                versions=(view,), stored_as="events")  # fmt: skip
    yield _kind("Binding", verbs=_CREATE, stored=False, generation=False)


def _workloads() -> Iterator[Kind]:
    everything = ("all",)
    scale = Scale(selector="spec.selector")
    yield _kind("Deployment", "apps", short_names=("deploy",), categories=everything, subresources=_SCALED, scale=scale)
    yield _kind("ReplicaSet", "apps", short_names=("rs",), categories=everything, subresources=_SCALED, scale=scale)
    yield _kind("StatefulSet", "apps", short_names=("sts",), categories=everything, subresources=_SCALED, scale=scale)
    yield _kind("DaemonSet", "apps", short_names=("ds",), categories=everything, subresources=_STATUS)
    yield _kind("ControllerRevision", "apps", generation=False)
    yield _kind("Job", "batch", categories=everything, subresources=_STATUS)
    yield _kind("CronJob", "batch", short_names=("cj",), categories=everything, subresources=_STATUS)
    # KEP-1068 writes v1, upstream serves v1alpha2: one shape under two names.
    job_set = tables.record("jobset/v1alpha2.JobSet")
    yield _kind("JobSet", "jobset.x-k8s.io", version="v1alpha2", subresources=_STATUS, strategic=False,
                versions=(Version("v1alpha2", job_set), Version("v1", job_set, alias=True)))  # fmt: skip
    yield _kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io", short_names=("lws",), subresources=_SCALED,
                scale=Scale(selector="status.hpaPodSelector"), strategic=False)  # fmt: skip
    yield _kind("DisaggregatedSet", "disaggregatedset.x-k8s.io", subresources=_STATUS, strategic=False)
    yield _kind("DisaggregatedSetRoleScaler", "disaggregatedset.x-k8s.io", short_names=("dsrs",), subresources=_SCALED,
                scale=Scale(selector="status.selector"), strategic=False)  # fmt: skip


def _cluster() -> Iterator[Kind]:
    yield _kind("Lease", "coordination.k8s.io", generation=False, unconditional_update=False, create_on_update=True)
    yield _kind("PodDisruptionBudget", "policy", short_names=("pdb",), subresources=_STATUS, unconditional_update=False)
    yield _kind("StorageClass", "storage.k8s.io", "storageclasses", namespaced=False, short_names=("sc",),
                generation=False)  # fmt: skip
    yield _kind("CSINode", "storage.k8s.io", namespaced=False, generation=False, unconditional_update=False)
    yield _kind("CSIDriver", "storage.k8s.io", namespaced=False, unconditional_update=False)
    yield _kind("CSIStorageCapacity", "storage.k8s.io", "csistoragecapacities", generation=False,
                unconditional_update=False)  # fmt: skip
    yield _kind("VolumeAttachment", "storage.k8s.io", namespaced=False, subresources=_STATUS, generation=False,
                unconditional_update=False)  # fmt: skip
    yield _kind("VolumeAttributesClass", "storage.k8s.io", "volumeattributesclasses", namespaced=False,
                short_names=("vac",), generation=False)  # fmt: skip
    yield _kind("RuntimeClass", "node.k8s.io", "runtimeclasses", namespaced=False, generation=False,
                unconditional_update=False, create_on_update=True)  # fmt: skip
    yield _kind("ResourceClaim", "resource.k8s.io", subresources=_STATUS, generation=False)
    yield _kind("ResourceClaimTemplate", "resource.k8s.io", generation=False)
    yield _kind("ResourceSlice", "resource.k8s.io", namespaced=False)
    yield _kind("DeviceClass", "resource.k8s.io", "deviceclasses", namespaced=False)
    yield _kind("DeviceTaintRule", "resource.k8s.io", namespaced=False, subresources=_STATUS,
                unconditional_update=False)  # fmt: skip
    yield _kind("CustomResourceDefinition", "apiextensions.k8s.io", namespaced=False, short_names=("crd", "crds"),
                categories=("api-extensions",), subresources=_STATUS, unconditional_update=False)  # fmt: skip
    for kind in ("Role", "RoleBinding"):
        yield _kind(kind, "rbac.authorization.k8s.io", generation=False, create_on_update=True)
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        yield _kind(kind, "rbac.authorization.k8s.io", namespaced=False, generation=False, create_on_update=True)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        yield _kind(kind, "admissionregistration.k8s.io", namespaced=False, categories=("api-extensions",))
    for kind in ("Mutating", "Validating"):
        policies: dict[str, Any] = {"namespaced": False, "categories": ("api-extensions",)}
        plural = f"{kind.lower()}admissionpolicies"
        subresources = _STATUS if kind == "Validating" else frozenset[str]()
        yield _kind(f"{kind}AdmissionPolicy", "admissionregistration.k8s.io", plural, subresources=subresources,
                    **policies)  # fmt: skip
        yield _kind(f"{kind}AdmissionPolicyBinding", "admissionregistration.k8s.io", **policies)
    question: dict[str, Any] = {"verbs": _CREATE, "stored": False, "generation": False}
    for kind in ("SelfSubjectReview", "TokenReview"):
        yield _kind(kind, "authentication.k8s.io", namespaced=False, **question)
    for kind in ("SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"):
        yield _kind(kind, "authorization.k8s.io", namespaced=False, **question)
    yield _kind("LocalSubjectAccessReview", "authorization.k8s.io", **question)


def _networks() -> Iterator[Kind]:
    networking = "networking.k8s.io"
    yield _kind("EndpointSlice", "discovery.k8s.io")
    yield _kind("Ingress", networking, "ingresses", short_names=("ing",), subresources=_STATUS)
    yield _kind("IngressClass", networking, "ingressclasses", namespaced=False)
    yield _kind("NetworkPolicy", networking, "networkpolicies", short_names=("netpol",))
    yield _kind("IPAddress", networking, "ipaddresses", namespaced=False, short_names=("ip",), generation=False)
    yield _kind("ServiceCIDR", networking, namespaced=False, subresources=_STATUS, generation=False)


def _control() -> Iterator[Kind]:
    """Yield the kinds that only a full control plane acts on.

    They are stored for clients that list, watch or write them.
    """
    scaler = [tables.record(f"autoscaling/{version}.HorizontalPodAutoscaler") for version in ("v2", "v1")]
    yield _kind("HorizontalPodAutoscaler", "autoscaling", version="v2", short_names=("hpa",), categories=("all",),
                subresources=_STATUS, versions=(
        Version("v2", scaler[0]),
        Version("v1", scaler[1]),
    ))  # fmt: skip
    yield _kind("CertificateSigningRequest", "certificates.k8s.io", namespaced=False, short_names=("csr",),
                subresources=frozenset({"status", "approval"}), generation=False)  # fmt: skip
    yield _kind("PodCertificateRequest", "certificates.k8s.io", subresources=_STATUS)
    yield _kind("ClusterTrustBundle", "certificates.k8s.io", namespaced=False)
    flow = "flowcontrol.apiserver.k8s.io"
    yield _kind("FlowSchema", flow, namespaced=False, subresources=_STATUS)
    yield _kind("PriorityLevelConfiguration", flow, namespaced=False, subresources=_STATUS)
    yield _kind("APIService", "apiregistration.k8s.io", namespaced=False, categories=("api-extensions",),
                subresources=_STATUS, warning=_NOT_FORWARDED)  # fmt: skip
    yield _kind("StorageVersionMigration", "storagemigration.k8s.io", namespaced=False, subresources=_STATUS,
                generation=False, unconditional_update=False)  # fmt: skip


def _scheduling() -> Iterator[Kind]:
    yield _kind("PriorityClass", "scheduling.k8s.io", "priorityclasses", namespaced=False, short_names=("pc",))
    group: dict[str, Any] = {"group": "scheduling.k8s.io", "generation": False, "unconditional_update": False}
    # v1beta1 and v1alpha3 have the same shape; v1alpha1 is KEP-4671's view of the same stored Workload.
    workload = tables.record("scheduling/v1beta1.Workload")
    pod_group = tables.record("scheduling/v1beta1.PodGroup")
    gate = "GenericWorkload"
    yield _kind("Workload", version="v1beta1", **group, subresources=_STATUS, versions=(
        Version("v1beta1", workload, gate),
        Version("v1alpha3", workload, gate),
        Version("v1alpha1", tables.record("scheduling/v1alpha1.Workload"), gate),
    ))  # fmt: skip
    yield _kind("PodGroup", version="v1beta1", **group, subresources=_STATUS, versions=(
        Version("v1beta1", pod_group, gate),
        Version("v1alpha3", pod_group, gate),
    ))  # fmt: skip
    composite = tables.record("scheduling/v1alpha3.CompositePodGroup")
    yield _kind("CompositePodGroup", version="v1alpha3", **group, subresources=_STATUS,
                versions=(Version("v1alpha3", composite, "CompositePodGroup"),))  # fmt: skip
    policy = tables.record("phalanx/v1alpha1.WorkloadPolicy")
    yield _kind("WorkloadPolicy", "scheduling.phalanx.dev", "workloadpolicies", version="v1alpha1",
                short_names=("wlp",), categories=("phalanx",), subresources=_STATUS, strategic=False,
                versions=(Version("v1alpha1", policy, gate),))  # fmt: skip


def declared_kinds() -> Iterator[Kind]:
    """Yield every built-in kind, without its rules and columns."""
    for declare in (_core, _workloads, _cluster, _networks, _control, _scheduling):
        yield from declare()


def registry(gates: Gates | None = None) -> Registry:
    """Return a registry of all built-in kinds whose gates are on, with their rules and columns."""
    return Registry(_served(gates or Gates()))


@cache
def _served(gates: Gates) -> tuple[Kind, ...]:
    found: list[Kind] = []
    for kind in declared_kinds():
        versions = tuple(version for version in kind.versions if not version.gate or gates(version.gate))
        if versions:
            found.append(_complete(kind, versions, gates))
    return tuple(found)


_HOOKS = (
    "default", "prepare_create", "prepare_update", "prepare_status",
    "validate_create", "validate_update", "validate_status", "validate_name", "template_errors", "parts",
)  # fmt: skip


def _complete(kind: Kind, versions: tuple[Version, ...], gates: Gates) -> Kind:
    """Return the kind with its rules, columns and field selectors. Rules use the storage version."""
    rules = rules_for(kind, gates)
    changes: dict[str, Any] = {hook: found for hook in _HOOKS if (found := getattr(rules, hook)) is not None}
    selectable = SELECTABLE.get(kind.key, {})
    if not kind.stored_as:
        selectable = {**selectable, **rules.selectable}
        versions = tuple(
            msgspec.structs.replace(
                version,
                from_storage=rules.from_storage.get(version.name),
                to_storage=rules.to_storage.get(version.name),
            )
            for version in versions
        )
    changes |= {"versions": versions, "selectable": selectable, "columns": columns_for(kind.key)}
    if "status" in kind.subresources and kind.strategic and kind.key not in _STATUS_ALONE:
        fixed = _STATUS_EXCEPT.get(kind.key, ())
        changes["status_writes"] = tuple(name for name in _STATUS_METADATA if name not in fixed)
    if kind.stored and not kind.stored_as:
        changes["zeros"] = zeros_of(kind.version(kind.storage_version).schema)
    return replace(kind, **changes)


@cache
def body_schema(group: str, version: str, kind: str) -> Object | None:
    """Return the schema of a request body whose kind has no path of its own.

    Examples are Eviction, Scale, TokenRequest and DeleteOptions.
    """
    if kind == "DeleteOptions":  # sent in the group and version of whatever is deleted
        return tables.record("meta/v1.DeleteOptions")
    if (group, version, kind) in SUBRESOURCE_KINDS.values():
        return tables.record(f"{_table(group)}/{version}.{kind}")
    return None
