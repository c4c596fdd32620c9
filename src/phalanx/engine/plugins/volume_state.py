"""State that the volume plugins share: claims, volumes, assumed bindings, and the placed pods that use them.

The API objects are in `Objects`. Reserve adds assumptions (a volume is bound to a claim, a claim is provisioned for a
node), which the journal can undo. The change log reports placed pods with volumes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phalanx.base.well_known import BIND_COMPLETED, SELECTED_NODE, STORAGE_CLASS_ANNOTATION
from phalanx.engine.framework import Bools, Finding, Handle, Rows
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.node_terms import matching
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import PersistentVolume, PersistentVolumeClaim, StorageClass
from phalanx.model.objects.pod import NodeSelector, Volume

STORAGE_KINDS = frozenset(
    {"PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity"}
)

ClaimKey = tuple[str, str]  # (namespace, name)
Attachment = tuple[str, str]  # (CSI driver, volume handle)


class Use(NamedTuple):
    """A claim that a shape names. `ephemeral`: created for the pod by the ephemeral volume controller."""

    key: ClaimKey
    ephemeral: bool


def has_volumes(shape: Shape) -> bool:
    return bool(shape.volumes)


def claims_of(shape: Shape) -> list[Use]:
    """Return the claims in the pod's order; a claim named twice counts once."""
    if not shape.volumes:
        return []
    found = [
        Use((shape.namespace, volume.persistent_volume_claim.claim_name), volume.ephemeral is not None)
        for volume in shape.volumes
        if volume.persistent_volume_claim is not None
    ]
    return list(dict.fromkeys(found))


def disks_of(shape: Shape) -> list[Volume]:
    """Return the in-tree volumes of the pod spec that two pods on a node cannot share without limits."""
    return [
        volume
        for volume in shape.volumes
        if volume.gce_persistent_disk or volume.aws_elastic_block_store or volume.iscsi or volume.rbd
    ]


def class_of(thing: PersistentVolume | PersistentVolumeClaim) -> str:
    return thing.metadata.annotations.get(STORAGE_CLASS_ANNOTATION, thing.spec.storage_class_name or "")


def fully_bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def made_for(claim: PersistentVolumeClaim, pod_name: str, pod_uid: str = "") -> bool:
    """Return True if the claim of an ephemeral volume belongs to the pod.

    Shapes outlive pods, so filters check the name only; Reserve checks the uid, too.
    """
    return any(
        ref.controller and ref.kind == "Pod" and ref.name == pod_name and (not pod_uid or ref.uid == pod_uid)
        for ref in claim.metadata.owner_references
    )


def not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def not_made_for(key: ClaimKey, pod_name: str) -> str:
    return f"PVC {key[0]}/{key[1]} was not created for pod {key[0]}/{pod_name} (pod is not owner)"


