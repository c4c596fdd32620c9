"""State of devices, claims and placed pods.

It is derived from the API objects, from assumptions of Reserve (which the journal can undo) and from the placement in
the columns. So trials need no state of their own: claims of a pod that a trial places become pending on that node, and
are solved together with those of the next pod; removing a pod frees devices without another consumer. Reserve chooses
devices for all pending claims of the node at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from phalanx.engine.devices.holdings import Held, Holdings, held_by
from phalanx.engine.devices.inventory import Device, DeviceKey, Inventory, in_order
from phalanx.engine.devices.requests import ClaimSpecs
from phalanx.engine.devices.selectors import Compiler, DeviceSelectors
from phalanx.engine.state.claims import EXTENDED, ClaimKey, ClaimUse
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import ChangeLog
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.objects import DeviceClass, ResourceClaim
from phalanx.model.objects.devices import EXTENDED_CLAIM_ANNOTATION

ALL_ROWS = -1
DEVICE_KINDS = frozenset({"ResourceClaim", "ResourceSlice", "DeviceClass", "DeviceTaintRule"})
_ON_A_NODE = (PodState.ASSUMED, PodState.BINDING, PodState.CONFIRMED, PodState.BOUND)


class RowView(NamedTuple):
    """The devices that a node can use, in the order of allocation."""

    devices: list[Device]
    unusable: str  # a pool without usable devices at present, and the reason
    invalid: bool  # a pool is inconsistent
    shared: bool  # a pool is also visible from other nodes


class ClaimTables:
    def __init__(self, columns: Columns, objects: Objects, compiler: Compiler) -> None:
        self.columns = columns
        self.objects = objects
        self._claims = objects.table(ResourceClaim)
        self.inventory = Inventory()
        self.selectors = DeviceSelectors(compiler)
        self.specs = ClaimSpecs(lambda name: objects.get(DeviceClass, "", name))
        self.holdings = Holdings(self.inventory)
        self.assumed: dict[ClaimKey, Held] = {}
        self.log = ChangeLog[int]()  # rows to evaluate again, or ALL_ROWS
        self._position = -1
        self._dirty: dict[ClaimKey, None] = {}
        self._users: dict[ClaimKey, dict[str, PodRecord]] = {}  # placed pods that name the claim
        self._records: dict[str, PodRecord] = {}  # placed pods with claims, by uid
        self._extended: dict[ClaimKey, tuple[PodRecord, ClaimUse]] = {}  # placed pods with extended resources
        self._made_for: dict[str, ClaimKey] = {}  # pod uid -> the claim created for its extended resources
        self._pending: dict[ClaimKey, tuple[int, ...]] = {}  # claims without devices -> rows of their placed consumers
        self._pending_at: dict[int, dict[ClaimKey, None]] = {}
        self._views: dict[int, RowView] = {}
        self._joined: dict[ClaimKey, dict[str, None]] = {}  # pods reserved with an assumed allocation
        self._unused: dict[ClaimKey, None] = {}  # claims with a consumer that was deleted
        self.releasing: dict[ClaimKey, int] = {}  # claims whose allocation is being removed
        self._disregarded: dict[ClaimKey, None] = {}  # claims that a trial treats as not allocated

    # ---- objects

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        """Apply a changed object of one of DEVICE_KINDS."""
        thing: Any = new if new is not None else old
        if kind == "ResourceClaim":
            key = (thing.metadata.namespace, thing.metadata.name)
            if new is None or new.status.allocation is not None or (old and old.metadata.uid != new.metadata.uid):
                self.assumed.pop(key, None)  # the object includes the assumption now
            self._dirty[key] = None
            self._follow_extended(key, thing, new)
        elif kind == "ResourceSlice":
            self.inventory.slice_changed(old, new)
        elif kind == "DeviceTaintRule":
            self.inventory.rule_changed(old, new)
        else:
            self.specs.class_changed(thing.metadata.name)
            self.log.append(ALL_ROWS)

    def _follow_extended(self, key: ClaimKey, claim: ResourceClaim, new: ResourceClaim | None) -> None:
        owner = extended_owner(claim)
        if not owner:
            return
        extended = ("", owner)
        self._dirty[extended] = None
        if new is None or new.status.allocation is None:
            self._made_for.pop(owner, None)
        else:
            self._made_for[owner] = key
            self.assumed.pop(extended, None)

    def made_for(self, uid: str) -> ClaimKey:
        """Return the allocated claim of a pod's extended resources; ("", "") if there is none."""
        return self._made_for.get(uid, ("", ""))

    def is_placed(self, uid: str) -> bool:
        """Return True if a pod with claims is on a node, or assumed there."""
        return uid in self._records

    def claim(self, key: ClaimKey) -> ResourceClaim | None:
        return self._claims.get(key)

    # ---- assumptions of Reserve

    def assume(self, key: ClaimKey, held: Held | None) -> None:
        self.columns.journal.push(self._assume, key, self.assumed.get(key))
        self._assume(key, held)

    def _assume(self, key: ClaimKey, held: Held | None) -> None:
        if held is None:
            self.assumed.pop(key, None)
        else:
            self.assumed[key] = held
        self._dirty[key] = None

    def join(self, key: ClaimKey, uid: str) -> None:
        """Record a pod that is reserved with the claim."""
        self.columns.journal.push(self._part, key, uid)
        self._joined.setdefault(key, {})[uid] = None

    def leave(self, key: ClaimKey, uid: str) -> bool:
        """End a reservation; return True if it was the last one of the claim."""
        self.columns.journal.push(self.join, key, uid)
        return self._part(key, uid)

    def used(self, key: ClaimKey) -> bool:
        """Return True if a pod with this claim is bound or being bound."""
        under_way = (PodState.BINDING, PodState.CONFIRMED, PodState.BOUND)
        return any(record.state in under_way for record in self._users.get(key, {}).values())

    def joined(self, key: ClaimKey) -> bool:
        return key in self._joined

    def _part(self, key: ClaimKey, uid: str) -> bool:
        pods = self._joined.get(key, {})
        pods.pop(uid, None)
        if not pods:
            self._joined.pop(key, None)
        return not pods

    def disregard(self, key: ClaimKey) -> None:
        """Treat an allocated claim as not allocated, in a trial."""
        self.columns.journal.push(self.regard, key)
        self._disregarded[key] = None
        self._reread(key)

    def regard(self, key: ClaimKey) -> None:
        """Undo `disregard`."""
        self.columns.journal.push(self.disregard, key)
        self._disregarded.pop(key, None)
        self._reread(key)

    def _reread(self, key: ClaimKey) -> None:
        self._dirty[key] = None
        self.objects.version += 1  # evaluations depend on it

    def released(self, key: ClaimKey) -> None:
        """Read a claim from its object again after its deallocation was done or failed."""
        left = self.releasing.get(key, 0) - 1
        if left > 0:
            self.releasing[key] = left
            return
        self.releasing.pop(key, None)
        if key not in self._joined:
            self._assume(key, None)

    # ---- updates

    def sync(self) -> None:
        """Apply changes of objects, assumptions and placed pods."""
        self._follow_columns()
        if self.inventory.refresh():
            self._follow_inventory()
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for key in dirty:
                self._update_claim(key)

    def _follow_columns(self) -> None:
        log = self.columns.log
        if self._position == log.position:
            return
        changes = log.since(self._position) if self._position >= 0 else None
        if changes is None:
            self._start_over()
            changes = [(row, record, 1) for row, pods in enumerate(self.columns.pods) for record in pods.values()]
        for row, record, sign in changes:
            if record is None:
                self._views.pop(row, None)
                self.log.append(row)
            elif record.claims or record.shape.claims:
                self._count_users(record, sign)
        self._position = log.position

    def _start_over(self) -> None:
        self._dirty.update(dict.fromkeys(self._users))
        self._dirty.update(dict.fromkeys(self._extended))
        self._users.clear()
        self._records.clear()
        self._extended.clear()
        self._views.clear()
        self.log.append(ALL_ROWS)

    def _count_users(self, record: PodRecord, sign: int) -> None:
        if sign > 0:
            self._records[record.uid] = record
        elif record.state not in _ON_A_NODE:
            self._records.pop(record.uid, None)
            self._unused.update(dict.fromkeys(record.claims))
            if record.uid in self._made_for:
                self._unused[self._made_for[record.uid]] = None
        for key in record.claims:
            users = self._users.setdefault(key, {})
            if sign > 0:
                users[record.key] = record
            else:
                users.pop(record.key, None)
                if not users:
                    del self._users[key]
            self._dirty[key] = None
        use = next((use for use in record.shape.claims if use.kind == EXTENDED), None)
        if use is not None:
            key = extended_key(record)
            if sign > 0:
                self._extended[key] = (record, use)
            else:
                self._extended.pop(key, None)
            self._dirty[key] = None
            if record.uid in self._made_for:
                self._dirty[self._made_for[record.uid]] = None

    def _follow_inventory(self) -> None:
        inventory = self.inventory
        self.holdings.pools_changed()
        self.specs.drop_devices(inventory.dropped)
        inventory.dropped = []
        if inventory.shared_changed:
            self._views.clear()
            self.log.append(ALL_ROWS)
        else:
            for node in inventory.changed_nodes:
                row = self.columns.row_of.get(node, -1)
                if row >= 0:
                    self._views.pop(row, None)
                    self.log.append(row)
        inventory.shared_changed = False
        inventory.changed_nodes.clear()

    def _update_claim(self, key: ClaimKey) -> None:
        """Update the devices that a claim holds, or the rows it is pending on."""
        held = self._held(key)
        for device in self.holdings.set(key, held):
            self._touch(device)
        rows: tuple[int, ...] = ()
        if held is None:
            users: Iterable[PodRecord] = self._users.get(key, {}).values()
            if key in self._extended and key[1] not in self._made_for:
                users = (self._extended[key][0],)
            rows = tuple(dict.fromkeys(record.row for record in users if _waits(record)))
        before = self._pending.get(key, ())
        if rows == before:
            return
        for row in before:
            at = self._pending_at.get(row, {})
            at.pop(key, None)
            if not at:
                self._pending_at.pop(row, None)
        self._pending.pop(key, None)
        if rows:
            self._pending[key] = rows
            for row in rows:
                self._pending_at.setdefault(row, {})[key] = None
        for row in dict.fromkeys((*before, *rows)):
            self.log.append(ALL_ROWS if row < 0 or self.view(row).shared else row)

    def _held(self, key: ClaimKey) -> Held | None:
        claim = self.claim(key)
        allocation = claim.status.allocation if claim is not None else None
        if claim is not None and allocation is not None:
            if key in self._disregarded or self._freed(claim):
                return None
            known = self.holdings.claims.get(key)
            return known if known is not None and known.allocation is allocation else held_by(allocation)
        return self.assumed.get(key)

    def _freed(self, claim: ResourceClaim) -> bool:
        """Return True if a trial removed all consumers of a claim.

        Deleted pods do not count: the devices are in use until the controller deallocates the claim.
        """
        consumers = claim.status.reserved_for
        if not consumers:
            return False
        for consumer in consumers:
            record = self._records.get(consumer.uid) if consumer.resource == "pods" else None
            if record is None or record.row >= 0 or record.state not in _ON_A_NODE:
                return False
            if record.node_name not in self.columns.row_of:
                return False
        return True

    def leaving(self) -> list[ClaimKey]:
        """Return the claims without remaining consumers, which their controller is about to deallocate."""
        found = []
        for key in list(self._unused):
            claim = self.claim(key)
            if claim is None or claim.status.allocation is None:
                del self._unused[key]
            elif claim.status.reserved_for and not any(
                each.resource != "pods" or each.uid in self._records for each in claim.status.reserved_for
            ):
                found.append(key)
        return found

    def _touch(self, device: DeviceKey) -> None:
        """Mark the rows that can see a device that was taken or released."""
        known = self.inventory.pools.get(device[:2])
        if known is None:
            return
        row = self.columns.row_of.get(known.local, -1) if known.local else ALL_ROWS
        if row >= 0 or not known.local:
            self.log.append(row)

    def validate(self) -> None:
        """Raise AssertionError if the counts contradict the claims. For tests."""
        self.sync()
        fresh = Holdings(self.inventory)
        for key in {*self.holdings.claims, *self.assumed}:
            fresh.set(key, self._held(key))
        assert fresh.whole == self.holdings.whole, (fresh.whole, self.holdings.whole)
        assert fresh.parts == self.holdings.parts, (fresh.parts, self.holdings.parts)
        for row, keys in self._pending_at.items():
            assert keys and all(row in self._pending[key] for key in keys), row

    # ---- nodes

    def view(self, row: int) -> RowView:
        known = self._views.get(row)
        if known is None:
            known = self._views[row] = self._read_view(row)
        return known

    def _read_view(self, row: int) -> RowView:
        node = self.columns.nodes[row] if 0 <= row < self.columns.n else None
        if node is None:
            return RowView([], "", False, False)
        pools = self.inventory.pools_of(node)
        unusable = next((f"{'/'.join(pool.key)} {pool.problem}" for pool in pools if pool.problem), "")
        invalid = any(pool.problem and not pool.incomplete for pool in pools)
        return RowView(list(in_order(pools, node)), unusable, invalid, any(not pool.local for pool in pools))


def extended_key(record: PodRecord) -> ClaimKey:
    """Return the key of the claim for a pod's extended resources; the claim has no name before it is created."""
    return ("", record.uid)


def _waits(record: PodRecord) -> bool:
    """Return True if devices will be allocated for a pod; False for one that was bound without an allocation."""
    return record.row >= 0 and record.state is not PodState.BOUND


def extended_owner(claim: ResourceClaim) -> str:
    """Return the uid of the pod whose extended resources the claim holds."""
    if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return ""
    return next((ref.uid for ref in claim.metadata.owner_references if ref.kind == "Pod" and ref.controller), "")
