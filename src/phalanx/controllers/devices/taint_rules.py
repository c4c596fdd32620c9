"""Report in the status of a DeviceTaintRule how far its evictions are, or what they would be (KEP-5055)."""

from __future__ import annotations

from phalanx.base import resources as r
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import NotFound
from phalanx.controllers.devices.taints import DeviceTaintEviction, allocated, ends, no_execute, selects
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.model.tolerations import NO_EXECUTE

CONDITION = "EvictionInProgress"
PERIOD = 10.0  # seconds between two updates of one status


class DeviceTaintRuleStatus(Controller):
    """Writes the condition EvictionInProgress. Keys are rules."""

    name = "device taint rule status"
    workers = 1

    def __init__(self, caches: Caches, clock: Clock, evictions: DeviceTaintEviction) -> None:
        super().__init__()
        self._client, self._clock, self._evictions = caches.client, clock, evictions
        self._claims = caches.of(r.RESOURCE_CLAIMS)
        self._slices = caches.of(r.RESOURCE_SLICES)
        self._rules = caches.of(r.DEVICE_TAINT_RULES)
        self._rules.on_change(self._rule_changed)
        self._claims.on_change(self._claim_changed)
        evictions.on_eviction.append(self._later)

    def _rule_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and (old is None or new["metadata"].get("generation") != old["metadata"].get("generation")):
            self.queue.add(key)

    def _claim_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for rule in self._rules:
            if no_execute(rule) and any(selects(rule, device) for device in allocated(new or old or {})):
                self._later(rule)

    def _later(self, rule: Json) -> None:
        self.queue.add_after(Key("", rule["metadata"]["name"]), PERIOD)

    async def reconcile(self, key: Key) -> None:
        rule = self._rules.get(*key)
        if rule is None:
            return
        meta, now = rule["metadata"], self._clock.now()
        conditions = (rule.get("status") or {}).get("conditions") or ()
        before: Json = next((each for each in conditions if each["type"] == CONDITION), {})
        generation = meta.get("generation") or 0
        if before.get("observedGeneration") == generation:
            again = parse_rfc3339(before["lastTransitionTime"]) + PERIOD
            if now < again:
                self.queue.add_after(key, again - now)
                return
        status, reason, message = self._progress(rule)
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
        }
        if status == "True":
            self.queue.add_after(key, PERIOD)
        if condition.items() <= before.items():
            return
        body = {
            "metadata": {"uid": meta["uid"]},
            "status": {"conditions": [{**condition, "lastTransitionTime": rfc3339(now)}]},
        }
        try:
            await self._client.patch(r.DEVICE_TAINT_RULES, key.name, body, subresource="status")
        except NotFound:
            return

    def _progress(self, rule: Json) -> tuple[str, str, str]:
        """Return status, reason and message of the condition."""
        taint = rule["spec"].get("taint") or {}
        effect, done = taint.get("effect"), self._evictions.evicted[rule["metadata"]["uid"]]
        status, reason, message = "False", "OtherEffect", "Eviction only happens for the NoExecute effect."
        if effect == NO_EXECUTE:
            pods, spaces = self._pods(rule, taint)
            reason, message = "Completed" if done else "NotStarted", ""
            if pods:
                status, reason = "True", "PodsPendingEviction"
                verb = "needs" if pods == 1 else "need"
                message = f"{_count(pods, 'pod')} {verb} to be evicted in {_namespaces(spaces)}."
        elif effect == "None":
            pods, spaces = self._pods(rule, {**taint, "effect": NO_EXECUTE})
            here, held = self._devices(rule)
            reason = "NoEffect"
            message = (
                f"{_count(here, 'published device')} selected. {_count(held, 'allocated device')} selected. "
                f"{_count(pods, 'pod')} would be evicted in {_namespaces(spaces)} if the effect was NoExecute. "
                "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
            )
        if done:
            message = f"{message} {_count(done, 'pod')} evicted since starting the controller.".lstrip()
        return status, reason, message

    def _pods(self, rule: Json, taint: Json) -> tuple[int, int]:
        """Return the number of pods that a taint of a rule evicts, now or later, and of their namespaces."""
        now, found = self._clock.now(), set()
        for claim in self._claims:
            if any(selects(rule, device) and ends(device, [taint], now) for device in allocated(claim)):
                found |= {
                    (pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in self._evictions.pods_of(claim)
                }
        return len(found), len({namespace for namespace, _ in found})

    def _devices(self, rule: Json) -> tuple[int, int]:
        """Return how many published and how many allocated devices a rule selects."""
        published = set()
        for each in self._slices:
            spec = each["spec"]
            for device in spec.get("devices") or ():
                one = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
                if selects(rule, one):
                    published.add(tuple(one.values()))
        held = {
            (device["driver"], device["pool"], device["device"])
            for claim in self._claims
            for device in allocated(claim)
            if selects(rule, device)
        }
        return len(published), len(held)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _namespaces(number: int) -> str:
    return "1 namespace" if number == 1 else f"{number} different namespaces"
