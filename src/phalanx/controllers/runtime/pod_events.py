"""Record Events on sets and Jobs about the pods they create and delete, at client-go's rate limit."""

from __future__ import annotations

from collections import OrderedDict

from phalanx.base.clock import Clock
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controller_of
from phalanx.model.kinds import Json

BURST = 25  # events about one owner at once
REFILL_SECONDS = 300.0  # after which one more is allowed
OWNERS = 10_000  # remembered


class PodEvents:
    def __init__(self, events: Events, clock: Clock, controller: str) -> None:
        self._events, self._clock, self._controller = events, clock, controller
        self._allowed: OrderedDict[str, tuple[float, float]] = OrderedDict()  # uid -> (events left, since when)

    def created(self, pod: Json) -> None:
        self._notify(pod, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    def deleted(self, pod: Json) -> None:
        self._notify(pod, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def failed(self, owner: Json, problem: Exception) -> None:
        self._events.warning(owner, self._controller, "FailedCreate", f"Error creating: {problem}")

    def _notify(self, pod: Json, reason: str, note: str) -> None:
        meta, reference = pod["metadata"], controller_of(pod)
        if reference is None or not self._may(str(reference["uid"])):
            return
        about = {
            "apiVersion": reference["apiVersion"],
            "kind": reference["kind"],
            "metadata": {"name": reference["name"], "namespace": meta["namespace"], "uid": reference["uid"]},
        }
        self._events.normal(about, self._controller, reason, note, distinct=str(meta["uid"]))

    def _may(self, uid: str) -> bool:
        now = self._clock.now()
        left, since = self._allowed.pop(uid, (float(BURST), now))
        left = min(float(BURST), left + (now - since) / REFILL_SECONDS)
        self._allowed[uid] = (max(left - 1.0, 0.0) if left >= 1.0 else left, now)
        if len(self._allowed) > OWNERS:
            self._allowed.popitem(last=False)
        return left >= 1.0
