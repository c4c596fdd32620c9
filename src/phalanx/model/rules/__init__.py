"""The rules of every kind: what values are allowed, defaulted, dropped, converted.

`rules_for(kind, gates)` is the one way in. A kind that is not listed has the rules of its table, metadata and status.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from phalanx.model.gates import Gates
from phalanx.model.kinds import Kind
from phalanx.model.rules.assembly import OwnRules, assemble
from phalanx.model.rules.contract import EMPTY, Errors, Rules, Viewed

__all__ = ["Errors", "Rules", "Viewed", "rules_for"]

_CHECKED_ELSEWHERE = "customresourcedefinitions.apiextensions.k8s.io"  # by local.api.crd
# storage key -> (module, function taking Gates and giving the rules); modules load when first asked for
_WHERE: dict[str, tuple[str, str]] = {
    "pods": ("pod", "rules"),
    "namespaces": ("cluster", "namespace"),
    "nodes": ("cluster", "node"),
    "events": ("cluster", "event"),
    "resourcequotas": ("cluster", "resource_quota"),
    "limitranges": ("cluster", "limit_range"),
    "podtemplates": ("cluster", "pod_template"),
    "leases.coordination.k8s.io": ("cluster", "lease"),
    "poddisruptionbudgets.policy": ("cluster", "pod_disruption_budget"),
    "priorityclasses.scheduling.k8s.io": ("cluster", "priority_class"),
    "roles.rbac.authorization.k8s.io": ("rbac", "role"),
    "rolebindings.rbac.authorization.k8s.io": ("rbac", "role_binding"),
    "clusterroles.rbac.authorization.k8s.io": ("rbac", "cluster_role"),
    "clusterrolebindings.rbac.authorization.k8s.io": ("rbac", "cluster_role_binding"),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": ("webhooks", "rules"),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": ("webhooks", "rules"),
    "validatingadmissionpolicies.admissionregistration.k8s.io": ("policies", "validating"),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": ("policies", "validating_binding"),
    "mutatingadmissionpolicies.admissionregistration.k8s.io": ("policies", "mutating"),
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io": ("policies", "mutating_binding"),
    "configmaps": ("config", "config_map"),
    "secrets": ("config", "secret"),
    "services": ("config", "service"),
    "endpoints": ("networks", "endpoints"),
    "replicationcontrollers": ("apps", "replication_controller"),
    "endpointslices.discovery.k8s.io": ("networks", "endpoint_slice"),
    "ingresses.networking.k8s.io": ("networks", "ingress"),
    "networkpolicies.networking.k8s.io": ("networks", "network_policy"),
    "ipaddresses.networking.k8s.io": ("networks", "ip_address"),
    "servicecidrs.networking.k8s.io": ("networks", "service_cidr"),
    "horizontalpodautoscalers.autoscaling": ("control", "horizontal_pod_autoscaler"),
    "certificatesigningrequests.certificates.k8s.io": ("control", "certificate_signing_request"),
    "clustertrustbundles.certificates.k8s.io": ("control", "cluster_trust_bundle"),
    "flowschemas.flowcontrol.apiserver.k8s.io": ("control", "flow_schema"),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": ("control", "priority_level"),
    "apiservices.apiregistration.k8s.io": ("control", "api_service"),
    "runtimeclasses.node.k8s.io": ("control", "runtime_class"),
    "devicetaintrules.resource.k8s.io": ("slices", "device_taint_rule"),
    "volumeattachments.storage.k8s.io": ("storage", "volume_attachment"),
    "persistentvolumes": ("storage", "persistent_volume"),
    "persistentvolumeclaims": ("storage", "persistent_volume_claim"),
    "storageclasses.storage.k8s.io": ("storage", "storage_class"),
    "csistoragecapacities.storage.k8s.io": ("storage", "csi_storage_capacity"),
    "deviceclasses.resource.k8s.io": ("devices", "device_class"),
    "resourceclaims.resource.k8s.io": ("devices", "resource_claim"),
    "resourceclaimtemplates.resource.k8s.io": ("devices", "resource_claim_template"),
    "resourceslices.resource.k8s.io": ("slices", "resource_slice"),
    "deployments.apps": ("apps", "deployment"),
    "replicasets.apps": ("apps", "replica_set"),
    "statefulsets.apps": ("apps", "stateful_set"),
    "daemonsets.apps": ("apps", "daemon_set"),
    "jobs.batch": ("batch", "job"),
    "cronjobs.batch": ("batch", "cron_job"),
    "jobsets.jobset.x-k8s.io": ("jobset", "rules"),
    "leaderworkersets.leaderworkerset.x-k8s.io": ("leaderworkerset", "rules"),
    "disaggregatedsets.disaggregatedset.x-k8s.io": ("disaggregatedset", "rules"),
    "disaggregatedsetrolescalers.disaggregatedset.x-k8s.io": ("disaggregatedset", "scaler"),
    "workloads.scheduling.k8s.io": ("workload", "rules"),
    "podgroups.scheduling.k8s.io": ("podgroup", "pod_group"),
    "compositepodgroups.scheduling.k8s.io": ("podgroup", "composite_pod_group"),
}


def rules_for(kind: Kind, gates: Gates) -> Rules:
    """Return the rules of a kind under these gates."""
    if not kind.stored or kind.key == _CHECKED_ELSEWHERE:
        return EMPTY
    where = _WHERE.get(kind.storage_key)
    if where is None:
        return assemble(kind, OwnRules())
    module, function = where
    make: Callable[[Gates], Rules | OwnRules] = getattr(import_module(f"phalanx.model.rules.{module}"), function)
    found = make(gates)
    return assemble(kind, found) if isinstance(found, OwnRules) else found
