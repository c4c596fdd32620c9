"""VolumeBinding: bound volumes must be reachable; claims that wait for their first consumer get a volume or a node.

Reserve assumes the result of binding (the journal can undo it). PreBind emits the writes once and waits until the
claims are bound. The PersistentVolume controller and the provisioners do the binding itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from phalanx.base.well_known import SELECTED_NODE
from phalanx.engine import decisions as d
from phalanx.engine.events import Outcome
from phalanx.engine.framework import Code, Emit, Floats, Handle, Status, Traits, Wake
from phalanx.engine.framework.config_args import VolumeBindingArgs
from phalanx.engine.plugins.volume_matching import (
    NO_VOLUME,
    NOT_REACHABLE,
    VOLUME_GONE,
    Matching,
    match_claims,
    waits_for_consumer,
)
from phalanx.engine.plugins.volume_state import (
    ClaimKey,
    VolumeFilter,
    VolumePlugin,
    VolumeState,
    VolumeVerdict,
    claims_of,
    fully_bound,
    has_volumes,
    made_for,
    not_found,
    not_made_for,
)
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import PersistentVolumeClaim


class VolumeReservation(msgspec.Struct):
    """Bindings that Reserve assumed for a pod."""

    volumes: list[tuple[str, ClaimKey]] = msgspec.field(default_factory=list)  # volume -> claim
    provisioned: list[ClaimKey] = msgspec.field(default_factory=list)
    asked: bool = False  # the writes were emitted
    writes: set[int] = msgspec.field(default_factory=set)  # decision ids of writes without a result
    problem: str = ""  # why a write failed
    selected: set[ClaimKey] = msgspec.field(default_factory=set)  # claims seen with the chosen node in their annotation


class VolumeBinding(VolumePlugin):
    name = "VolumeBinding"
    traits = Traits(
        wakes_on=Wake.STORAGE | Wake.NODE,
        outcomes=(d.BindVolume, d.ProvisionVolume),
        handles=has_volumes,
        relieved=True,
    )

    def __init__(self, args: Mapping[str, Any], handle: Handle, state: VolumeState) -> None:
        super().__init__(args, handle, state)
        self.args = VolumeBindingArgs.read(args)
        self._reservations: dict[str, VolumeReservation] = {}  # by pod uid

    # ---- PreFilter

    def pre_filter(self, shape: Shape) -> Status | None:
        problem = self._problem(shape)
        return Status(Code.UNRESOLVABLE, (problem,), self.name) if problem else None

    def _problem(self, shape: Shape) -> str:
        claims = []
        for use in claims_of(shape):
            claim = self.state.claim(use.key)
            name = use.key[1]
            if claim is None:
                if use.ephemeral:
                    return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
                return not_found(name)
            if claim.status.phase == "Lost":
                volume = claim.spec.volume_name
                return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
            if claim.metadata.deletion_timestamp is not None:
                return f'persistentvolumeclaim "{name}" is being deleted'
            if use.ephemeral and not made_for(claim, shape.pod.metadata.name):
                return not_made_for(use.key, shape.pod.metadata.name)
            claims.append(claim)
        if any(not fully_bound(c) and not waits_for_consumer(c, self.state) for c in claims):
            return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    # ---- Filter and Score

    def track(self, shape: Shape, columns: Columns) -> VolumeFilter | None:
        return BindingFilter(self.state, shape, columns) if claims_of(shape) else None

    def track_score(self, shape: Shape, columns: Columns) -> BindingScore | None:
        return BindingScore(self, shape, columns) if claims_of(shape) else None

    # ---- Reserve and PreBind

    def reserve(self, record: PodRecord, row: int) -> Status | None:
        if not record.shape.volumes:
            return None
        claims = [self.state.claim(use.key) for use in claims_of(record.shape)]
        for use, claim in zip(claims_of(record.shape), claims, strict=True):
            if claim is None:
                return Status(Code.UNSCHEDULABLE, (not_found(use.key[1]),), self.name)
            if use.ephemeral and not made_for(claim, record.name, record.uid):
                return Status(Code.UNSCHEDULABLE, (not_made_for(use.key, record.name),), self.name)
        matching = match_claims([c for c in claims if c is not None], self.state)
        static, provisioned, reason = matching.on(row)
        if reason:
            return Status(Code.UNSCHEDULABLE, (reason,), self.name)
        if not static and not provisioned:
            return None
        reservation = VolumeReservation()
        node = self.state.columns.names[row]
        for claim, volume in static:
            reservation.volumes.append((volume.metadata.name, _key(claim)))
            self.state.assume_volume(volume.metadata.name, _key(claim))
        for claim in provisioned:
            reservation.provisioned.append(_key(claim))
            self.state.assume_node(_key(claim), node)
        self._reservations[record.uid] = reservation
        self.state.columns.journal.push(self._reservations.pop, record.uid, None)
        return None

    def unreserve(self, record: PodRecord, row: int) -> None:
        reservation = self._reservations.pop(record.uid, None)
        if reservation is not None:
            self.state.forget((volume for volume, _ in reservation.volumes), reservation.provisioned)
            self.state.columns.journal.push(self._reservations.__setitem__, record.uid, reservation)

    def pre_bind(self, record: PodRecord, row: int, emit: Emit) -> Status | None:
        reservation = self._reservations.get(record.uid)
        if reservation is None:
            return None
        node = record.node_name
        if not reservation.asked:
            reservation.asked = True
            self._request_writes(reservation, node, emit)
        problem = self._broken(reservation, node)
        if problem:
            return Status(Code.UNSCHEDULABLE, (problem,), self.name)
        keys = [*(key for _, key in reservation.volumes), *reservation.provisioned]
        for key in keys:
            claim = self.state.claim(key)
            if claim is None or not fully_bound(claim):
                return Status(Code.WAIT, ("waiting for volumes to be bound",), self.name, self.args.bind_timeout)
        # The API objects contain the bindings now.
        del self._reservations[record.uid]
        self.state.forget((volume for volume, _ in reservation.volumes), reservation.provisioned)
        return None

    def outcome(self, decision: d.Decision, event: Outcome) -> None:
        """End the wait after a failed write: the objects it was based on have changed."""
        for reservation in self._reservations.values():
            if decision.id in reservation.writes:
                reservation.writes.discard(decision.id)
                if event.problem:
                    reservation.problem = f"binding volumes: {decision.name}: {event.message or event.problem}"

    def _request_writes(self, reservation: VolumeReservation, node: str, emit: Emit) -> None:
        """Emit the writes that bind or provision the volumes of a reservation."""
        for name, key in reservation.volumes:
            volume, claim = self.state.volume(name), self.state.claim(key)
            if volume is not None and claim is not None:
                made = emit(
                    d.BindVolume,
                    namespace="",
                    name=name,
                    uid=volume.metadata.uid,
                    claim_namespace=key[0],
                    claim_name=key[1],
                    claim_uid=claim.metadata.uid,
                )
                reservation.writes.add(made)
        for key in reservation.provisioned:
            claim = self.state.claim(key)
            if claim is not None:
                made = emit(d.ProvisionVolume, namespace=key[0], name=key[1], uid=claim.metadata.uid, node=node)
                reservation.writes.add(made)

    def _broken(self, reservation: VolumeReservation, node: str) -> str:
        """Return the reason why the pending bindings cannot complete; empty if they can."""
        if reservation.problem:
            return reservation.problem
        row = self.state.columns.row_of.get(node, -1)
        for name, key in reservation.volumes:
            volume, claim = self.state.volume(name), self.state.claim(key)
            if volume is None:
                return f'binding volumes: persistentvolume "{name}" not found'
            if claim is None:
                return f"binding volumes: {not_found(key[1])}"
            ref = volume.spec.claim_ref
            if ref is not None and (ref.namespace, ref.name) != key:
                return f'binding volumes: persistentvolume "{name}" was given to claim {ref.namespace}/{ref.name}'
            if not self._reaches(name, row):
                return f'binding volumes: pv "{name}" node affinity doesn\'t match node "{node}"'
        for key in reservation.provisioned:
            claim = self.state.claim(key)
            if claim is None:
                return f"binding volumes: {not_found(key[1])}"
            selected = claim.metadata.annotations.get(SELECTED_NODE)
            if selected == node:
                reservation.selected.add(key)
            elif selected is not None or key in reservation.selected:
                # A provisioner that fails removes the selected-node annotation, so that the scheduler chooses again.
                return f'binding volumes: provisioning failed for PVC "{key[1]}"'
            if claim.spec.volume_name and not self._reaches(claim.spec.volume_name, row):
                return f'binding volumes: pv "{claim.spec.volume_name}" node affinity doesn\'t match node "{node}"'
        return ""

    def _reaches(self, volume_name: str, row: int) -> bool:
        """Return True if the volume is reachable from the row; a volume not seen yet counts as reachable."""
        volume = self.state.volume(volume_name)
        reach = self.state.reach(volume) if volume is not None else None
        return row >= 0 and (reach is None or bool(reach[row]))


def _key(claim: PersistentVolumeClaim) -> ClaimKey:
    return (claim.metadata.namespace, claim.metadata.name)


class BindingFilter(VolumeFilter):
    def evaluate(self) -> list[VolumeVerdict]:
        claims = [claim for use in claims_of(self.shape) if (claim := self.state.claim(use.key)) is not None]
        matching = match_claims(claims, self.state)
        order = (NOT_REACHABLE, NO_VOLUME, matching.NO_SPACE, VOLUME_GONE)
        return [VolumeVerdict(matching.reasons[reason], reason, True) for reason in order if reason in matching.reasons]


class BindingScore:
    """Score nodes from 0 to 100 by the resulting storage utilization, without further normalisation."""

    def __init__(self, plugin: VolumeBinding, shape: Shape, columns: Columns) -> None:
        self.plugin = plugin
        self.state: VolumeState = plugin.state
        self.shape = shape
        self.columns = columns
        self.raw: Floats = np.zeros(columns.capacity)
        self._seen = -1

    def rebuild(self) -> None:
        self._seen = self.state.version
        claims = [claim for use in claims_of(self.shape) if (claim := self.state.claim(use.key)) is not None]
        matching: Matching = match_claims(claims, self.state)
        self.raw = matching.scores(self.plugin.args.shape)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        if self._seen == self.state.version and not any(record is None for _, record, _ in changes):
            return ()
        self.rebuild()
        return None