class VolumeState:
    def __init__(self, columns: Columns, objects: Objects) -> None:
        self.columns = columns
        self.objects = objects
        self.version = 0  # +1 when a storage object or an assumption changes
        self.usage_version = 0  # +1 when a pod with volumes is added or removed
        self.volume_for: dict[str, ClaimKey] = {}  # assumed: volume -> claim
        self.node_for: dict[ClaimKey, str] = {}  # assumed: claim -> node it is provisioned for
        self._position = -1
        self.users: dict[ClaimKey, dict[str, PodRecord]] = {}  # claim -> placed pods that use it, by pod key
        self.disk_rows: dict[int, dict[str, PodRecord]] = {}  # row -> pods with in-tree disks
        self._claims_of_volume: dict[str, dict[ClaimKey, None]] = {}  # claims whose spec names the volume
        self._attached: dict[int, dict[Attachment, int]] = {}  # row -> attachment -> pods
        self._dirty_rows: dict[int, None] = {}  # rows whose attachments must be counted again
        self._node_position = -1
        self._reach: dict[str, tuple[PersistentVolume, Bools]] = {}

    # ---- objects

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        """Record a changed object of one of STORAGE_KINDS."""
        self.version += 1
        if kind == "PersistentVolumeClaim":
            thing: Any = new if new is not None else old
            key = (thing.metadata.namespace, thing.metadata.name)
            if old is not None and old.spec.volume_name:
                claims = self._claims_of_volume.get(old.spec.volume_name, {})
                claims.pop(key, None)
                if not claims:
                    self._claims_of_volume.pop(old.spec.volume_name, None)
            if new is not None and new.spec.volume_name:
                self._claims_of_volume.setdefault(new.spec.volume_name, {})[key] = None
            self._recount(key)
        elif kind == "PersistentVolume":
            thing = new if new is not None else old
            self._reach.pop(thing.metadata.name, None)
            for key in self._claims_of_volume.get(thing.metadata.name, {}):
                self._recount(key)
        elif kind == "StorageClass":
            for key in self.users:
                self._recount(key)

    def _recount(self, key: ClaimKey) -> None:
        for record in self.users.get(key, {}).values():
            self._dirty_rows[record.row] = None

    def claim(self, key: ClaimKey) -> PersistentVolumeClaim | None:
        return self.objects.get(PersistentVolumeClaim, *key)

    def volume(self, name: str) -> PersistentVolume | None:
        return self.objects.get(PersistentVolume, "", name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self.objects.get(StorageClass, "", name)

    def selected_node(self, claim: PersistentVolumeClaim) -> str | None:
        """Return the node for which a claim is being provisioned, if any."""
        assumed = self.node_for.get((claim.metadata.namespace, claim.metadata.name))
        return assumed if assumed is not None else claim.metadata.annotations.get(SELECTED_NODE)

    def owner_of(self, volume: PersistentVolume) -> tuple[str, str, str] | None:
        """Return (namespace, name, uid) of the volume's claimRef; an empty uid matches any claim of that name."""
        assumed = self.volume_for.get(volume.metadata.name)
        if assumed is not None:
            return (*assumed, "")
        ref = volume.spec.claim_ref
        return None if ref is None else (ref.namespace, ref.name, ref.uid)

    # ---- assumptions

    def assume_volume(self, volume: str, claim: ClaimKey) -> None:
        self.columns.journal.push(self._set, self.volume_for, volume, self.volume_for.get(volume))
        self._set(self.volume_for, volume, claim)

    def assume_node(self, claim: ClaimKey, node: str) -> None:
        self.columns.journal.push(self._set, self.node_for, claim, self.node_for.get(claim))
        self._set(self.node_for, claim, node)

    def forget(self, volumes: Iterable[str], claims: Iterable[ClaimKey]) -> None:
        for volume in volumes:
            if volume in self.volume_for:
                self.columns.journal.push(self._set, self.volume_for, volume, self.volume_for[volume])
                self._set(self.volume_for, volume, None)
        for claim in claims:
            if claim in self.node_for:
                self.columns.journal.push(self._set, self.node_for, claim, self.node_for[claim])
                self._set(self.node_for, claim, None)

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set an entry of a table, or remove it (None), and count a change."""
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        self.version += 1

    # ---- placed pods

    def sync(self) -> None:
        log = self.columns.log
        if self._position == log.position and not self._dirty_rows:
            return
        changes = log.since(self._position) if self._position >= 0 else None
        if changes is None:
            self.users.clear()
            self.disk_rows.clear()
            self._attached.clear()
            self._dirty_rows.clear()
            self.usage_version += 1
            changes = [(row, record, 1) for row, pods in enumerate(self.columns.pods) for record in pods.values()]
        for row, record, sign in changes:
            if record is not None and record.shape.volumes:
                self._count_pod(row, record, sign)
        self._position = log.position
        for row in self._dirty_rows:
            self.usage_version += 1
            self._attached.pop(row, None)
            for record in self.columns.pods[row].values() if 0 <= row < self.columns.n else ():
                if record.shape.volumes:
                    self._attach(row, record)
        self._dirty_rows.clear()

    def _count_pod(self, row: int, record: PodRecord, sign: int) -> None:
        self.usage_version += 1
        if disks_of(record.shape):
            _member(self.disk_rows, row, record, sign)
        uses = claims_of(record.shape)
        for use in uses:
            _member(self.users, use.key, record, sign)
        if uses:
            self._dirty_rows[row] = None

    def _attach(self, row: int, record: PodRecord) -> None:
        for attachment in self.attachments(record.shape, record.name):
            found = self._attached.setdefault(row, {})
            found[attachment] = found.get(attachment, 0) + 1

    def attachments(self, shape: Shape, pod_name: str) -> set[Attachment]:
        """Return the CSI volumes that a pod needs attached.

        Claims that cannot be read do not count. A claim without a volume counts as a volume of its class's driver.
        """
        found: set[Attachment] = set()
        for use in claims_of(shape):
            claim = self.claim(use.key)
            if claim is None or (use.ephemeral and not made_for(claim, pod_name)):
                continue
            bound = self.volume(claim.spec.volume_name) if claim.spec.volume_name else None
            if bound is not None:
                csi = bound.spec.csi
                if csi is not None and csi.driver and csi.volume_handle:
                    found.add((csi.driver, csi.volume_handle))
                continue
            storage_class = self.storage_class(class_of(claim))
            if storage_class is not None and storage_class.provisioner:
                found.add((storage_class.provisioner, f"{use.key[0]}/{use.key[1]}"))
        return found

    def attached(self) -> Iterator[tuple[int, dict[Attachment, int]]]:
        yield from self._attached.items()

    # ---- nodes

    def reach(self, volume: PersistentVolume) -> Bools | None:
        """Return (capacity,) the rows that can use a volume (node affinity); None: all rows."""
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return None
        self._check_nodes()
        known = self._reach.get(volume.metadata.name)
        if known is None or known[0] is not volume:
            known = self._reach[volume.metadata.name] = (volume, selector_mask(affinity.required, self.columns))
        return known[1]

    def _check_nodes(self) -> None:
        """Clear caches that depend on nodes after a node changed."""
        log = self.columns.log
        if self._node_position == log.position:
            return
        changes = log.since(self._node_position) if self._node_position >= 0 else None
        if changes is None or any(record is None for _, record, _ in changes):
            self._reach.clear()
        self._node_position = log.position


class VolumePlugin:
    """Base of all volume plugins, which share one state."""

    def __init__(self, args: Mapping[str, Any], handle: Handle, state: VolumeState) -> None:
        self.state = state


def _member(table: dict[Any, dict[str, PodRecord]], key: Any, record: PodRecord, sign: int) -> None:
    if sign > 0:
        table.setdefault(key, {})[record.key] = record
        return
    found = table.get(key, {})
    found.pop(record.key, None)
    if not found:
        table.pop(key, None)


def selector_mask(selector: NodeSelector, columns: Columns) -> Bools:
    mask: Bools = np.zeros(columns.capacity, dtype=np.bool_)
    for term in selector.node_selector_terms:
        mask[: columns.n] |= matching(term, columns)
    return mask


class VolumeVerdict(NamedTuple):
    """A reason and the (capacity,) rows that it applies to."""

    rows: Bools
    reason: str
    unresolvable: bool


class VolumeFilter(ABC):
    """Track verdicts from `evaluate`, which runs again after changes of storage objects or nodes.

    With `cares_for_pods` it also runs after changes of pods with volumes.
    """

    cares_for_pods = False

    def __init__(self, state: VolumeState, shape: Shape, columns: Columns) -> None:
        self.state = state
        self.shape = shape
        self.columns = columns
        self.mask: Bools = np.zeros(0, dtype=np.bool_)
        self.verdicts: list[VolumeVerdict] = []
        self._seen = (-1, -1)

    @abstractmethod
    def evaluate(self) -> list[VolumeVerdict]: ...

    def rebuild(self) -> None:
        if self.cares_for_pods:
            self.state.sync()
        self._seen = self._versions()
        self.verdicts = self.evaluate()
        mask: Bools = np.ones(self.columns.capacity, dtype=np.bool_)
        for verdict in self.verdicts:
            mask &= ~verdict.rows
        self.mask = mask

    def _versions(self) -> tuple[int, int]:
        return (self.state.version, self.state.usage_version if self.cares_for_pods else 0)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        if self.cares_for_pods:
            self.state.sync()
        if self._seen == self._versions() and not any(record is None for _, record, _ in changes):
            return ()
        self.rebuild()
        return None

    def affects_other_nodes(self, record: PodRecord) -> bool:
        return self.cares_for_pods and bool(record.shape.volumes)

    def explain(self, rows: Rows) -> Sequence[Finding]:
        findings = [Finding(rows[v.rows[rows]], v.reason, v.unresolvable) for v in self.verdicts]
        return [finding for finding in findings if len(finding.rows)]
