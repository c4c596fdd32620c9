"""The rules of every kind: what values are allowed, defaulted, dropped, converted.

`rules_for(storage_key, gates)` is the one way in. A kind without rules gets empty ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from phalanx.model.gates import Gates
from phalanx.model.rules.contract import EMPTY, Errors, Rules, Viewed

__all__ = ["Errors", "Rules", "Viewed", "rules_for"]

# storage key -> (module, function taking Gates and giving Rules); modules load when first asked for
_WHERE: dict[str, tuple[str, str]] = {
    "pods": ("pod", "rules"),
    "namespaces": ("cluster", "namespace"),
    "nodes": ("cluster", "node"),
    "events": ("cluster", "event"),
    "resourcequotas": ("cluster", "resource_quota"),
    "limitranges": ("cluster", "limit_range"),
    "serviceaccounts": ("cluster", "service_account"),
    "podtemplates": ("cluster", "pod_template"),
    "leases.coordination.k8s.io": ("cluster", "lease"),
    "poddisruptionbudgets.policy": ("cluster", "pod_disruption_budget"),
    "priorityclasses.scheduling.k8s.io": ("cluster", "priority_class"),
    "roles.rbac.authorization.k8s.io": ("rbac", "role"),
    "rolebindings.rbac.authorization.k8s.io": ("rbac", "role_binding"),
    "clusterroles.rbac.authorization.k8s.io": ("rbac", "cluster_role"),
    "clusterrolebindings.rbac.authorization.k8s.io": ("rbac", "cluster_role_binding"),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": ("webhooks", "mutating"),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": ("webhooks", "validating"),
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
    "ingressclasses.networking.k8s.io": ("networks", "ingress_class"),
    "networkpolicies.networking.k8s.io": ("networks", "network_policy"),
    "ipaddresses.networking.k8s.io": ("networks", "ip_address"),
    "servicecidrs.networking.k8s.io": ("networks", "service_cidr"),
    "horizontalpodautoscalers.autoscaling": ("control", "horizontal_pod_autoscaler"),
    "certificatesigningrequests.certificates.k8s.io": ("control", "certificate_signing_request"),
    "podcertificaterequests.certificates.k8s.io": ("control", "pod_certificate_request"),
    "clustertrustbundles.certificates.k8s.io": ("control", "cluster_trust_bundle"),
    "flowschemas.flowcontrol.apiserver.k8s.io": ("control", "flow_schema"),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": ("control", "priority_level"),
    "storageversionmigrations.storagemigration.k8s.io": ("control", "storage_version_migration"),
    "apiservices.apiregistration.k8s.io": ("control", "api_service"),
    "runtimeclasses.node.k8s.io": ("control", "runtime_class"),
    "devicetaintrules.resource.k8s.io": ("slices", "device_taint_rule"),
    "volumeattachments.storage.k8s.io": ("storage", "volume_attachment"),
    "volumeattributesclasses.storage.k8s.io": ("storage", "volume_attributes_class"),
    "persistentvolumes": ("storage", "persistent_volume"),
    "persistentvolumeclaims": ("storage", "persistent_volume_claim"),
    "storageclasses.storage.k8s.io": ("storage", "storage_class"),
    "csinodes.storage.k8s.io": ("storage", "cluster_wide"),
    "csidrivers.storage.k8s.io": ("storage", "cluster_wide"),
    "csistoragecapacities.storage.k8s.io": ("storage", "csi_storage_capacity"),
    "deviceclasses.resource.k8s.io": ("devices", "device_class"),
    "resourceclaims.resource.k8s.io": ("devices", "resource_claim"),
    "resourceclaimtemplates.resource.k8s.io": ("devices", "resource_claim_template"),
    "resourceslices.resource.k8s.io": ("slices", "resource_slice"),
    "deployments.apps": ("apps", "deployment"),
    "replicasets.apps": ("apps", "replica_set"),
    "statefulsets.apps": ("apps", "stateful_set"),
    "daemonsets.apps": ("apps", "daemon_set"),
    "controllerrevisions.apps": ("apps", "controller_revision"),
    "jobs.batch": ("batch", "job"),
    "cronjobs.batch": ("batch", "cron_job"),
    "jobsets.jobset.x-k8s.io": ("jobset", "rules"),
    "leaderworkersets.leaderworkerset.x-k8s.io": ("leaderworkerset", "rules"),
    "disaggregatedsets.disaggregatedset.x-k8s.io": ("disaggregatedset", "rules"),
    "disaggregatedsetrolescalers.disaggregatedset.x-k8s.io": ("disaggregatedset", "scaler"),
    "workloads.scheduling.k8s.io": ("workload", "rules"),
    "podgroups.scheduling.k8s.io": ("podgroup", "pod_group"),
    "workloadpolicies.scheduling.phalanx.dev": ("policies", "workload_policy"),
    "compositepodgroups.scheduling.k8s.io": ("podgroup", "composite_pod_group"),
}


def rules_for(storage_key: str, gates: Gates) -> Rules:
    """Return the rules of a kind under these gates."""
    where = _WHERE.get(storage_key)
    if where is None:
        return EMPTY
    module, function = where
    make: Callable[[Gates], Rules] = getattr(import_module(f"phalanx.model.rules.{module}"), function)
    return make(gates)
