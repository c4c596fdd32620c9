"""Free devices of a node for the claims of a pod, after all claims that are pending there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from phalanx.engine.devices.allocator import Allocator, ClaimDemand, Pick, Solution, Usage
from phalanx.engine.devices.claim_tables import ALL_ROWS, ClaimTables, extended_key, extended_owner
from phalanx.engine.devices.holdings import Unused
from phalanx.engine.devices.quick import NotSimple, Simple, free, picks, simple, slots
from phalanx.engine.devices.requests import ClaimSpec
from phalanx.engine.state.claims import EXTENDED, NAMED, OWN, ClaimKey, ClaimUse
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.devices import DeviceClaim, ResourceClaimSpec

__all__ = ["ALL_ROWS", "DeviceState", "extended_key", "extended_owner"]


class DeviceState(ClaimTables):
    # ---- what a pod needs

    def demands(self, shape: Shape, row: int) -> list[ClaimDemand] | None:
        """Return the claims of a pod that need devices on a row; None if the row cannot use an existing allocation."""
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
                held = self.holdings.claims.get(use.claim)
                if held is not None:
                    node = self.columns.nodes[row]
                    if node is None or not held.usable_on(node):
                        return None
                    continue
                if not self._offered(use, row):
                    return None
                needed = self.extended_spec(use, row)
                if needed is not None:
                    found.append(
                        ClaimDemand((EXTENDED, number), "extended resources", needed, view.devices, view.unusable)
                    )
        return found

    def _offered(self, use: ClaimUse, row: int) -> bool:
        """Return True if a node that offers extended resources itself has enough left.

        The columns do not count pods whose shape leaves these resources to devices.
        """
        columns = self.columns
        for rid, amount, _ in use.resources:
            offered = columns.alloc_cell[rid][row]
            if offered > 0 and columns.used_cell[rid][row] + self._extended_used(rid, row) + amount > offered:
                return False
        return True

    def _extended_used(self, rid: int, row: int) -> float:
        return sum(
            amount
            for record in self.columns.pods[row].values()
            for use in record.shape.claims
            for known, amount, _ in use.resources
            if known == rid
        )

    def extended_spec(self, use: ClaimUse, row: int) -> ClaimSpec | None:
        """Return the claim for a pod's extended resources on a row; None if the node offers them itself."""
        spec, offered = self.extended_requests(use, row)
        if not spec.devices.requests:
            return None
        return self.specs.of_spec(spec, (use.key, offered) if offered else use.key, "extended resources")

    def extended_requests(self, use: ClaimUse, row: int) -> tuple[ResourceClaimSpec, tuple[int, ...]]:
        """Return the requests for extended resources that a node does not offer, and the ids of those it offers."""
        offered = tuple(rid for rid, _, _ in use.resources if self.columns.alloc_cell[rid][row] > 0)
        if not offered:
            return use.spec, ()
        served = {name for rid, _, names in use.resources if rid in offered for name in names}
        left = [request for request in use.spec.devices.requests if request.name not in served]
        return ResourceClaimSpec(devices=DeviceClaim(requests=left)), offered

    def _demand(self, claim: Hashable, name: str, spec: ClaimSpec, rows: Sequence[int]) -> ClaimDemand:
        first = self.view(rows[0])
        devices = first.devices
        for row in dict.fromkeys(rows[1:]):
            there = set(self.view(row).devices)
            devices = [device for device in devices if device in there]
        return ClaimDemand(claim, name, spec, devices, first.unusable)

    def with_competing(self, demands: Sequence[ClaimDemand], rows: Iterable[int]) -> list[ClaimDemand]:
        """Return the claims of a pod with all pending claims that may use the same devices."""
        mine = {demand.claim for demand in demands}
        where = dict.fromkeys(rows)
        if any(self.view(row).shared for row in where):
            where |= {row: None for key, at in self._pending.items() for row in at if self._reaches_beyond(key)}
        keys = {key: None for row in where for key in self._pending_at.get(row, ())}
        others = [self._pending_demand(key) for key in keys if key not in mine]
        return [each for each in others if each is not None] + list(demands)

    def _reaches_beyond(self, key: ClaimKey) -> bool:
        """Return True if a pending claim competes for devices with claims on other nodes."""
        if len(self._pending[key]) > 1:
            return True
        if key in self._extended:
            spec = self.extended_spec(self._extended[key][1], self._pending[key][0])
        else:
            spec = self.specs.of(claim) if (claim := self.claim(key)) is not None else None
        return spec is not None and self._may_share(spec)

    def _may_share(self, spec: ClaimSpec) -> bool:
        """Return True if a claim may get devices that several nodes can use."""
        if spec.reaches[0] != self.inventory.version:
            requests = [request for alternatives in spec.requests for request in alternatives]
            devices = self.inventory.shared_devices()
            found = any(each.selects(device, self.selectors) is not False for device in devices for each in requests)
            spec.reaches = self.inventory.version, found
        return spec.reaches[1]

    def _pending_demand(self, key: ClaimKey) -> ClaimDemand | None:
        rows = self._pending[key]
        if key in self._extended:
            spec = self.extended_spec(self._extended[key][1], rows[0])
            return None if spec is None else self._demand(key, "extended resources", spec, rows)
        claim = self.claim(key)
        return None if claim is None else self._demand(key, "/".join(key), self.specs.of(claim), rows)

    def pending(self, key: ClaimKey) -> tuple[int, ...]:
        """Return the rows of the placed consumers of an unallocated claim."""
        return self._pending.get(key, ())

    def specs_of(self, shape: Shape) -> list[DeviceClaim]:
        """Return the claims of a shape."""
        found = []
        for use in shape.claims:
            if use.kind == NAMED:
                claim = self.claim(use.claim)
                found += [claim.spec.devices] if claim is not None else []
            else:
                found.append(use.spec.devices)
        return found

    def can_share_devices(self, shape: Shape) -> bool:
        """Return True if a claim without devices may get some that several nodes can use."""
        if not self.inventory.shared:
            return False
        compiled = [
            self.specs.of_spec(use.spec, use.key, shape.namespace)
            for use in shape.claims
            if use.kind in (OWN, EXTENDED)
        ]
        named = [use.claim for use in shape.claims if use.kind == NAMED and use.claim not in self.holdings.claims]
        compiled += [self.specs.of(claim) for key in named if (claim := self.claim(key)) is not None]
        return any(self._may_share(spec) for spec in compiled)

    def is_pending(self, row: int) -> bool:
        """Return True if claims of placed pods wait for devices on the row."""
        return row in self._pending_at

    def waiting_rows(self) -> list[int]:
        """Return the rows where claims of placed pods wait for devices."""
        return list(self._pending_at)

    def pending_rows(self, shape: Shape) -> tuple[int, ...]:
        """Return the rows where claims of a shape are pending already."""
        rows: dict[int, None] = {}
        for use in shape.claims:
            if use.kind == NAMED:
                rows.update(dict.fromkeys(self._pending.get(use.claim, ())))
        return tuple(rows)

    # ---- answers

    def counted(self, shape: Shape) -> Simple | None:
        """Return the only claim of a shape if counting devices decides its allocation."""
        spec = self.own_spec(shape)
        return simple(spec) if spec is not None else None

    def own_spec(self, shape: Shape) -> ClaimSpec | None:
        """Return the only claim of a shape if each pod gets one of its own."""
        if len(shape.claims) != 1 or shape.claims[0].kind != OWN:
            return None
        use = shape.claims[0]
        return self.specs.of_spec(use.spec, use.key, shape.namespace)

    def slots(self, claim: Simple, row: int) -> int | None:
        """Return how many claims like this one a row can serve; None if counting cannot decide."""
        view = self.view(row)
        if view.shared or row in self._pending_at:
            return None
        try:
            return slots(claim, free(claim, view.devices, self.holdings, self.selectors))
        except NotSimple:
            return None

    def solve(self, shape: Shape, row: int) -> Solution | None:
        """Return devices for a pod of this shape on a row, after existing and pending allocations.

        Raises AllocationError and SelectorFailure.
        """
        demands = self.demands(shape, row)
        if demands is None:
            return None
        if not demands:
            return {}
        rows = (row, *self.pending_rows(shape))
        return Allocator(self.with_competing(demands, rows), self.holdings, self.selectors).solve()

    def possible(self, shape: Shape, row: int) -> bool:
        """Return True if the pod would fit without any allocation, so that evictions may help."""
        demands = self.demands(shape, row)
        if demands is None:
            return False
        usage: Usage = Unused()
        return Allocator(demands, usage, self.selectors).solve() is not None

    def settle_pod(self, record: PodRecord) -> dict[ClaimKey, tuple[ClaimSpec, Any]] | None:
        """Return devices for the unallocated claims of a placed pod, chosen together with competing pending claims.

        None: there are too few. Raises AllocationError and SelectorFailure.
        """
        keys = [key for key in (*record.claims, extended_key(record)) if key in self._pending]
        if not keys:
            return {}
        rows = tuple(dict.fromkeys(row for key in keys for row in self._pending[key]))
        if len(rows) == 1 and len(keys) == 1 and (quick := self._settle_one(keys[0], rows[0])) is not None:
            return quick
        demands = self.with_competing([], rows)
        solution = Allocator(demands, self.holdings, self.selectors).solve()
        if solution is None:
            return None
        specs = {demand.claim: demand.spec for demand in demands}
        return {key: (specs[key], solution[key]) for key in keys if key in solution}

    def _settle_one(self, key: ClaimKey, row: int) -> dict[ClaimKey, tuple[ClaimSpec, Any]] | None:
        """Return devices for a claim if all pending claims on its row are equal; None: use the allocator."""
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
