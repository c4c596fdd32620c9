"""Define names of the Kubernetes API that more than one module uses: labels, annotations, taints, conditions."""

from __future__ import annotations

# API groups
SCHEDULING_API = "scheduling.k8s.io"
PHALANX_API = "scheduling.phalanx.dev"  # custom resources, annotations and labels of this project
RBAC_API = "rbac.authorization.k8s.io"
DEVICES_API = "resource.k8s.io"
GROUP_APIS = (SCHEDULING_API, PHALANX_API)  # of PodGroups: native, and as custom resources

# Taints of nodes
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
NODE_LOST_TAINTS = (NOT_READY_TAINT, UNREACHABLE_TAINT)

# Labels of nodes
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

# Labels and annotations of pods
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
POD_INDEX = "apps.kubernetes.io/pod-index"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
JOB_NAME = "batch.kubernetes.io/job-name"
POD_TEMPLATE_HASH = "pod-template-hash"
JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_GLOBAL_INDEX = "jobset.sigs.k8s.io/job-global-index"
IN_PLACE_RESTART_ATTEMPT = "jobset.sigs.k8s.io/in-place-restart-attempt"
COSCHEDULING_POD_GROUP = "scheduling.x-k8s.io/pod-group"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# Annotations of volumes and claims
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
NO_PROVISIONER = "kubernetes.io/no-provisioner"

# Conditions of pods and workloads
POD_SCHEDULED = "PodScheduled"
DISRUPTION_TARGET = "DisruptionTarget"
WORKLOAD_SCHEDULING_READY = "WorkloadSchedulingReady"  # of JobSets and LeaderWorkerSets
# Reasons of PodScheduled
UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"

# Fields of pods
REQUIRED_AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_AFFINITY = "preferredDuringSchedulingIgnoredDuringExecution"
DEFAULT_SCHEDULER = "default-scheduler"
SERVICE_TOKEN_PREFIX = "kube-api-access-"  # volumes that the API server adds to pods

# Finalizers
FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"
POD_GROUP_FINALIZER = "scheduling.k8s.io/podgroup-protection"

# Extensions of OpenAPI schemas
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED_RESOURCE = "x-kubernetes-embedded-resource"
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"

ROOT_CA = "kube-root-ca.crt"  # the ConfigMap with the certificate of the API server
API_SERVER_ADDRESS = "10.96.0.1"  # of the Service `kubernetes`: the first address of its range
COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
NODE_LEASE_NAMESPACE = "kube-node-lease"
GPU = "nvidia.com/gpu"
PROTOBUF = "application/vnd.kubernetes.protobuf"
