"""Dynamic resource allocation (resource.k8s.io): claims, classes, slices and taint rules, as placement reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.model.objects.meta import Condition, ObjectMeta, Struct
from phalanx.model.objects.pod import NodeSelector

Quantity = str | int | float

EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
CLAIM_FINALIZER = "resource.kubernetes.io/delete-protection"
ADMIN_NAMESPACE_LABEL = "resource.kubernetes.io/admin-access"
IMPLICIT_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"

MAX_RESULTS = 32  # devices in one allocation (resource/v1 AllocationResultsMaxSize)
MAX_CONSUMERS = 256  # entries of reservedFor (resource/v1 ResourceClaimReservedForMaxSize)


# ---- what a claim asks for


class CELSelector(Struct, frozen=True):
    expression: str = ""


class DeviceSelector(Struct, frozen=True):
    cel: CELSelector | None = None


class DeviceToleration(Struct, frozen=True):
    key: str = ""
    operator: str = ""  # "" = Equal
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Struct, frozen=True):
    requests: dict[str, Quantity] = {}


class ExactDeviceRequest(Struct, frozen=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""  # "" = ExactCount
    count: int = 0  # 0 = 1 of ExactCount
    admin_access: bool = False
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(Struct, frozen=True):
    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceRequest(Struct, frozen=True):
    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(Struct, frozen=True):
    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfiguration(Struct, frozen=True):
    driver: str = ""
    parameters: Any = None  # the driver's own


class ClaimConfiguration(Struct, frozen=True):
    requests: list[str] = []
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Struct, frozen=True):
    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[ClaimConfiguration] = []


class ResourceClaimSpec(Struct, frozen=True):
    devices: DeviceClaim = DeviceClaim()


# ---- what a claim was given


class AllocatedDevice(Struct, frozen=True):
    """One entry of status.allocation.devices.results."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] = {}


class AllocationConfiguration(Struct, frozen=True):
    source: str = ""
    requests: list[str] = []
    opaque: OpaqueConfiguration | None = None


class DeviceAllocation(Struct, frozen=True):
    results: list[AllocatedDevice] = []
    config: list[AllocationConfiguration] = []


class AllocationResult(Struct, frozen=True):
    devices: DeviceAllocation = DeviceAllocation()
    node_selector: NodeSelector | None = None  # None = every node
    allocation_timestamp: str | None = None


class ConsumerReference(Struct, frozen=True):
    """An entry of reservedFor: a pod, or a PodGroup (KEP-5729)."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDeviceStatus(Struct, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: list[Condition] = []


class ResourceClaimStatus(Struct, frozen=True):
    allocation: AllocationResult | None = None
    reserved_for: list[ConsumerReference] = []
    devices: list[AllocatedDeviceStatus] = []


class ResourceClaim(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# ---- classes


class DeviceClassSpec(Struct, frozen=True):
    selectors: list[DeviceSelector] = []
    config: list[ClaimConfiguration] = []
    extended_resource_name: str | None = None


class DeviceClass(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


# ---- what drivers publish


class DeviceAttribute(Struct, frozen=True):
    """Exactly one field is set."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRange(Struct, frozen=True):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Struct, frozen=True):
    default: Quantity | None = None
    valid_values: list[Quantity] = []
    valid_range: CapacityRange | None = None


class DeviceCapacity(Struct, frozen=True):
    value: Quantity = "0"
    request_policy: CapacityRequestPolicy | None = None


class Counter(Struct, frozen=True):
    value: Quantity = "0"


class CounterSet(Struct, frozen=True):
    name: str = ""
    counters: dict[str, Counter] = {}


class CounterConsumption(Struct, frozen=True):
    counter_set: str = ""
    counters: dict[str, Counter] = {}


class DeviceTaint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class SliceDevice(Struct, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[CounterConsumption] = []
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[DeviceTaint] = []
    binds_to_node: bool = False
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    allow_multiple_allocations: bool = False


class ResourcePool(Struct, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Struct, frozen=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[SliceDevice] = []
    shared_counters: list[CounterSet] = []


class ResourceSlice(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceTaintSelector(Struct, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Struct, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
