"""Define the decisions: every write the engine can request. They are plain values; the executor performs them and
answers each with `events.Outcome`.

Ids count up from 1 in the order decisions are made, so the same events give the same ids. A decision names its object
by uid: an object deleted and created again under the same name must not receive it.
"""

from __future__ import annotations

import msgspec

from phalanx.base.well_known import POD_SCHEDULED
from phalanx.model.objects.devices import AllocationResult, ConsumerReference, ResourceClaimSpec


class _Decision(msgspec.Struct, frozen=True, tag_field="decision", omit_defaults=True, gc=False):
    id: int
    namespace: str
    name: str
    uid: str


class Bind(_Decision, frozen=True, tag="Bind"):
    """POST pods/NAME/binding. The same write adds `annotations` to the pod."""

    node: str = ""
    annotations: dict[str, str] = {}


class Nominate(_Decision, frozen=True, tag="Nominate"):
    """Set status.nominatedNodeName of a pod; an empty node clears it."""

    node: str = ""


class Evict(_Decision, frozen=True, tag="Evict"):
    """Add the DisruptionTarget condition to a pod, record an event on it, then delete it (with its own grace)."""

    reason: str = "PreemptionByScheduler"
    message: str = ""  # of the DisruptionTarget condition
    event_reason: str = "Preempted"
    event_message: str = ""
    preemptor: str = ""  # key of the scheduling unit that preempts it: "pod/ns/name", "podgroup/ns/name"


class SetPodCondition(_Decision, frozen=True, tag="SetPodCondition"):
    type: str = POD_SCHEDULED
    status: str = "False"
    reason: str = ""
    message: str = ""
    observed_generation: int = 0


class SetGroupCondition(_Decision, frozen=True, tag="SetGroupCondition"):
    kind: str = "PodGroup"  # or CompositePodGroup, Workload
    type: str = ""
    status: str = "False"
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    counts: dict[str, int | str] | None = None  # additional numbers and times for the status, by field name


class RecordEvent(_Decision, frozen=True, tag="RecordEvent"):
    kind: str = "Pod"
    type: str = "Normal"  # or Warning
    reason: str = ""
    action: str = ""
    message: str = ""


class BindVolume(_Decision, frozen=True, tag="BindVolume"):
    """Set claimRef of PersistentVolume `name` to a claim (WaitForFirstConsumer, volume exists)."""

    claim_namespace: str = ""
    claim_name: str = ""
    claim_uid: str = ""


class ProvisionVolume(_Decision, frozen=True, tag="ProvisionVolume"):
    """Annotate PersistentVolumeClaim `namespace/name` with the selected node (WaitForFirstConsumer, dynamic)."""

    node: str = ""


class ReserveClaim(_Decision, frozen=True, tag="ReserveClaim"):
    """Add a consumer to ResourceClaim `namespace/name`. If the claim has no allocation, write `allocation` too."""

    allocation: AllocationResult | None = None
    consumer: ConsumerReference = ConsumerReference()
    finalizers: list[str] = []  # finalizers that the claim already has


class ReleaseClaim(_Decision, frozen=True, tag="ReleaseClaim"):
    """Remove the pod or PodGroup with uid `pod` from the consumers of a ResourceClaim. `deallocate`: also remove the
    allocation, because no consumer is left. `extended`: the scheduler created the claim for extended resources; delete
    it."""

    pod: str = ""
    deallocate: bool = False
    extended: bool = False


class CreateExtendedClaim(_Decision, frozen=True, tag="CreateExtendedClaim"):
    """Create, allocate and reserve the ResourceClaim for the extended resources of pod `namespace/name`, and record the
    claim in the pod's status. `mappings`: (container, resource, request)."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    allocation: AllocationResult = AllocationResult()
    mappings: list[tuple[str, str, str]] = []


class PlaceAnswered(_Decision, frozen=True, tag="PlaceAnswered"):
    """Answer `events.PlaceRequested` for workload `namespace/name`, also when a place is lost later."""

    placed: bool = False
    message: str = ""  # why there is no place
    nodes: list[str] = []


Decision = (
    Bind
    | Nominate
    | Evict
    | SetPodCondition
    | SetGroupCondition
    | RecordEvent
    | BindVolume
    | ProvisionVolume
    | ReserveClaim
    | ReleaseClaim
    | CreateExtendedClaim
    | PlaceAnswered
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)

# Kubernetes truncates event notes at this many characters; conditions may be longer.
MAX_EVENT_MESSAGE = 1024


def encode(decision: Decision) -> bytes:
    return _encoder.encode(decision)


def decode(line: bytes | str) -> Decision:
    return _decoder.decode(line)
