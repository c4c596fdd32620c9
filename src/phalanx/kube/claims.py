"""Write the scheduler's decisions about ResourceClaims: the finalizer, then allocation and reservation in one update.

Two writes to one claim never overlap; after a conflict with another writer the claim is read again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import Conflict, Invalid, NotFound
from phalanx.base.resources import PODS, RESOURCE_CLAIMS
from phalanx.base.retry import delay, retrying
from phalanx.engine import decisions as d
from phalanx.model.kinds import Json
from phalanx.model.objects.devices import CLAIM_FINALIZER, EXTENDED_CLAIM_ANNOTATION, AllocationResult

CONFLICTS = 8  # attempts of one write

log = logging.getLogger(__name__)


class _Lock:
    """The lock of one claim; removed when its last user leaves."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class ClaimWriter:
    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng
        self._locks: dict[str, _Lock] = {}

    async def perform(self, decision: d.ReserveClaim | d.ReleaseClaim | d.CreateExtendedClaim) -> None:
        """Write a decision about a claim to the API server, one at a time for each claim. Raises ApiProblem."""
        extended = isinstance(decision, d.CreateExtendedClaim) or (
            isinstance(decision, d.ReleaseClaim) and decision.extended
        )
        pod = decision.pod if isinstance(decision, d.ReleaseClaim) else decision.uid
        key = pod if extended else decision.uid
        held = self._locks.setdefault(key, _Lock())
        held.users += 1
        try:
            async with held.lock:
                match decision:
                    case d.ReserveClaim():
                        await self._reserve(decision)
                    case d.CreateExtendedClaim():
                        await self._create(decision)
                    case d.ReleaseClaim(extended=True):
                        await self._delete_extended(decision)
                    case d.ReleaseClaim():
                        await self._release(decision)
        finally:
            held.users -= 1
            if not held.users:
                self._locks.pop(key, None)

    # ---- one claim

    async def _reserve(self, decision: d.ReserveClaim) -> None:
        consumer = msgspec.to_builtins(decision.consumer)

        def change(claim: Json) -> Json | None:
            status: Json = claim.get("status") or {}
            if decision.allocation is not None and not status.get("allocation"):
                status["allocation"] = self._allocation(decision.allocation)
            elif decision.allocation is not None and not _same_devices(status["allocation"], decision.allocation):
                raise Conflict(f"claim {decision.namespace}/{decision.name} got allocated elsewhere in the meantime")
            elif not status.get("allocation"):
                raise Conflict(f"claim {decision.namespace}/{decision.name} got deallocated elsewhere in the meantime")
            reserved = status.setdefault("reservedFor", [])
            if any(each.get("uid") == decision.consumer.uid for each in reserved):
                return None
            reserved.append(consumer)
            return status

        await self._write_status(decision.namespace, decision.name, decision.uid, change, finalizer=True)

    async def _release(self, decision: d.ReleaseClaim) -> None:
        def change(claim: Json) -> Json | None:
            status: Json = claim.get("status") or {}
            before = status.get("reservedFor") or []
            left = [each for each in before if each.get("uid") != decision.pod]
            status["reservedFor"] = left
            free = decision.deallocate and not left and bool(status.get("allocation"))
            if free:
                status["allocation"] = None
                status["devices"] = None
            return status if free or len(left) != len(before) else None

        try:
            await self._write_status(decision.namespace, decision.name, decision.uid, change, finalizer=False)
        except NotFound:
            return

    async def _write_status(
        self, namespace: str, name: str, uid: str, change: Callable[[Json], Json | None], *, finalizer: bool
    ) -> Json:
        """Read the claim, change its status and write it. `change` returns None if there is nothing to write."""
        client = self._client
        for attempt in range(CONFLICTS):
            claim: Json = msgspec.json.decode(
                await retrying(lambda: client.get(RESOURCE_CLAIMS, name, namespace), self._rng)
            )
            meta: Json = claim["metadata"]
            if uid and meta.get("uid") != uid:
                raise NotFound(f"resourceclaim {namespace}/{name} was replaced by another of the same name")
            if finalizer and meta.get("deletionTimestamp"):
                raise Conflict(f"claim {namespace}/{name} got deleted in the meantime")
            status = change(claim)
            if status is None:
                return claim
            try:
                if finalizer and CLAIM_FINALIZER not in (meta.get("finalizers") or ()):
                    claim = await self._add_finalizer(claim)
                claim["status"] = status
                answer = await client.update(RESOURCE_CLAIMS, name, claim, namespace, subresource="status")
                found: Json = msgspec.json.decode(answer)
                return found
            except Conflict as conflict:
                if attempt == CONFLICTS - 1:
                    raise
                await asyncio.sleep(delay(0, conflict, self._rng))
        raise AssertionError("unreachable: the loop returns or raises")

    async def _add_finalizer(self, claim: Json) -> Json:
        """Add the finalizer that protects an allocated claim from deletion.

        kube-apiserver returns the parameters for a driver without blanks, but compares their bytes. If they were stored
        with blanks, it rejects every JSON write of the object as a change; its status can still be written.
        """
        meta: Json = claim["metadata"]
        finalizers = [*(meta.get("finalizers") or ()), CLAIM_FINALIZER]
        body = {**claim, "metadata": {**meta, "finalizers": finalizers}, "status": None}
        try:
            answer = await self._client.update(RESOURCE_CLAIMS, meta["name"], body, meta["namespace"])
        except Invalid as problem:
            if not (claim["spec"].get("devices") or {}).get("config"):
                raise
            log.warning("ResourceClaim %s/%s gets no finalizer: %s", meta["namespace"], meta["name"], problem)
            return claim
        written: Json = msgspec.json.decode(answer)
        return written

    def _allocation(self, allocation: AllocationResult) -> Json:
        found: Json = msgspec.to_builtins(allocation)
        found["allocationTimestamp"] = rfc3339(self._clock.now())
        return found

    # ---- claims of extended resources

    async def _create(self, decision: d.CreateExtendedClaim) -> None:
        claim = await self._extended_claim(decision.namespace, decision.uid)
        if claim is None:
            body = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "generateName": f"{decision.name}-extended-resources-",
                    "namespace": decision.namespace,
                    "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
                    "finalizers": [CLAIM_FINALIZER],
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Pod", "name": decision.name, "uid": decision.uid,
                         "controller": True}
                    ],
                },
                "spec": msgspec.to_builtins(decision.spec),
            }  # fmt: skip
            claim = msgspec.json.decode(await self._client.create(RESOURCE_CLAIMS, body, decision.namespace))
        consumer = {"resource": "pods", "name": decision.name, "uid": decision.uid}

        def change(found: Json) -> Json | None:
            if (found.get("status") or {}).get("allocation"):
                return None
            return {"allocation": self._allocation(decision.allocation), "reservedFor": [consumer]}

        meta = claim["metadata"]
        await self._write_status(decision.namespace, meta["name"], meta["uid"], change, finalizer=True)
        mappings = [
            {"containerName": container, "resourceName": resource, "requestName": request}
            for container, resource, request in decision.mappings
        ]
        status = {"resourceClaimName": meta["name"], "requestMappings": mappings}
        patch = {"metadata": {"uid": decision.uid}, "status": {"extendedResourceClaimStatus": status}}
        await retrying(
            lambda: self._client.patch(PODS, decision.name, patch, decision.namespace, subresource="status"), self._rng
        )

    async def _extended_claim(self, namespace: str, pod_uid: str) -> Json | None:
        """Return the claim that an earlier attempt created for the pod."""
        answer = await retrying(lambda: self._client.list(RESOURCE_CLAIMS, namespace), self._rng)
        for claim in msgspec.json.decode(answer).get("items") or ():
            meta: Json = claim["metadata"]
            owned = any(ref.get("uid") == pod_uid for ref in meta.get("ownerReferences") or ())
            if owned and (meta.get("annotations") or {}).get(EXTENDED_CLAIM_ANNOTATION) == "true":
                found: Json = claim
                return found
        return None

    async def _delete_extended(self, decision: d.ReleaseClaim) -> None:
        claim = await self._extended_claim(decision.namespace, decision.pod)
        if claim is None:
            return
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]

        def free(found: Json) -> Json | None:
            return {**(found.get("status") or {}), "allocation": None, "reservedFor": None, "devices": None}

        try:
            claim = await self._write_status(decision.namespace, name, uid, free, finalizer=False)
            left = [each for each in claim["metadata"].get("finalizers") or () if each != CLAIM_FINALIZER]
            claim["metadata"]["finalizers"] = left
            await self._client.update(RESOURCE_CLAIMS, name, claim, decision.namespace)
            await self._client.delete(RESOURCE_CLAIMS, name, decision.namespace, uid=uid)
        except NotFound:
            return


def _same_devices(written: Json, wanted: AllocationResult) -> bool:
    """Return True if the claim has the devices that were chosen; another pod may have reserved the claim first."""
    results = (written.get("devices") or {}).get("results") or []
    chosen = [(each.request, each.driver, each.pool, each.device) for each in wanted.devices.results]
    return [(each["request"], each["driver"], each["pool"], each["device"]) for each in results] == chosen
