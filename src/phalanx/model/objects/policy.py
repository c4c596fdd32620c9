"""WorkloadPolicy (scheduling.phalanx.dev/v1alpha1) for readers. None: the field is not set."""

from __future__ import annotations

import msgspec

from phalanx.model.objects.groups import TypedLocalObjectReference
from phalanx.model.objects.meta import Condition, ObjectMeta, Struct


class PolicyCounts(Struct, frozen=True):
    min: int | None = None
    desired: int | None = None
    max: int | None = None


class PolicyRanks(Struct, frozen=True):
    from_: str = msgspec.field(default="", name="from")
    key: str = ""
    placement: str = ""
    topology_key: str = ""
    co_place_with: str = ""


class PolicyRescheduling(Struct, frozen=True):
    policy: str = ""
    grace_seconds: int | None = None
    max_restarts: int | None = None
    backoff_seconds: int | None = None


class PolicyTimeouts(Struct, frozen=True):
    members_seconds: int | None = None
    schedule_seconds: int | None = None
    ready_seconds: int | None = None


class PolicyPreemption(Struct, frozen=True):
    min_runtime_seconds: int | None = None


class PolicyDisruption(Struct, frozen=True):
    max_unavailable_replicas: int | None = None


class WorkloadPolicySpec(Struct, frozen=True):
    target_ref: TypedLocalObjectReference = TypedLocalObjectReference()
    counts: PolicyCounts | None = None
    ranks: PolicyRanks | None = None
    rescheduling: PolicyRescheduling | None = None
    timeouts: PolicyTimeouts | None = None
    preemption: PolicyPreemption | None = None
    disruption: PolicyDisruption | None = None
    expected_duration_seconds: int | None = None


class WorkloadPolicyStatus(Struct, frozen=True):
    conditions: list[Condition] | None = None
    observed_generation: int = 0
    matched_groups: int = 0


class WorkloadPolicy(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadPolicySpec = WorkloadPolicySpec()
    status: WorkloadPolicyStatus = WorkloadPolicyStatus()
