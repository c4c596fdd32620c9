"""Pod: everything a scheduler or a simulated kubelet reads."""

from __future__ import annotations

import msgspec

from phalanx.base.well_known import POD_SCHEDULED, PREFERRED_AFFINITY, REQUIRED_AFFINITY
from phalanx.model.objects.meta import LabelSelector, ObjectMeta, Struct

# Quantities stay text here ("500m"); model.quantity turns them into exact integers once, where they are used.
Resources = dict[str, str | int | float]


# Prefixes of the reasons with which a kubelet rejects a pod that was bound to its node.
KUBELET_REJECTIONS = ("OutOf", "NodeAffinity", "UnexpectedAdmissionError", "Topology", "PodLevel", "InvalidNodeInfo")


class ResourceRequirements(Struct, frozen=True):
    requests: Resources | None = None
    limits: Resources | None = None
    claims: list[dict[str, str]] | None = None


class ContainerPort(Struct, frozen=True):
    name: str = ""
    host_port: int = 0
    container_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class Container(Struct, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None  # "Always" on an init container makes it a sidecar


class Toleration(Struct, frozen=True):
    key: str = ""
    operator: str = ""  # "" = Equal
    value: str = ""
    effect: str = ""  # "" = every effect
    toleration_seconds: int | None = None


class NodeSelectorRequirement(Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeSelectorTerm(Struct, frozen=True):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(Struct, frozen=True):
    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Struct, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Struct, frozen=True):
    required: NodeSelector | None = msgspec.field(default=None, name=REQUIRED_AFFINITY)
    preferred: list[PreferredSchedulingTerm] | None = msgspec.field(default=None, name=PREFERRED_AFFINITY)


class PodAffinityTerm(Struct, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodAffinityTerm(Struct, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Struct, frozen=True):
    """Also PodAntiAffinity: same shape."""

    required: list[PodAffinityTerm] | None = msgspec.field(default=None, name=REQUIRED_AFFINITY)
    preferred: list[WeightedPodAffinityTerm] | None = msgspec.field(default=None, name=PREFERRED_AFFINITY)


class Affinity(Struct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Struct, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None  # None = Honor
    node_taints_policy: str | None = None  # None = Ignore
    match_label_keys: list[str] | None = None


class PersistentVolumeClaimVolumeSource(Struct, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class GCEPersistentDisk(Struct, frozen=True):
    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStore(Struct, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool = False


class ISCSI(Struct, frozen=True):
    target_portal: str = ""
    iqn: str = ""
    lun: int = 0
    read_only: bool = False


class RBD(Struct, frozen=True):
    monitors: list[str] = []
    image: str = ""
    pool: str = ""
    read_only: bool = False


class ImageVolume(Struct, frozen=True):
    reference: str = ""


class Volume(Struct, frozen=True):
    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    ephemeral: dict[str, object] | None = None  # generic ephemeral: claim is named <pod>-<volume>
    gce_persistent_disk: GCEPersistentDisk | None = None
    aws_elastic_block_store: AWSElasticBlockStore | None = None
    iscsi: ISCSI | None = None
    rbd: RBD | None = None
    csi: dict[str, object] | None = None  # inline CSI volume
    image: ImageVolume | None = None


class SchedulingGate(Struct, frozen=True):
    name: str = ""


class PodSchedulingGroup(Struct, frozen=True):
    """Kubernetes 1.36+: the pod's leaf PodGroup."""

    pod_group_name: str | None = None


class WorkloadReference(Struct, frozen=True):
    """KEP-4671 v1alpha1: the pod's group inside a Workload."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodResourceClaim(Struct, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None  # None = PreemptLowerPriority
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    overhead: Resources | None = None
    resources: ResourceRequirements | None = None  # pod-level
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    volumes: list[Volume] | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: PodSchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    resource_claims: list[PodResourceClaim] | None = None
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    host_network: bool = False


class PodCondition(Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


class ContainerWaiting(Struct, frozen=True):
    reason: str = ""


class ContainerTerminated(Struct, frozen=True):
    finished_at: str | None = None


class ContainerState(Struct, frozen=True):
    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Struct, frozen=True):
    """What a container was given, where its node says so."""

    name: str = ""
    state: ContainerState = ContainerState()
    allocated_resources: Resources | None = None
    resources: ResourceRequirements | None = None  # in force


class PodResourceClaimStatus(Struct, frozen=True):
    """The claim that was made for an entry of spec.resourceClaims; no name: none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Struct, frozen=True):
    phase: str = ""
    conditions: list[PodCondition] | None = None
    nominated_node_name: str = ""
    start_time: str | None = None
    reason: str = ""
    message: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    allocated_resources: Resources | None = None  # pod-level
    resources: ResourceRequirements | None = None  # pod-level, in force
    resource_claim_statuses: list[PodResourceClaimStatus] | None = None


class Pod(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


def not_ready_since(pod: Pod) -> str | None:
    """Return since when a pod is not ready; "" if its object does not say, None if it is ready."""
    found = next((c for c in pod.status.conditions or () if c.type == "Ready"), None)
    if found is not None and found.status == "True":
        return None
    return (found.last_transition_time or "") if found is not None else ""


def bound_since(pod: Pod) -> str | None:
    """Return when the pod was bound, as the API server wrote it."""
    found = (c for c in pod.status.conditions or () if c.type == POD_SCHEDULED and c.status == "True")
    return next((c.last_transition_time for c in found), None)
