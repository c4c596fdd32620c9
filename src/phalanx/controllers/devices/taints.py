"""Evict pods because of device taints (KEP-5055).

A pod is evicted if a device of its claims has a NoExecute taint (of its ResourceSlice or a DeviceTaintRule) that the
request does not tolerate, or tolerates only for a limited time.
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.base import resources as r
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import NotFound
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import index_by_group

NO_EXECUTE = "NoExecute"


class DeviceTaintEviction(Controller):
    """Evicts pods because of device taints. Keys are claims."""

    name = "device taints"

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._client, self._clock, self._events = caches.client, clock, events
        self._claims = caches.of(r.RESOURCE_CLAIMS)
        self._slices = caches.of(r.RESOURCE_SLICES)
        self._rules = caches.of(r.DEVICE_TAINT_RULES)
        self._pods = caches.of(r.PODS)
        self._claims.index("pool", _pools)
        self._pods.index("group", index_by_group)
        self._slices.index("pool", lambda each: [_pool(each["spec"])])
        self._claims.on_change(self._claim_changed)
        self._slices.on_change(self._slice_changed)
        self._rules.on_change(self._rule_changed)

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and (new.get("status") or {}).get("allocation"):
            self.queue.add(key)

    def _slice_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and any(_no_execute(device) for device in new["spec"].get("devices") or ()):
            for claim in self._claims.by_index("pool", _pool(new["spec"])):
                self.queue.add(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]))

    def _rule_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or ((new.get("spec") or {}).get("taint") or {}).get("effect") != NO_EXECUTE:
            return
        for claim in self._claims:
            if (claim.get("status") or {}).get("allocation"):
                self.queue.add(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        claim = self._claims.get(*key)
        if claim is None:
            return
        results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
        due = min((when for result in results for when in self._ends(result)), default=None)
        if due is None:
            return
        now = self._clock.now()
        if due > now:
            self.queue.add_after(key, due - now)
            return
        for consumer in (claim.get("status") or {}).get("reservedFor") or ():
            for name, uid in self._pods_of(key, consumer):
                await self._evict(key.namespace, name, uid)

    def _pods_of(self, claim: Key, consumer: Json) -> Iterator[tuple[str, str]]:
        """Yield (name, uid) of the pods behind an entry of reservedFor: the pod, or the members of the PodGroup."""
        name = consumer.get("name") or ""
        if consumer.get("resource") == "pods":
            yield name, consumer.get("uid") or ""
        elif consumer.get("resource") == "podgroups":
            for pod in self._pods.by_index("group", f"{claim.namespace}/{name}"):
                if _uses(pod, claim.name):
                    yield pod["metadata"]["name"], pod["metadata"]["uid"]

    def _ends(self, result: Json) -> Iterator[float]:
        """Yield when the taints of a device cause eviction; nothing for taints that are tolerated for ever."""
        tolerations = result.get("tolerations") or ()
        for taint in self._taints(result):
            mine = [each for each in tolerations if _tolerates(each, taint)]
            seconds = [each.get("tolerationSeconds") for each in mine]
            if mine and all(each is None for each in seconds):
                continue
            added = parse_rfc3339(taint["timeAdded"]) if taint.get("timeAdded") else self._clock.now()
            yield added + max(0, min((each for each in seconds if each is not None), default=0))

    def _taints(self, result: Json) -> Iterator[Json]:
        driver, pool, name = result["driver"], result["pool"], result["device"]
        slices = self._slices.by_index("pool", f"{driver}/{pool}")
        newest = max((each["spec"]["pool"].get("generation") or 0 for each in slices), default=0)
        for each in slices:
            if (each["spec"]["pool"].get("generation") or 0) == newest:
                for device in each["spec"].get("devices") or ():
                    if device["name"] == name:
                        yield from _no_execute(device)
        for rule in self._rules:
            spec: Json = rule.get("spec") or {}
            selector, taint = spec.get("deviceSelector"), spec.get("taint") or {}
            if selector is None or taint.get("effect") != NO_EXECUTE:
                continue
            wanted = {"driver": driver, "pool": pool, "device": name}
            if all(selector.get(field) in (None, value) for field, value in wanted.items()):
                yield taint

    async def _evict(self, namespace: str, name: str, uid: str) -> None:
        pod = self._pods.get(namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid or deleting(pod):
            return
        meta = pod["metadata"]
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        patch = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(
                r.PODS,
                meta["name"],
                patch,
                meta["namespace"],
                patch_type="application/strategic-merge-patch+json",
                subresource="status",
            )
            self._events.normal(pod, self.name, "DeviceTaintManagerEviction", "Marking for deletion")
            await self._pods.delete(pod)
        except NotFound:
            return


def _uses(pod: Json, claim: str) -> bool:
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    entries = (pod.get("spec") or {}).get("resourceClaims") or ()
    return any(each.get("resourceClaimName") == claim for each in (*statuses, *entries))


def _no_execute(device: Json) -> list[Json]:
    return [taint for taint in device.get("taints") or () if taint.get("effect") == NO_EXECUTE]


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return (toleration.get("value") or "") == (taint.get("value") or "")


def _pool(spec: Json) -> str:
    return f"{spec['driver']}/{spec['pool']['name']}"


def _pools(claim: Json) -> list[str]:
    """Cache index: pools from which a claim has devices."""
    results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
    return list(dict.fromkeys(f"{each['driver']}/{each['pool']}" for each in results))
