"""Evict pods because of device taints (KEP-5055).

A pod is evicted if a device of its claims has a NoExecute taint (of its ResourceSlice or a DeviceTaintRule) that the
request does not tolerate, or tolerates only for a limited time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import NotFound
from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import index_by_group
from phalanx.model.objects.devices import DeviceTaint, DeviceToleration
from phalanx.model.tolerations import NO_EXECUTE, tolerates_device

_IDENTITY = ("driver", "pool", "device")


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
        self.evicted: Counter[str] = Counter()  # pods evicted by this process, by uid of the rule
        self.on_eviction: list[Callable[[Json], None]] = []  # called with the rule
        self._claims.index("pool", _pools)
        self._pods.index("group", index_by_group)
        self._slices.index("pool", lambda each: [_pool(each["spec"])])
        self._claims.on_change(self._claim_changed)
        self._slices.on_change(self._slice_changed)
        self._rules.on_change(self._rule_changed)

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and allocated(new):
            self.queue.add(key)

    def _slice_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and any(_no_execute(device) for device in new["spec"].get("devices") or ()):
            for claim in self._claims.by_index("pool", _pool(new["spec"])):
                self.queue.add(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]))

    def _rule_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or not no_execute(new):
            return
        for claim in self._claims:
            if allocated(claim):
                self.queue.add(Key(claim["metadata"]["namespace"], claim["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        claim = self._claims.get(*key)
        if claim is None:
            return
        results = allocated(claim)
        due = min((when for result in results for when in self._ends(result)), default=None)
        if due is None:
            return
        now = self._clock.now()
        if due > now:
            self.queue.add_after(key, due - now)
            return
        for pod in self.pods_of(claim):
            if await self._evict(pod):
                for rule in self._rules:
                    if any(selects(rule, result) and ends(result, no_execute(rule), now) for result in results):
                        self.evicted[rule["metadata"]["uid"]] += 1
                        for report in self.on_eviction:
                            report(rule)

    def pods_of(self, claim: Json) -> Iterator[Json]:
        """Yield the pods on nodes for which a claim is reserved, themselves or as members of a PodGroup."""
        meta = claim["metadata"]
        for consumer in (claim.get("status") or {}).get("reservedFor") or ():
            found: Iterable[Json | None] = ()
            if consumer.get("resource") == "pods":
                found = (self._pods.get(meta["namespace"], consumer.get("name") or ""),)
            elif consumer.get("resource") == "podgroups":
                found = self._pods.by_index("group", f"{meta['namespace']}/{consumer.get('name')}")
            for pod in found:
                if pod is None or deleting(pod) or not pod["spec"].get("nodeName"):
                    continue
                itself = pod["metadata"]["uid"] == consumer.get("uid")
                if itself or (consumer["resource"] == "podgroups" and _uses(pod, meta["name"])):
                    yield pod

    def _ends(self, result: Json) -> Iterator[float]:
        """Yield when the taints of a device cause eviction; nothing for taints that are tolerated for ever."""
        yield from ends(result, self._taints(result), self._clock.now())

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
            if selects(rule, result):
                yield from no_execute(rule)

    async def _evict(self, pod: Json) -> bool:
        """Delete a pod, with a condition that says why; return False if it was gone."""
        meta = pod["metadata"]
        condition = {
            "type": DISRUPTION_TARGET,
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
            return False
        return True


def allocated(claim: Json) -> list[Json]:
    """Return the devices of a claim: results of its allocation."""
    return (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or []


def selects(rule: Json, device: Json) -> bool:
    """Return True if a rule selects a device, given by driver, pool and device. One without a selector selects none."""
    selector = (rule.get("spec") or {}).get("deviceSelector")
    return selector is not None and all(selector.get(field) in (None, device[field]) for field in _IDENTITY)


def no_execute(rule: Json) -> list[Json]:
    """Return the taint of a rule if it evicts."""
    taint = (rule.get("spec") or {}).get("taint") or {}
    return [taint] if taint.get("effect") == NO_EXECUTE else []


def ends(result: Json, taints: Iterable[Json], now: float) -> list[float]:
    """Return when taints of an allocated device evict its pods; nothing for taints that are tolerated for ever."""
    found = []
    tolerations = msgspec.convert(result.get("tolerations") or [], list[DeviceToleration])
    for taint in taints:
        like = msgspec.convert(taint, DeviceTaint)
        mine = [each for each in tolerations if tolerates_device(each, like)]
        seconds = [each.toleration_seconds for each in mine]
        if not mine or not all(each is None for each in seconds):
            added = parse_rfc3339(taint["timeAdded"]) if taint.get("timeAdded") else now
            found.append(added + max(0, min((each for each in seconds if each is not None), default=0)))
    return found


def _uses(pod: Json, claim: str) -> bool:
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    entries = (pod.get("spec") or {}).get("resourceClaims") or ()
    return any(each.get("resourceClaimName") == claim for each in (*statuses, *entries))


def _no_execute(device: Json) -> list[Json]:
    return [taint for taint in device.get("taints") or () if taint.get("effect") == NO_EXECUTE]


def _pool(spec: Json) -> str:
    return f"{spec['driver']}/{spec['pool']['name']}"


def _pools(claim: Json) -> list[str]:
    """Cache index: pools from which a claim has devices."""
    return list(dict.fromkeys(f"{each['driver']}/{each['pool']}" for each in allocated(claim)))
