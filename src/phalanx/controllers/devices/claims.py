"""Keep reservedFor of ResourceClaims: remove deleted consumers, add pods that got a node without this scheduler, and
deallocate unused claims.

A claim that is being deleted loses its finalizer once nothing is allocated.
"""

from __future__ import annotations

import msgspec

from phalanx.base import resources as r
from phalanx.base.errors import Conflict, NotFound
from phalanx.controllers.devices.consumers import claims_on_node, group_of, missing_consumer
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.runtime.pods import finished
from phalanx.model.objects.devices import CLAIM_FINALIZER


class ResourceClaimsController(Controller):
    name = "resource claims"
    workers = 8

    def __init__(self, caches: Caches) -> None:
        super().__init__()
        self._client = caches.client
        self._claims = caches.of(r.RESOURCE_CLAIMS)
        self._pods = caches.of(r.PODS)
        self._groups = caches.of(r.POD_GROUPS, optional=True)
        self._claims.index("consumer", _consumers)
        self._pods.index("claim on a node", claims_on_node)
        self._claims.on_change(self._claim_changed)
        self._pods.on_change(self._pod_changed)
        self._groups.on_change(self._group_changed)

    # ---- requeues

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None:
            self.queue.add(key)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        pod = new if new is not None else old
        if pod is not None and (new is None or finished(new)):
            self._requeue_claims(pod["metadata"]["uid"])
        if new is not None and (found := claims_on_node(new)) and (old is None or found != claims_on_node(old)):
            for claim in found:
                self.queue.add(Key(*claim.split("/")))

    def _group_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None and old is not None:
            self._requeue_claims(old["metadata"]["uid"])

    def _requeue_claims(self, consumer: str) -> None:
        for claim in self._claims.by_index("consumer", consumer):
            self.queue.add(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]))

    # ---- one claim

    async def reconcile(self, key: Key) -> None:
        claim = self._claims.get(*key)
        if claim is None:
            return
        try:
            await self._release_unused(claim)
        except (NotFound, Conflict):
            self.queue.add(key)  # changed or deleted meanwhile: its watch event will follow

    async def _release_unused(self, claim: Json) -> None:
        status: Json = claim.get("status") or {}
        reserved: list[Json] = status.get("reservedFor") or []
        left = [each for each in reserved if await self._exists(claim, each)]
        if status.get("allocation"):
            left += self._on_nodes(claim, left)
        unused = not left and bool(status.get("allocation")) and (bool(reserved) or deleting(claim))
        if left != reserved or unused:
            change: Json = {**status, "reservedFor": left or None}
            if unused:
                change["allocation"] = change["devices"] = None
            claim = await self._update({**claim, "status": change}, "status")
            status = claim.get("status") or {}
        finalizers = claim["metadata"].get("finalizers") or []
        # The scheduler adds the finalizer before it writes an allocation: keep it unless the claim is finished.
        done = unused or deleting(claim)
        if done and not status.get("allocation") and CLAIM_FINALIZER in finalizers:
            meta = {**claim["metadata"], "finalizers": [each for each in finalizers if each != CLAIM_FINALIZER] or None}
            claim = await self._update({**claim, "metadata": meta})
        await self._delete_with_owner(claim)

    def _on_nodes(self, claim: Json, reserved: list[Json]) -> list[Json]:
        """Return the consumers missing in reservedFor: someone bound a pod by its nodeName, or edited the claim."""
        namespace, found = claim["metadata"]["namespace"], list[Json]()
        for pod in self._pods.by_index("claim on a node", f"{namespace}/{claim['metadata']['name']}"):
            group = self._groups.get(namespace, name) if (name := group_of(pod)) else None
            consumer = missing_consumer(pod, group, claim, reserved + found)
            if consumer is not None:
                found.append(consumer)
        return found

    async def _delete_with_owner(self, claim: Json) -> None:
        """Delete a claim that was created for a pod which has finished; the garbage collector handles deleted pods."""
        owner = controller_of(claim)
        if owner is None or owner.get("kind") != "Pod" or deleting(claim):
            return
        pod = self._pods.get(claim["metadata"]["namespace"], owner["name"])
        if pod is not None and pod["metadata"]["uid"] == owner["uid"] and finished(pod):
            await self._claims.delete(claim)

    async def _exists(self, claim: Json, consumer: Json) -> bool:
        """Return True if an entry of reservedFor still exists. Unknown kinds count as existing."""
        resource = consumer.get("resource")
        if resource not in ("pods", "podgroups"):
            return True
        cache = self._pods if resource == "pods" else self._groups
        namespace, name = claim["metadata"]["namespace"], consumer.get("name") or ""
        found = cache.get(namespace, name)
        if found is None:  # the cache may be older than the reservation
            try:
                found = msgspec.json.decode(await self._client.get(cache.resource, name, namespace))
            except NotFound:
                return False
        same = found["metadata"]["uid"] == consumer.get("uid")
        return same and not (resource == "pods" and (finished(found) or _never_started(found)))

    async def _update(self, claim: Json, subresource: str = "") -> Json:
        """Write a claim; the cache has the answer at once."""
        meta = claim["metadata"]
        answer: Json = msgspec.json.decode(
            await self._client.update(
                r.RESOURCE_CLAIMS, meta["name"], claim, meta["namespace"], subresource=subresource
            )
        )
        if not deleting(answer):
            self._claims.remember(answer)
        return answer


def _never_started(pod: Json) -> bool:
    """Return True for a pod that is deleted before it got a node: it will never use its claims."""
    return deleting(pod) and not (pod.get("spec") or {}).get("nodeName")


def _consumers(claim: Json) -> list[str]:
    """Cache index: uids of the entries of reservedFor, and of the owner."""
    found = [each.get("uid") or "" for each in (claim.get("status") or {}).get("reservedFor") or ()]
    return found + [ref["uid"] for ref in claim["metadata"].get("ownerReferences") or ()]
