"""Devices, claims and placed pods as one state: what is free on a node for the claims of a pod.

Everything here follows from the API objects, from what Reserve assumed (which the journal can undo) and from where
pods are placed in the columns. So a trial needs nothing of its own: a pod that a trial places makes its claims pending
on that node, and pending claims are solved together with those of the next pod; a pod that a trial takes away frees
what no other consumer holds. Devices are chosen by Reserve, for all claims that are pending on the node at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from phalanx.engine.devices.allocator import Allocator, ClaimDemand, Pick, Solution, Usage
from phalanx.engine.devices.holdings import Held, Holdings, Unused, held_by
from phalanx.engine.devices.inventory import Device, DeviceKey, Inventory, in_order
from phalanx.engine.devices.quick import NotSimple, Simple, free, picks, simple, slots
from phalanx.engine.devices.requests import ClaimSpec, ClaimSpecs
from phalanx.engine.devices.selectors import Compiler, Selectors
from phalanx.engine.state.claims import EXTENDED, NAMED, OWN, ClaimKey, ClaimUse
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import ChangeLog
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import DeviceClass, ResourceClaim
from phalanx.model.objects.devices import EXTENDED_CLAIM_ANNOTATION, DeviceClaim

ALL_ROWS = -1
KINDS = frozenset({"ResourceClaim", "ResourceSlice", "DeviceClass", "DeviceTaintRule"})
_ON_A_NODE = (PodState.ASSUMED, PodState.BINDING, PodState.CONFIRMED, PodState.BOUND)


class RowView(NamedTuple):
    """The devices that a node can use, in the order in which they are tried."""

    devices: list[Device]
    unusable: str  # a pool that offers nothing for now, and why
    invalid: bool  # a pool contradicts itself
    shared: bool  # some pool is visible from other nodes, too


class DeviceState:
    def __init__(self, columns: Columns, objects: Objects, compiler: Compiler) -> None:
        self.columns = columns
        self.objects = objects
        self.inventory = Inventory()
        self.selectors = Selectors(compiler)
        self.specs = ClaimSpecs(lambda name: objects.get(DeviceClass, "", name))
        self.holdings = Holdings(self.inventory)
        self.assumed: dict[ClaimKey, Held] = {}
        self.log = ChangeLog[int]()  # rows to look at again, or ALL_ROWS
        self._position = -1
        self._dirty: dict[ClaimKey, None] = {}
        self._users: dict[ClaimKey, dict[str, PodRecord]] = {}  # placed pods that name the claim
        self._records: dict[str, PodRecord] = {}  # placed pods with claims, by uid
        self._extended: dict[ClaimKey, tuple[PodRecord, ClaimUse]] = {}  # placed pods with extended resources
        self._pending: dict[ClaimKey, tuple[int, ...]] = {}  # claims without devices -> rows of their placed consumers
        self._pending_at: dict[int, dict[ClaimKey, None]] = {}
        self._views: dict[int, RowView] = {}
        self._heard: tuple[Any, Any] = (None, None)
        self._joined: dict[ClaimKey, dict[str, None]] = {}  # pods whose reservation counts on what was assumed
        self.releasing: dict[ClaimKey, int] = {}  # claims whose allocation is being taken back

    # ---- objects

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        """Every profile's plugin passes on what it hears; only the first word counts."""
        if kind not in KINDS or (self._heard[0] is old and self._heard[1] is new):
            return
        self._heard = (old, new)
        thing: Any = new if new is not None else old
        if kind == "ResourceClaim":
            key = (thing.metadata.namespace, thing.metadata.name)
            if new is None or new.status.allocation is not None or (old and old.metadata.uid != new.metadata.uid):
                self.assumed.pop(key, None)  # the object says it all now
            self._dirty[key] = None
            owner = _extended_owner(thing)
            if owner and new is not None and new.status.allocation is not None:
                extended = ("", owner)
                self.assumed.pop(extended, None)
                self._dirty[extended] = None
        elif kind == "ResourceSlice":
            self.inventory.slice_changed(old, new)
        elif kind == "DeviceTaintRule":
            self.inventory.rule_changed(old, new)
        else:
            self.specs.class_changed(thing.metadata.name)
            self.log.append(ALL_ROWS)

    def claim(self, key: ClaimKey) -> ResourceClaim | None:
        return self.objects.get(ResourceClaim, *key)

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
        """A pod is reserved with the claim."""
        self.columns.journal.push(self._part, key, uid)
        self._joined.setdefault(key, {})[uid] = None

    def leave(self, key: ClaimKey, uid: str) -> bool:
        """A reservation ended; True if it was the last one of the claim."""
        self.columns.journal.push(self.join, key, uid)
        return self._part(key, uid)

    def joined(self, key: ClaimKey) -> bool:
        return key in self._joined

    def _part(self, key: ClaimKey, uid: str) -> bool:
        pods = self._joined.get(key, {})
        pods.pop(uid, None)
        if not pods:
            self._joined.pop(key, None)
        return not pods

    def released(self, key: ClaimKey) -> None:
        """An allocation was taken back, or could not be: the objects say what is so."""
        left = self.releasing.get(key, 0) - 1
        if left > 0:
            self.releasing[key] = left
            return
        self.releasing.pop(key, None)
        if key not in self._joined:
            self._assume(key, None)

    # ---- keeping current

    def sync(self) -> None:
        """Follow objects, assumptions and placed pods."""
        self._follow_columns()
        if self.inventory.refresh():
            self._follow_inventory()
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for key in dirty:
                self._settle(key)

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
                self._follow(record, sign)
        self._position = log.position

    def _start_over(self) -> None:
        self._dirty.update(dict.fromkeys(self._users))
        self._dirty.update(dict.fromkeys(self._extended))
        self._users.clear()
        self._records.clear()
        self._extended.clear()
        self._views.clear()
        self.log.append(ALL_ROWS)

    def _follow(self, record: PodRecord, sign: int) -> None:
        if sign > 0:
            self._records[record.uid] = record
        elif record.state not in _ON_A_NODE:
            self._records.pop(record.uid, None)
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

    def _settle(self, key: ClaimKey) -> None:
        """Bring what a claim holds, or waits for, up to date."""
        held = self._held(key)
        for device in self.holdings.set(key, held):
            self._touch(device)
        rows: tuple[int, ...] = ()
        if held is None:
            users: Iterable[PodRecord] = self._users.get(key, {}).values()
            if key in self._extended:
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
            if self._freed(claim):
                return None
            known = self.holdings.claims.get(key)
            return known if known is not None and known.allocation is allocation else held_by(allocation)
        return self.assumed.get(key)

    def _freed(self, claim: ResourceClaim) -> bool:
        """Whether a trial took all consumers of a claim away. Pods that are gone for good do not count: until its
        controller deallocates the claim, its devices are in use."""
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

    def _touch(self, device: DeviceKey) -> None:
        """A device was taken or given back: whoever can see it looks again."""
        known = self.inventory.pools.get(device[:2])
        if known is None:
            return
        row = self.columns.row_of.get(known.local, -1) if known.local else ALL_ROWS
        if row >= 0 or not known.local:
            self.log.append(row)

    # ---- nodes

    def view(self, row: int) -> RowView:
        known = self._views.get(row)
        if known is None:
            known = self._views[row] = self._look(row)
        return known

    def _look(self, row: int) -> RowView:
        node = self.columns.nodes[row] if 0 <= row < self.columns.n else None
        if node is None:
            return RowView([], "", False, False)
        pools = self.inventory.pools_of(node)
        unusable = next((f"{'/'.join(pool.key)} {pool.problem}" for pool in pools if pool.problem), "")
        invalid = any(pool.problem and not pool.incomplete for pool in pools)
        return RowView(list(in_order(pools, node)), unusable, invalid, any(not pool.local for pool in pools))

    # ---- what a pod needs

    def demands(self, shape: Shape, row: int) -> list[ClaimDemand] | None:
        """The claims of a pod that need devices on a row; None: one is allocated where the row cannot use it."""
        view = self.view(row)
        found: list[ClaimDemand] = []
        for number, use in enumerate(shape.claims):
            if use.kind == NAMED:
                held = self.holdings.claims.get(use.claim)
                node = self.columns.nodes[row]
                if held is not None:
                    if node is None or not held.usable_on(node):
                        return None
                    continue
                claim = self.claim(use.claim)
                if claim is None:
                    return None
                rows = (*self._pending.get(use.claim, ()), row)
                found.append(self._demand(use.claim, "/".join(use.claim), self.specs.of(claim), rows))
            elif use.kind == OWN:
                spec = self.specs.of_spec(use.spec, use.key, shape.namespace)
                name = f"{shape.namespace}/{use.claim[1]}" if use.claim[1] else shape.namespace
                found.append(ClaimDemand((OWN, number), name, spec, view.devices, view.unusable))
            elif use.kind == EXTENDED:
                if not self._offered(use, row):
                    return None
                needed = self.extended_spec(use, row)
                if needed is not None:
                    found.append(
                        ClaimDemand((EXTENDED, number), "extended resources", needed, view.devices, view.unusable)
                    )
        return found

    def _offered(self, use: ClaimUse, row: int) -> bool:
        """Whether a node that offers extended resources itself has enough of them left. Pods whose shape leaves them to
        devices are not counted by the columns."""
        columns = self.columns
        for rid, amount in use.resources:
            offered = columns.alloc_cell[rid][row]
            if offered > 0 and columns.used_cell[rid][row] + self._extended_used(rid, row) + amount > offered:
                return False
        return True

    def _extended_used(self, rid: int, row: int) -> float:
        return sum(
            amount
            for record in self.columns.pods[row].values()
            for use in record.shape.claims
            for known, amount in use.resources
            if known == rid
        )

    def extended_spec(self, use: ClaimUse, row: int) -> ClaimSpec | None:
        """The claim of a pod's extended resources on a row; None: the node offers them itself."""
        offered = [rid for rid, _ in use.resources if self.columns.alloc_cell[rid][row] > 0]
        if len(offered) == len(use.resources):
            return None
        return self.specs.of_spec(use.spec, use.key, "extended resources")

    def _demand(self, claim: Hashable, name: str, spec: ClaimSpec, rows: Sequence[int]) -> ClaimDemand:
        first = self.view(rows[0])
        devices = first.devices
        for row in dict.fromkeys(rows[1:]):
            there = set(self.view(row).devices)
            devices = [device for device in devices if device in there]
        return ClaimDemand(claim, name, spec, devices, first.unusable)

    def together(self, demands: Sequence[ClaimDemand], rows: Iterable[int]) -> list[ClaimDemand]:
        """The claims of a pod, and all that are pending where they could meet on the same devices."""
        mine = {demand.claim for demand in demands}
        where = dict.fromkeys(rows)
        wide = any(self.view(row).shared for row in where)
        keys = self._pending if wide else {key: None for row in where for key in self._pending_at.get(row, ())}
        others = [self._pending_demand(key) for key in keys if key not in mine]
        return [each for each in others if each is not None] + list(demands)

    def _pending_demand(self, key: ClaimKey) -> ClaimDemand | None:
        rows = self._pending[key]
        if key in self._extended:
            spec = self.extended_spec(self._extended[key][1], rows[0])
            return None if spec is None else self._demand(key, "extended resources", spec, rows)
        claim = self.claim(key)
        return None if claim is None else self._demand(key, "/".join(key), self.specs.of(claim), rows)

    def pending(self, key: ClaimKey) -> tuple[int, ...]:
        """Rows of the placed consumers of a claim that has no devices yet."""
        return self._pending.get(key, ())

    def specs_of(self, shape: Shape) -> list[DeviceClaim]:
        """What the claims of a shape ask for."""
        found = []
        for use in shape.claims:
            if use.kind == NAMED:
                claim = self.claim(use.claim)
                found += [claim.spec.devices] if claim is not None else []
            else:
                found.append(use.spec.devices)
        return found

    def is_pending(self, row: int) -> bool:
        """Whether claims of placed pods wait for devices there."""
        return row in self._pending_at

    def pending_rows(self, shape: Shape) -> tuple[int, ...]:
        """Rows where claims that a shape names wait for devices already."""
        rows: dict[int, None] = {}
        for use in shape.claims:
            if use.kind == NAMED:
                rows.update(dict.fromkeys(self._pending.get(use.claim, ())))
        return tuple(rows)

    # ---- answers

    def counted(self, shape: Shape) -> Simple | None:
        """The only claim of a shape, where counting devices tells whether it can be allocated."""
        if len(shape.claims) != 1 or shape.claims[0].kind != OWN:
            return None
        use = shape.claims[0]
        return simple(self.specs.of_spec(use.spec, use.key, shape.namespace))

    def slots(self, claim: Simple, row: int) -> int | None:
        """How many claims like this one a row can serve; None: counting cannot tell."""
        view = self.view(row)
        if view.shared or row in self._pending_at:
            return None
        try:
            return slots(claim, free(claim, view.devices, self.holdings, self.selectors))
        except NotSimple:
            return None

    def solve(self, shape: Shape, row: int) -> Solution | None:
        """Devices for a pod of this shape on a row, beside all that is taken or pending. Raises AllocationError and
        SelectorFailure."""
        demands = self.demands(shape, row)
        if demands is None:
            return None
        if not demands:
            return {}
        rows = (row, *self.pending_rows(shape))
        return Allocator(self.together(demands, rows), self.holdings, self.selectors).solve()

    def possible(self, shape: Shape, row: int) -> bool:
        """Whether the pod would fit if no claim held anything: whether evicting pods can help."""
        demands = self.demands(shape, row)
        if demands is None:
            return False
        usage: Usage = Unused()
        return Allocator(demands, usage, self.selectors).solve() is not None

    def settle_pod(self, record: PodRecord) -> dict[ClaimKey, tuple[ClaimSpec, Any]] | None:
        """Devices for the claims of a placed pod that have none, chosen together with all other pending claims it could
        meet. None: there are not enough. Raises AllocationError and SelectorFailure."""
        keys = [key for key in (*record.claims, extended_key(record)) if key in self._pending]
        if not keys:
            return {}
        rows = tuple(dict.fromkeys(row for key in keys for row in self._pending[key]))
        if len(rows) == 1 and len(keys) == 1 and (quick := self._settle_one(keys[0], rows[0])) is not None:
            return quick
        demands = self.together([], rows)
        solution = Allocator(demands, self.holdings, self.selectors).solve()
        if solution is None:
            return None
        specs = {demand.claim: demand.spec for demand in demands}
        return {key: (specs[key], solution[key]) for key in keys if key in solution}

    def _settle_one(self, key: ClaimKey, row: int) -> dict[ClaimKey, tuple[ClaimSpec, Any]] | None:
        """Devices for a claim if all that is pending on its row asks for the same; None: the allocator has to look."""
        claim, view = self.claim(key), self.view(row)
        if claim is None or view.shared:
            return None
        spec = self.specs.of(claim)
        one = simple(spec)
        if one is None:
            return None
        others = [self.claim(other) for other in self._pending_at[row] if other != key]
        if any(other is None or self.specs.of(other) is not spec for other in others):
            return None
        try:
            chosen = picks(one, free(one, view.devices, self.holdings, self.selectors))
        except NotSimple:
            return None
        return None if chosen is None else {key: (spec, [Pick(one.request, device, None) for device in chosen])}


def extended_key(record: PodRecord) -> ClaimKey:
    """Stands for the claim of a pod's extended resources, which has no name before it is created."""
    return ("", record.uid)


def _waits(record: PodRecord) -> bool:
    """A pod that is bound without an allocation was not placed by a scheduler: nothing will be allocated for it."""
    return record.row >= 0 and record.state is not PodState.BOUND


def _extended_owner(claim: ResourceClaim) -> str:
    """Uid of the pod whose extended resources the claim stands for."""
    if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) != "true":
        return ""
    return next((ref.uid for ref in claim.metadata.owner_references if ref.kind == "Pod" and ref.controller), "")
