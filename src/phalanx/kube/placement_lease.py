"""Let several Phalanx schedulers of one cluster place pods in turns, so that two never use the same free resources.

They share one Lease. Its holder may bind; the others add their identity to the annotation `waiting` and get the Lease
in that order. Compared with nominations, a Lease costs one write per turn instead of one per pod, needs no time for
objections, and exists in every cluster. The holder writes into the annotation `through` the revisions up to which it
wrote, per resource; the next holder places no pod before its informers have reached them.

A scheduler without competitors writes the Lease once and keeps it without renewing it: it only reads the Lease while it
has work. If a request is not answered for TAKEOVER seconds, the holder counts as gone. The holder stops earlier: it
binds only within TRUSTED seconds after a read that showed no other holder.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem, Conflict, Forbidden, NotFound
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.resources import LEASES
from phalanx.model.kinds import Json

log = logging.getLogger(__name__)

PLACEMENT_LEASE = "kube-system/phalanx-placement"  # the same for every installation in a cluster
WAITING = "scheduling.phalanx.dev/waiting"  # annotation: JSON list of identities, the next holder first
THROUGH = "scheduling.phalanx.dev/through"  # annotation: JSON object, plural -> revision
TAKEOVER = 5.0  # seconds without an answer after which the holder counts as gone
TRUSTED = 4.0  # seconds after a read in which the Lease cannot have been taken over
FRESH = 2.0  # seconds after a read in which it is not read again
PATIENCE = 0.5  # longest wait of one `acquire` and of one call, in seconds
WITHOUT = 60.0  # seconds until a forbidden Lease is requested again


class PlacementLease:
    """Hold, request and hand over the Lease. `run` watches it; the scheduler calls `acquire` and `hand_over`."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        rng: random.Random,
        identity: str,
        changed: Callable[[], None],
        *,
        lease: str = PLACEMENT_LEASE,
    ) -> None:
        """Create the client side of the Lease; nothing is requested yet.

        lease: "namespace/name". identity: equal for processes of which only one can run at a time, so that a restarted
        process need not wait. changed: called when another scheduler wrote the Lease.
        """
        self._client, self._clock = client, clock
        self._identity, self._changed = identity, changed
        self._namespace, _, self._name = lease.partition("/")
        self._lease: Json | None = None  # as last read
        self._changed_at = clock.monotonic()  # when its last change was seen
        self._verified = float("-inf")  # time before the last read or write that showed this scheduler as the holder
        self._without_until = float("-inf")  # schedule without the Lease until then: access is forbidden
        self._updates = asyncio.Event()
        self._informer: Informer[Json] = Informer(
            client,
            LEASES,
            dict,
            self._sink,
            namespace=self._namespace,
            rng=rng,
            fields=f"metadata.name={self._name}",
        )

    async def run(self) -> None:
        await self._informer.run()

    # ---- what is known

    @property
    def holds(self) -> bool:
        """Return True if no other Phalanx scheduler may bind now."""
        now = self._clock.monotonic()
        return now < self._without_until or (self._is_holder and now - self._verified < TRUSTED)

    @property
    def fresh(self) -> bool:
        now = self._clock.monotonic()
        return now < self._without_until or (self._is_holder and now - self._verified < FRESH)

    @property
    def contended(self) -> bool:
        """Return True if other schedulers wait for the Lease."""
        return self._is_holder and any(each != self._identity for each in _waiting(self._lease))

    @property
    def through(self) -> dict[str, int]:
        """Return the revision per resource up to which earlier holders wrote."""
        return _through(self._lease)

    @property
    def _is_holder(self) -> bool:
        return _holder(self._lease) == self._identity

    def _sink(self, change: ObjectChange[Json]) -> None:
        lease = change.object
        if lease is not None and self._lease is not None and _revision(lease) <= _revision(self._lease):
            return  # already known from a read
        self._set_lease(lease)
        self._changed()

    def _set_lease(self, lease: Json | None) -> None:
        if (lease is None) != (self._lease is None) or (lease and _revision(lease) != _revision(self._lease or {})):
            self._changed_at = self._clock.monotonic()
        self._lease = lease
        self._updates.set()

    # ---- turns

    async def acquire(self) -> bool:
        """Read the Lease, take it if it is free, else request it.

        Return True if this scheduler holds it now; wait at most PATIENCE seconds for it.
        """
        try:
            async with asyncio.timeout(2 * PATIENCE):
                if await self._acquire():
                    return True
        except Forbidden as problem:
            log.warning(
                "no right to use the lease %s/%s (%s): placing pods without regard to other Phalanx schedulers; apply "
                "deploy/base/20-rbac.yaml",
                *(self._namespace, self._name, problem),
            )
            self._without_until = self._clock.monotonic() + WITHOUT
            return True
        except (ApiProblem, TimeoutError, msgspec.DecodeError) as problem:
            log.info("requesting the lease %s: %s", self._name, str(problem) or "timed out")
        await self._wait_for_handover()
        return False

    async def _wait_for_handover(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._is_holder:
                    self._updates.clear()
                    await self._updates.wait()
        except TimeoutError:
            return

    async def _acquire(self) -> bool:
        began = self._clock.monotonic()
        try:
            self._set_lease(_read(await self._client.get(LEASES, self._name, self._namespace)))
        except NotFound:
            return await self._create()
        holder, waiting = _holder(self._lease), _waiting(self._lease)
        if holder == self._identity:
            self._verified = began
            return True
        others = [each for each in waiting if each != self._identity]
        if not holder or (self._identity in waiting and began - self._changed_at >= TAKEOVER):
            if holder:
                log.warning("%s did not hand over the lease %s: taking it", holder, self._name)
            return await self._write(self._identity, others, {})
        if self._identity not in waiting:
            await self._write(holder, [*waiting, self._identity], {})
        return False

    async def hand_over(self, written: Mapping[str, int], *, again: bool) -> bool:
        """Pass the Lease to the next waiting scheduler, or release it if none waits; return False to try again.

        written: revision per resource that the next holder must have seen. again: request the Lease in the same write.
        """
        waiting = [each for each in _waiting(self._lease) if each != self._identity]
        if not self._is_holder:
            return True
        after = waiting[1:] + ([self._identity] if again and waiting else [])
        try:
            async with asyncio.timeout(2 * PATIENCE):
                if await self._write(waiting[0] if waiting else "", after, written):
                    return True
                self._set_lease(_read(await self._client.get(LEASES, self._name, self._namespace)))
        except NotFound:
            self._set_lease(None)
            return True
        except (ApiProblem, TimeoutError, msgspec.DecodeError) as problem:
            log.info("handing over the lease %s: %s", self._name, str(problem) or "timed out")
            self._verified = float("-inf")
            return True  # the result is unknown: the next `acquire` reads it
        return False

    async def renew(self) -> None:
        """Renew the Lease so that waiting schedulers see that this one is alive while its last writes take long."""
        if self._is_holder and self._clock.monotonic() - self._changed_at >= FRESH:
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    await self._write(self._identity, _waiting(self._lease), {})
            except (ApiProblem, TimeoutError) as problem:
                log.info("renewing the lease %s: %s", self._name, str(problem) or "timed out")

    # ---- writes

    async def _write(self, holder: str, waiting: list[str], written: Mapping[str, int]) -> bool:
        """Replace the version that was read last; return False if another scheduler wrote first."""
        assert self._lease is not None
        meta, before = self._lease["metadata"], self._lease.get("spec") or {}
        through = {**self.through}
        for plural, revision in written.items():
            through[plural] = max(revision, through.get(plural, 0))
        annotations = {
            **(meta.get("annotations") or {}),
            WAITING: msgspec.json.encode(waiting).decode(),
            THROUGH: msgspec.json.encode(through).decode(),
        }
        now = rfc3339_micro(self._clock.now())
        spec = {**before, "holderIdentity": holder, "renewTime": now}
        if holder != _holder(self._lease):
            spec |= {"acquireTime": now, "leaseTransitions": int(before.get("leaseTransitions") or 0) + 1}
        body = {**self._lease, "metadata": {**meta, "annotations": annotations}, "spec": spec}
        began = self._clock.monotonic()
        try:
            self._set_lease(_read(await self._client.update(LEASES, self._name, body, self._namespace)))
        except Conflict:
            return False
        if holder == self._identity:
            self._verified = began
        return True

    async def _create(self) -> bool:
        now = rfc3339_micro(self._clock.now())
        body: Json = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {"holderIdentity": self._identity, "acquireTime": now, "renewTime": now, "leaseTransitions": 0},
        }
        began = self._clock.monotonic()
        try:
            self._set_lease(_read(await self._client.create(LEASES, body, self._namespace)))
        except AlreadyExists:
            return False
        self._verified = began
        return True


def _read(body: bytes) -> Json:
    return msgspec.json.decode(body, type=Json)


def _revision(lease: Json) -> int:
    text = str((lease.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0


def _holder(lease: Json | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def _annotation(lease: Json | None, name: str) -> Any:
    text = (((lease or {}).get("metadata") or {}).get("annotations") or {}).get(name) or "null"
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None  # not JSON: edited by a user


def _waiting(lease: Json | None) -> list[str]:
    found = _annotation(lease, WAITING)
    return [str(each) for each in found] if isinstance(found, list) else []


def _through(lease: Json | None) -> dict[str, int]:
    found = _annotation(lease, THROUGH)
    if not isinstance(found, dict):
        return {}
    return {plural: revision for plural, revision in found.items() if isinstance(revision, int)}
