"""The fields of pods and nodes that the simulated kubelet reads; fewer than in the model, because there are so many.

Decoded JSON has no cycles, so these types are not tracked by the cyclic garbage collector (gc=False).
"""

from __future__ import annotations

import sys

import msgspec

from phalanx.model import annotation_values
from phalanx.model.memo import Memo
from phalanx.model.objects.meta import Struct
from phalanx.model.objects.pod import Container, ResourceRequirements, Resources

RUN_SECONDS = "simulation.phalanx.dev/run-seconds"
STOP_SECONDS = "simulation.phalanx.dev/stop-seconds"
EXIT_CODE = "simulation.phalanx.dev/exit-code"
READY_SECONDS = "simulation.phalanx.dev/ready-seconds"
MISSING_IMAGE = "simulation.phalanx.dev/missing-image"
EVENTS = "simulation.phalanx.dev/events"
FAIL = "simulation.phalanx.dev/fail"
NODE_NOT_READY = "NodeNotReady"  # reason
FINISHED = ("Succeeded", "Failed")


class MetaView(Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generation: int = 0
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class SleepAction(Struct, frozen=True, gc=False):
    seconds: int = 0


class LifecycleHook(Struct, frozen=True, gc=False):
    sleep: SleepAction | None = None  # the only hook that takes time in a simulation


class Lifecycle(Struct, frozen=True, gc=False):
    pre_stop: LifecycleHook | None = None


class ExitCodes(Struct, frozen=True, gc=False):
    operator: str = "In"
    values: list[int] = msgspec.field(default_factory=list)

    def include(self, code: int) -> bool:
        return (code in self.values) == (self.operator == "In")


class RestartRule(Struct, frozen=True, gc=False):
    action: str = ""
    exit_codes: ExitCodes = ExitCodes()


class KubeletContainer(Container, frozen=True, gc=False):
    lifecycle: Lifecycle | None = None
    restart_policy_rules: list[RestartRule] | None = None


class ReadinessGate(Struct, frozen=True, gc=False):
    condition_type: str = ""


class Sysctl(Struct, frozen=True, gc=False):
    name: str = ""


class SecurityContext(Struct, frozen=True, gc=False):
    sysctls: list[Sysctl] | None = None


class Os(Struct, frozen=True, gc=False):
    name: str = ""


class Spec(Struct, frozen=True, gc=False):
    node_name: str = ""
    containers: list[KubeletContainer] = msgspec.field(default_factory=list)
    init_containers: list[KubeletContainer] | None = None
    ephemeral_containers: list[KubeletContainer] | None = None
    overhead: Resources | None = None
    resources: ResourceRequirements | None = None
    restart_policy: str = "Always"
    active_deadline_seconds: int | None = None
    host_network: bool = False
    os: Os | None = None
    security_context: SecurityContext | None = None
    readiness_gates: list[ReadinessGate] | None = None


class ContainerStatusView(Struct, frozen=True, gc=False):
    restart_count: int = 0


class ConditionView(Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""


class MappingView(Struct, frozen=True, gc=False):
    container_name: str = ""
    resource_name: str = ""


class ExtendedClaimView(Struct, frozen=True, gc=False):
    request_mappings: list[MappingView] = msgspec.field(default_factory=list)


class PodStatusView(Struct, frozen=True, gc=False):
    phase: str = ""
    observed_generation: int = 0
    start_time: str | None = None
    container_statuses: list[ContainerStatusView] | None = None
    conditions: list[ConditionView] | None = None
    extended_resource_claim_status: ExtendedClaimView | None = None  # extended resources that are devices of a claim


class KubeletPod(Struct, frozen=True, gc=False):
    metadata: MetaView = MetaView()
    spec: Spec = Spec()
    status: PodStatusView = PodStatusView()

    @property
    def finished(self) -> bool:
        return self.status.phase in FINISHED

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def marked_unready(self) -> bool:
        """Return True if the node controller marked the pod not ready because its node did not respond."""
        conditions = self.status.conditions or ()
        return any(c.type == "Ready" and c.reason == NODE_NOT_READY and c.status == "False" for c in conditions)

    @property
    def closed_gates(self) -> list[str]:
        """Return the readiness gates whose condition is not true."""
        if not self.spec.readiness_gates:
            return []
        open_ = {c.type for c in self.status.conditions or () if c.status == "True"}
        return [gate.condition_type for gate in self.spec.readiness_gates if gate.condition_type not in open_]

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())

    @property
    def containers_ready(self) -> bool:
        return not any(c.type == "ContainersReady" and c.status == "False" for c in self.status.conditions or ())

    @property
    def missing(self) -> list[str]:
        """Return the images of its containers that cannot be pulled."""
        announced = self.metadata.annotations.get(MISSING_IMAGE)
        if not announced:
            return []
        known = {image.strip() for image in announced.split(",")}
        return [c.image for c in (*(self.spec.init_containers or ()), *self.spec.containers) if c.image in known]

    @property
    def restarts(self) -> int:
        return max((status.restart_count for status in self.status.container_statuses or ()), default=0)


class _SummaryMeta(Struct, frozen=True, gc=False):
    uid: str = ""


class _SummarySpec(Struct, frozen=True, gc=False):
    node_name: str = ""


class _SummaryStatus(Struct, frozen=True, gc=False):
    phase: str = ""


class PodSummary(Struct, frozen=True, gc=False):
    """The fields that decide whether a pod has to be decoded in full."""

    metadata: _SummaryMeta = _SummaryMeta()
    spec: _SummarySpec = _SummarySpec()
    status: _SummaryStatus = _SummaryStatus()


decode_summary = msgspec.json.Decoder(PodSummary).decode
read_pod = msgspec.json.Decoder(KubeletPod).decode


class NodeAddress(Struct, frozen=True, gc=False):
    type: str = ""
    address: str = ""


class NodeInfo(Struct, frozen=True, gc=False):
    operating_system: str = ""


class NodeStatusView(Struct, frozen=True, gc=False):
    node_info: NodeInfo = NodeInfo()
    allocatable: Resources = msgspec.field(default_factory=dict)
    capacity: Resources = msgspec.field(default_factory=dict)
    addresses: list[NodeAddress] | None = None
    conditions: list[ConditionView] | None = None


class KubeletNode(Struct, frozen=True, gc=False):
    metadata: MetaView = MetaView()
    status: NodeStatusView = NodeStatusView()

    @property
    def must_fail(self) -> bool:
        return self.metadata.annotations.get(FAIL, "").lower() in ("true", "1", "yes")

    @property
    def ready(self) -> str:
        return next((c.status for c in self.status.conditions or () if c.type == "Ready"), "")

    @property
    def os(self) -> str:
        return self.status.node_info.operating_system or "linux"

    @property
    def ip(self) -> str:
        return next((a.address for a in self.status.addresses or () if a.type == "InternalIP"), "")


_the_same: Memo[Resources] = Memo(lambda resources: resources)


def without_unused(node: KubeletNode) -> KubeletNode:
    """Return a copy of a node with the fields that the kubelet needs; equal values are shared between nodes."""
    status, metadata = node.status, node.metadata
    return KubeletNode(
        msgspec.structs.replace(metadata, name=sys.intern(metadata.name), uid=sys.intern(metadata.uid)),
        NodeStatusView(
            status.node_info if status.node_info.operating_system else NodeInfo(),
            _the_same(status.allocatable),
            _the_same(status.capacity),
            [address for address in status.addresses or () if address.type == "InternalIP"][:1],
            [condition for condition in status.conditions or () if condition.type == "Ready"][:1],
        ),
    )


def new_offers(before: NodeStatusView, after: NodeStatusView) -> dict[str, str | None]:
    """Return the changes of allocatable that follow resources added to or removed from capacity."""
    found: dict[str, str | None] = {
        name: str(amount)
        for name, amount in after.capacity.items()
        if name not in before.capacity and name not in after.allocatable
    }
    return found | {name: None for name in before.capacity if name not in after.capacity and name in after.allocatable}


MOST_SECONDS = 315_359_999  # 10 years


def number(annotations: dict[str, str], key: str) -> float | None:
    """Parse a number of seconds in an annotation; None if it is missing, invalid or above 10 years."""
    try:
        return annotation_values.number(annotations[key], 0, MOST_SECONDS)
    except (KeyError, annotation_values.BadValue):
        return None
