"""DynamicResources: allocate devices to the ResourceClaims of pods (resource.k8s.io).

Filter checks that a node has devices for the claims of a pod together with all claims that are pending on the node.
Reserve chooses the devices and assumes the allocation (the journal can undo it). PreBind emits the writes once, then
waits for their results and for the binding conditions of the devices. If the pod is not bound, its allocations and
reservations are released.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from phalanx.base.clock import parse_rfc3339
from phalanx.engine import decisions as d
from phalanx.engine.devices.allocator import AllocationError
from phalanx.engine.devices.holdings import held_by
from phalanx.engine.devices.results import allocation_of
from phalanx.engine.devices.selectors import SelectorFailure
from phalanx.engine.devices.state import DeviceState, extended_key, extended_owner
from phalanx.engine.devices.uses import ClaimUses
from phalanx.engine.events import Outcome
from phalanx.engine.framework import Code, Emit, Handle, PostFilterResult, Status, Traits, Wake
from phalanx.engine.framework.config_args import DynamicResourcesArgs
from phalanx.engine.framework.diagnosis import Diagnosis
from phalanx.engine.framework.interface import ClusterChange
from phalanx.engine.placement.plain import CANNOT_ALLOCATE
from phalanx.engine.plugins.device_filter import AlternativeScore, DeviceFilter
from phalanx.engine.plugins.device_packing import PackingScore
from phalanx.engine.state.claims import EXTENDED, MISSING, NAMED, OWN, ClaimKey, ClaimUse, claim_names
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import Pod, PodGroup, ResourceClaim
from phalanx.model.objects.devices import (
    EXTENDED_CLAIM_ANNOTATION,
    MAX_CONSUMERS,
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
)

IN_USE = "resourceclaim in use"
DEALLOCATED = "deallocation of ResourceClaim completed"


def _has_claims(shape: Shape) -> bool:
    return bool(shape.claims)


class DeviceReservation(msgspec.Struct):
    """Allocations that Reserve assumed for a pod, and the results of their writes."""

    claims: dict[ClaimKey, AllocationResult | None]  # allocation to write; None: already written
    consumers: dict[ClaimKey, ConsumerReference]
    extended: ClaimUse | None = None
    asked: bool = False  # the writes were emitted
    writes: set[int] = msgspec.field(default_factory=set)  # decision ids of writes without a result
    problem: str = ""  # why a write failed


class DynamicResources:
    name = "DynamicResources"
    traits = Traits(
        wakes_on=Wake.DEVICES | Wake.NODE,
        gate_wakes=Wake.DEVICES,
        outcomes=(d.ReserveClaim, d.ReleaseClaim, d.CreateExtendedClaim),
        default_weight=2,
        touches=_has_claims,
        handles=_has_claims,
        relieved=True,
    )

    def __init__(self, args: Mapping[str, Any], handle: Handle, state: DeviceState, uses: ClaimUses) -> None:
        self.args = DynamicResourcesArgs.read(args)
        self.state = state
        self.uses = uses
        self._emit = handle.emit
        self._reservations: dict[str, DeviceReservation] = {}  # by pod uid
        self._writes: dict[int, str] = {}  # decision -> pod uid
        self._releases: dict[int, ClaimKey] = {}  # decision -> claim

    # ---- PreEnqueue and PreFilter

    def pre_enqueue(self, record: PodRecord) -> Status | None:
        if record.pod is None or not record.pod.spec.resource_claims:
            return None
        for use in self.uses.of(record.pod):
            if use.kind == MISSING:
                return Status(Code.UNRESOLVABLE, (use.problem,), self.name)
        return None

    def pre_filter(self, shape: Shape) -> Status | None:
        if not shape.claims:
            return None
        self.state.sync()
        for use in shape.claims:
            if use.kind == MISSING:
                return Status(Code.UNRESOLVABLE, (use.problem,), self.name)
            if use.kind == NAMED and (text := self._unusable(use, shape.pod)):
                return Status(Code.UNRESOLVABLE, (text,), self.name)
            spec = None
            if use.kind == OWN or use.kind == EXTENDED:
                spec = self.state.specs.of_spec(use.spec, use.key, shape.namespace)
            elif use.claim not in self.state.holdings.claims and (claim := self.state.claim(use.claim)) is not None:
                spec = self.state.specs.of(claim)
            if spec is not None and spec.problem:
                return Status(Code.UNRESOLVABLE, (spec.problem,), self.name)
            if spec is not None and spec.error:
                return Status(Code.ERROR, (spec.error,), self.name)
        return None

    def _unusable(self, use: ClaimUse, pod: Pod) -> str:
        claim = self.state.claim(use.claim)
        if claim is None:
            return f'resourceclaim "{use.claim[1]}" not found'
        if claim.metadata.deletion_timestamp is not None:
            return f'resourceclaim "{use.claim[1]}" is being deleted'
        if use.claim in self.state.releasing:
            return f"resource claim {'/'.join(use.claim)} is in the process of being deallocated"
        reserved = claim.status.reserved_for
        if not reserved and (device := self.state.holdings.contested(use.claim)):
            return f'device {device} of resourceclaim "{use.claim[1]}" is allocated to another claim as well'
        if len(reserved) < MAX_CONSUMERS:
            return ""
        mine = any(
            each.name == use.group and each.resource == "podgroups" if use.group else each.uid == pod.metadata.uid
            for each in reserved
        )
        return "" if mine else IN_USE

    # ---- Filter and Score

    def track(self, shape: Shape, columns: Columns) -> DeviceFilter | None:
        return DeviceFilter(self.state, shape, columns) if shape.claims else None

    def track_score(self, shape: Shape, columns: Columns) -> AlternativeScore | PackingScore | None:
        if not shape.claims:
            return None
        return AlternativeScore.of(self.state, shape, columns) or PackingScore.of(self.state, shape, columns)

    def queueing_hint(self, shape: Shape, change: ClusterChange) -> bool:
        """Return True if the change of a claim can help: it released devices, or the shape names it."""
        new, old = change.new, change.old
        thing = new if new is not None else old
        if not isinstance(thing, ResourceClaim):
            return True
        key = (thing.metadata.namespace, thing.metadata.name)
        if any(use.claim == key for use in shape.claims):
            return True
        if old is None or old.status.allocation is None:
            return False
        gone = new is None or new.status.allocation is None
        return gone or len(new.status.reserved_for) < len(old.status.reserved_for)

    # ---- Reserve

    def reserve(self, record: PodRecord, row: int) -> Status | None:
        if not record.claims and not record.shape.claims:
            return None
        state = self.state
        state.sync()
        pod = record.pod
        if pod is None:
            return Status(Code.ERROR, ("the pod is not known any more",), self.name)
        reservation = DeviceReservation({}, {})
        try:
            chosen = state.settle_pod(record)
        except (AllocationError, SelectorFailure) as problem:
            return Status(Code.ERROR, (str(problem),), self.name)
        if chosen is None:
            return Status(Code.UNSCHEDULABLE, (CANNOT_ALLOCATE,), self.name)
        node = state.columns.names[row]
        text = self._consumers(reservation, record, pod)
        if text:
            return Status(Code.UNSCHEDULABLE, (text,), self.name)
        for key, (spec, picks) in chosen.items():
            claim = state.claim(key)
            owner = claim.metadata.uid if claim is not None else record.uid
            state.assume(key, held_by(allocation_of(spec, picks, node, owner)))
        for key in record.claims:
            claim, held = state.claim(key), state.assumed.get(key)
            if claim is None or (held is None and claim.status.allocation is None):
                return Status(Code.UNSCHEDULABLE, (f'resourceclaim "{key[1]}" has no devices',), self.name)
            reservation.claims[key] = held.allocation if held is not None else None
            state.join(key, record.uid)
        extended = extended_key(record)
        made = state.claim(state.made_for(record.uid))
        # An earlier process may have made the claim; then only the status of the pod is written again.
        allocation = made.status.allocation if made is not None else None
        if extended in chosen:
            allocation = state.assumed[extended].allocation
        if allocation is not None:
            reservation.claims[extended] = allocation
            reservation.extended = next(use for use in record.shape.claims if use.kind == EXTENDED)
            state.join(extended, record.uid)
        if reservation.claims:
            self._reservations[record.uid] = reservation
            state.columns.journal.push(self._reservations.pop, record.uid, None)
        return None

    def _consumers(self, reservation: DeviceReservation, record: PodRecord, pod: Pod) -> str:
        """Set the consumer of each claim (reservedFor); return an error text if a claim has too many consumers."""
        for entry, name in claim_names(pod):
            key = (record.namespace, name or "")
            group = self.uses.group_of(pod, entry)
            found = self.state.objects.get(PodGroup, record.namespace, group) if group else None
            if found is not None:
                consumer = ConsumerReference("scheduling.k8s.io", "podgroups", group, found.metadata.uid)
            else:
                consumer = ConsumerReference("", "pods", record.name, record.uid)
            reservation.consumers[key] = consumer
            claim = self.state.claim(key)
            if claim is None:
                return f'resourceclaim "{name}" not found'
            reserved = claim.status.reserved_for
            if len(reserved) >= MAX_CONSUMERS and all(each.uid != consumer.uid for each in reserved):
                return IN_USE
        return ""

    def unreserve(self, record: PodRecord, row: int) -> None:
        reservation = self._reservations.pop(record.uid, None)
        if reservation is None:
            return
        state = self.state
        state.columns.journal.push(self._reservations.__setitem__, record.uid, reservation)
        for key in reservation.claims:
            last = state.leave(key, record.uid)
            if reservation.asked:
                self._release(key, reservation, record, last)
            elif last:
                state.assume(key, None)

    def _release(self, key: ClaimKey, reservation: DeviceReservation, record: PodRecord, last: bool) -> None:
        """Release what was written or is being written. Assumed allocations stay until the release is done."""
        if self._emit is None:
            return
        consumer = reservation.consumers.get(key)
        claim = self.state.claim(key)
        if reservation.extended is not None and key == extended_key(record):
            claim = self._extended_claim(record.uid)
            fields = {"namespace": record.namespace, "name": claim.metadata.name if claim else "", "uid": ""}
            made = self._emit(d.ReleaseClaim, **fields, pod=record.uid, extended=True, deallocate=True)
        elif claim is not None and consumer is not None and self._may_release(key, consumer, last):
            made = self._emit(
                d.ReleaseClaim,
                namespace=key[0],
                name=key[1],
                uid=claim.metadata.uid,
                pod=consumer.uid,
                deallocate=last and (reservation.claims[key] is not None or _unprepared(claim)),
            )
        else:
            return
        self._releases[made] = key
        self.state.releasing[key] = self.state.releasing.get(key, 0) + 1

    def _may_release(self, key: ClaimKey, consumer: ConsumerReference, last: bool) -> bool:
        """Return True if the claim may be released: a group keeps it while one of its pods is bound or may be bound."""
        return consumer.resource == "pods" or (last and not self.state.used(key))

    def _extended_claim(self, uid: str) -> ResourceClaim | None:
        return next(
            (
                claim
                for claim in self.state.objects.all(ResourceClaim)
                if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true"
                and any(ref.uid == uid for ref in claim.metadata.owner_references)
            ),
            None,
        )

    # ---- PreBind

    def pre_bind(self, record: PodRecord, row: int, emit: Emit) -> Status | None:
        reservation = self._reservations.get(record.uid)
        if reservation is None:
            return None
        if not reservation.asked:
            reservation.asked = True
            self._request_writes(reservation, record, row, emit)
        if reservation.problem:
            return Status(Code.UNSCHEDULABLE, (reservation.problem,), self.name)
        if reservation.writes:
            return Status(Code.WAIT, ("waiting for writes of resource claims",), self.name, self.args.binding_timeout)
        waiting = self._conditions(reservation, record)
        if waiting is not None:
            return waiting
        del self._reservations[record.uid]
        for key in reservation.claims:
            self.state.leave(key, record.uid)
        return None

    def _request_writes(self, reservation: DeviceReservation, record: PodRecord, row: int, emit: Emit) -> None:
        """Emit the writes that reserve or create the claims of a reservation."""
        for key, allocation in reservation.claims.items():
            if reservation.extended is not None and key == extended_key(record):
                assert allocation is not None and record.pod is not None
                spec, _ = self.state.extended_requests(reservation.extended, row)
                wanted = {request.name for request in spec.devices.requests}
                _, mappings, _ = self.uses.extended_requests(record.pod)
                made = emit(
                    d.CreateExtendedClaim,
                    namespace=record.namespace,
                    name=record.name,
                    uid=record.uid,
                    spec=spec,
                    allocation=allocation,
                    mappings=[
                        (each.container, each.resource, each.request) for each in mappings if each.request in wanted
                    ],
                )
            else:
                claim, consumer = self.state.claim(key), reservation.consumers[key]
                if claim is None:
                    reservation.problem = f'resourceclaim "{key[1]}" not found'
                    return
                if allocation is None and any(each.uid == consumer.uid for each in claim.status.reserved_for):
                    continue  # nothing to write
                made = emit(
                    d.ReserveClaim,
                    namespace=key[0],
                    name=key[1],
                    uid=claim.metadata.uid,
                    allocation=allocation,
                    consumer=consumer,
                    finalizers=claim.metadata.finalizers,
                )
            reservation.writes.add(made)
            self._writes[made] = record.uid

    def _conditions(self, reservation: DeviceReservation, record: PodRecord) -> Status | None:
        """Check the binding conditions of devices that must be prepared before the pod is bound (KEP-5007)."""
        for key, allocation in reservation.claims.items():
            claim = self._extended_claim(record.uid) if key == extended_key(record) else self.state.claim(key)
            written = claim.status.allocation if claim is not None else None
            results = (written or allocation or AllocationResult()).devices.results
            for result in results:
                if not result.binding_conditions:
                    continue
                true = _true_conditions(claim, result)
                failed = [name for name in result.binding_failure_conditions if name in true]
                if failed:
                    text = f"device binding failed: claim={key[1]}, device {result.device}: {', '.join(failed)}"
                    return Status(Code.UNSCHEDULABLE, (text,), self.name)
                if missing := [name for name in result.binding_conditions if name not in true]:
                    text = f"waiting for device {result.device} of claim {key[1]} (condition {', '.join(missing)})"
                    return self._wait_for_driver(text, written)
        return None

    def _wait_for_driver(self, text: str, allocation: AllocationResult | None) -> Status:
        """Wait until the time limit after the allocation, which an earlier process may have written."""
        limit = self.args.binding_timeout
        written = allocation.allocation_timestamp if allocation is not None else None
        until = parse_rfc3339(written) + limit if written else math.inf
        return Status(Code.WAIT, (text,), self.name, limit, until)

    def outcome(self, decision: d.Decision, event: Outcome) -> None:
        if isinstance(decision, d.ReleaseClaim):
            key = self._releases.pop(decision.id, None)
            if key is not None:
                self.state.released(key)
            return
        if not isinstance(decision, d.ReserveClaim | d.CreateExtendedClaim):
            return
        reservation = self._reservations.get(self._writes.pop(decision.id, ""))
        if reservation is not None and decision.id in reservation.writes:
            reservation.writes.discard(decision.id)
            if event.problem:
                reservation.problem = f"resource claim {decision.name}: {event.message or event.problem}"

    # ---- PostFilter

    def post_filter(self, record: PodRecord, diagnosis: Diagnosis) -> PostFilterResult:
        """Deallocate a claim that is not reserved if its allocation makes its only consumer unschedulable."""
        none = PostFilterResult(Status(Code.UNSCHEDULABLE), hopeless=True)
        if not record.claims and not record.shape.claims:
            return none
        for key in self.releasable([record]):
            status = Status(Code.SUCCESS, (DEALLOCATED,), self.name)
            return PostFilterResult(status, decisions=self.deallocations([key]))
        return none

    def releasable(self, records: Sequence[PodRecord]) -> list[ClaimKey]:
        """Return the allocated claims of pending pods that no other pod uses and that some node cannot use."""
        state, found = self.state, []
        own = {record.uid for record in records}
        pods = [record.pod for record in records if record.pod is not None]
        groups = {group.pod_group_name for pod in pods if (group := pod.spec.scheduling_group) is not None}
        keys = [key for record in records for key in (*record.claims, state.made_for(record.uid))]
        for key in dict.fromkeys(keys):
            claim, held = state.claim(key), state.holdings.claims.get(key)
            if claim is None or held is None or claim.status.allocation is None or key in state.releasing:
                continue
            if state.joined(key) or state.used(key):
                continue
            # A claim of a group is reserved for the group, even while no member is placed (KEP-5729).
            consumers = [(each.name in groups if each.resource == "podgroups" else each.uid in own)
                         for each in claim.status.reserved_for]  # fmt: skip
            if not all(consumers):
                continue
            elsewhere = any(node is not None and not held.usable_on(node) for node in state.columns.nodes)
            if elsewhere or (not consumers and state.holdings.contested(key)):
                found.append(key)
        return found

    def can_share_devices(self, shape: Shape) -> bool:
        """Return True if pods of a shape may get devices that several nodes can use."""
        return self.state.can_share_devices(shape)

    def leaving(self) -> list[ClaimKey]:
        """Return the allocated claims of deleted pods, which their controller is about to deallocate."""
        return self.state.leaving()

    def disregard(self, keys: Iterable[ClaimKey]) -> None:
        """Treat claims as not allocated until the trial is rewound."""
        for key in keys:
            self.state.disregard(key)
        self.state.sync()

    def deallocations(self, keys: Iterable[ClaimKey]) -> tuple[d.Decision, ...]:
        found: list[d.Decision] = []
        for key in keys:
            claim = self.state.claim(key)
            if claim is not None and (owner := extended_owner(claim)):
                found.append(d.ReleaseClaim(0, key[0], key[1], "", pod=owner, extended=True, deallocate=True))
            elif claim is not None:
                consumers = [each.uid for each in claim.status.reserved_for] or [""]
                found += [
                    d.ReleaseClaim(0, key[0], key[1], claim.metadata.uid, pod=uid, deallocate=True) for uid in consumers
                ]
        return tuple(found)


def _unprepared(claim: ResourceClaim) -> bool:
    """Return True if a device of an allocated claim lacks a binding condition, or has failed."""
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        if result.binding_conditions:
            true = _true_conditions(claim, result)
            if not true.issuperset(result.binding_conditions) or true.intersection(result.binding_failure_conditions):
                return True
    return False


def _true_conditions(claim: ResourceClaim | None, result: AllocatedDevice) -> set[str]:
    if claim is None:
        return set()
    return {
        condition.type
        for each in claim.status.devices
        if (each.driver, each.pool, each.device) == (result.driver, result.pool, result.device)
        and each.share_id in (None, result.share_id)
        for condition in each.conditions
        if condition.status == "True"
    }
