"""Columns of `kubectl get` for every kind."""

from __future__ import annotations

from phalanx.model.kinds import Column
from phalanx.model.printing import cluster, groups, networks, pods, storage, workloads
from phalanx.model.printing.cells import AGE, NAME

__all__ = ["columns_for"]

_DEFAULT: tuple[Column, ...] = (NAME, AGE)
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": pods.POD,
    "nodes": cluster.NODE,
    "namespaces": cluster.NAMESPACE,
    "events": cluster.EVENT,
    "events.events.k8s.io": cluster.EVENT,
    "resourcequotas": cluster.QUOTA,
    "limitranges": cluster.DATED,
    "configmaps": cluster.CONFIG_MAP,
    "secrets": cluster.SECRET,
    "services": cluster.SERVICE,
    "replicationcontrollers": networks.REPLICATION_CONTROLLER,
    "endpoints": networks.ENDPOINTS,
    "endpointslices.discovery.k8s.io": networks.ENDPOINT_SLICE,
    "ingresses.networking.k8s.io": networks.INGRESS,
    "ingressclasses.networking.k8s.io": networks.INGRESS_CLASS,
    "networkpolicies.networking.k8s.io": networks.NETWORK_POLICY,
    "ipaddresses.networking.k8s.io": networks.IP_ADDRESS,
    "servicecidrs.networking.k8s.io": networks.SERVICE_CIDR,
    "horizontalpodautoscalers.autoscaling": networks.HORIZONTAL_POD_AUTOSCALER,
    "certificatesigningrequests.certificates.k8s.io": networks.CERTIFICATE_SIGNING_REQUEST,
    "flowschemas.flowcontrol.apiserver.k8s.io": networks.FLOW_SCHEMA,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": networks.PRIORITY_LEVEL,
    "apiservices.apiregistration.k8s.io": networks.API_SERVICE,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": cluster.WEBHOOKS,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": cluster.WEBHOOKS,
    "validatingadmissionpolicies.admissionregistration.k8s.io": cluster.VALIDATING,
    "mutatingadmissionpolicies.admissionregistration.k8s.io": cluster.MUTATING,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": cluster.BINDING,
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io": cluster.BINDING,
    "storageversionmigrations.storagemigration.k8s.io": networks.STORAGE_VERSION_MIGRATION,
    "runtimeclasses.node.k8s.io": networks.RUNTIME_CLASS,
    "volumeattachments.storage.k8s.io": networks.VOLUME_ATTACHMENT,
    "volumeattributesclasses.storage.k8s.io": networks.VOLUME_ATTRIBUTES_CLASS,
    "devicetaintrules.resource.k8s.io": networks.DEVICE_TAINT_RULE,
    "podtemplates": workloads.POD_TEMPLATE,
    "persistentvolumes": storage.VOLUME,
    "persistentvolumeclaims": storage.CLAIM,
    "storageclasses.storage.k8s.io": storage.STORAGE_CLASS,
    "csinodes.storage.k8s.io": storage.CSI_NODE,
    "csidrivers.storage.k8s.io": storage.CSI_DRIVER,
    "csistoragecapacities.storage.k8s.io": storage.CSI_CAPACITY,
    "resourceclaims.resource.k8s.io": storage.RESOURCE_CLAIM,
    "resourceslices.resource.k8s.io": storage.RESOURCE_SLICE,
    "deployments.apps": workloads.DEPLOYMENT,
    "replicasets.apps": workloads.REPLICA_SET,
    "statefulsets.apps": workloads.STATEFUL_SET,
    "daemonsets.apps": workloads.DAEMON_SET,
    "controllerrevisions.apps": workloads.CONTROLLER_REVISION,
    "jobs.batch": workloads.JOB,
    "cronjobs.batch": workloads.CRON_JOB,
    "jobsets.jobset.x-k8s.io": workloads.JOB_SET,
    "leaderworkersets.leaderworkerset.x-k8s.io": workloads.LEADER_WORKER_SET,
    "disaggregatedsetrolescalers.disaggregatedset.x-k8s.io": workloads.ROLE_SCALER,
    "leases.coordination.k8s.io": cluster.LEASE,
    "poddisruptionbudgets.policy": cluster.PDB,
    "priorityclasses.scheduling.k8s.io": groups.PRIORITY_CLASS,
    "workloads.scheduling.k8s.io": groups.WORKLOAD,
    "podgroups.scheduling.k8s.io": groups.POD_GROUP,
    "compositepodgroups.scheduling.k8s.io": groups.COMPOSITE_POD_GROUP,
    "workloadpolicies.scheduling.phalanx.dev": groups.WORKLOAD_POLICY,
    "customresourcedefinitions.apiextensions.k8s.io": cluster.DATED,
    "roles.rbac.authorization.k8s.io": cluster.DATED,
    "clusterroles.rbac.authorization.k8s.io": cluster.DATED,
    "rolebindings.rbac.authorization.k8s.io": cluster.ROLE_BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": cluster.ROLE_BINDING,
}


def columns_for(storage_key: str) -> tuple[Column, ...]:
    """Return the Table columns of a kind; Name and Age by default."""
    return _COLUMNS.get(storage_key, _DEFAULT)
