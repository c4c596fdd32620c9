"""Write status for the scheduler: only the latest status per object, and true transition times."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import ApiProblem, Conflict, NotFound, UnsupportedMediaType
from phalanx.base.resources import COMPOSITE_POD_GROUPS, POD_GROUPS, PODS, WORKLOAD_POLICIES, WORKLOADS
from phalanx.base.retry import retrying, verdict
from phalanx.base.tasks import run_all
from phalanx.engine import decisions as d
from phalanx.engine.events import CONFLICT, NOT_FOUND, PERMANENT, TRANSIENT, Outcome
from phalanx.engine.groups.messages import WAITING

log = logging.getLogger(__name__)

GROUPS = {
    "PodGroup": POD_GROUPS,
    "Workload": WORKLOADS,
    "CompositePodGroup": COMPOSITE_POD_GROUPS,
    "WorkloadPolicy": WORKLOAD_POLICIES,
}
REMEMBERED = 100_000  # objects; deleted objects are removed at once
WAITING_SECONDS = 1.0  # before "waiting for members" is written: most groups are placed by then

_Object = tuple[str, str, str]  # kind, namespace, name
StatusDecision = d.SetPodCondition | d.SetGroupCondition | d.Nominate


class _Request(msgspec.Struct):
    resource: Resource
    namespace: str
    name: str
    uid: str
    conditions: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    nominated: str | None = None  # None: do not change it
    counts: dict[str, int | str] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)
    queued: bool = False  # a writer will write it
    timed: bool = False  # will be queued after WAITING_SECONDS


class StatusWriter:
    def __init__(
        self, client: Client, report: Callable[[Outcome], None], clock: Clock, rng: random.Random, *, writers: int
    ) -> None:
        self._client, self._report, self._clock, self._rng = client, report, clock, rng
        self._writers = writers
        self._requested: dict[str, _Request] = {}  # by uid
        self._order: asyncio.Queue[str] = asyncio.Queue()
        self._writing: dict[str, asyncio.Event] = {}
        self._no_strategic: set[Resource] = set()  # resources for which the server refused a strategic merge patch
        # (kind, namespace, name) -> uid, and per condition type, status and since: a new message is no transition
        self._since: OrderedDict[_Object, tuple[str, dict[str, tuple[str, str]]]] = OrderedDict()

    def submit(self, decision: StatusDecision) -> None:
        resource = GROUPS[decision.kind] if isinstance(decision, d.SetGroupCondition) else PODS
        requested = self._requested.get(decision.uid)
        if requested is None:
            requested = self._requested[decision.uid] = _Request(
                resource, decision.namespace, decision.name, decision.uid
            )
        if not requested.queued:
            self._enqueue(requested, wait=not isinstance(decision, d.Nominate) and decision.reason == WAITING)
        requested.ids.append(decision.id)
        if isinstance(decision, d.Nominate):
            requested.nominated = decision.node
            return
        condition: dict[str, Any] = {
            "type": decision.type,
            "status": decision.status,
            "reason": decision.reason,
            "message": decision.message,
        }
        if isinstance(decision, d.SetGroupCondition) and decision.counts:
            requested.counts |= decision.counts
        if decision.observed_generation:
            condition["observedGeneration"] = decision.observed_generation
        requested.conditions[decision.type] = self._with_transition_time(requested, condition)

    def gone(self, kind: str, namespace: str, name: str) -> None:
        """Forget the transition times of a deleted object."""
        self._since.pop((kind, namespace, name), None)

    def _enqueue(self, requested: _Request, *, wait: bool) -> None:
        """Queue the write now; with `wait`, only after WAITING_SECONDS."""
        if not wait:
            requested.queued = True
            self._order.put_nowait(requested.uid)
        elif not requested.timed:
            requested.timed = True
            asyncio.get_running_loop().call_later(WAITING_SECONDS, self._enqueue_if_waiting, requested)

    def _enqueue_if_waiting(self, requested: _Request) -> None:
        if self._requested.get(requested.uid) is requested and not requested.queued:
            self._enqueue(requested, wait=False)

    def _with_transition_time(self, about: _Request, condition: dict[str, Any]) -> dict[str, Any]:
        key, type_, status = (about.resource.kind, about.namespace, about.name), condition["type"], condition["status"]
        uid, dates = self._since.get(key, ("", {}))
        if uid != about.uid:
            dates = {}  # another object of that name
        known = dates.get(type_)
        since = known[1] if known is not None and known[0] == status else rfc3339(self._clock.now())
        dates[type_] = (status, since)
        self._since[key] = (about.uid, dates)
        self._since.move_to_end(key)
        while len(self._since) > REMEMBERED:
            self._since.popitem(last=False)
        return {**condition, "lastTransitionTime": since}

    async def withdraw(self, uid: str) -> None:
        """Drop unwritten status of an object and wait for a write that is under way."""
        requested = self._requested.pop(uid, None)
        if requested is not None:
            for id_ in requested.ids:
                self._report(Outcome(id_))
        writing = self._writing.get(uid)
        if writing is not None:
            await writing.wait()

    async def pod_condition_now(self, namespace: str, name: str, uid: str, condition: dict[str, Any]) -> None:
        """Write one pod condition now (the reason of an eviction must be written before the deletion)."""
        request = _Request(PODS, namespace, name, uid)
        request.conditions[condition["type"]] = self._with_transition_time(request, condition)
        await self._write(request)

    async def run(self) -> None:
        await run_all((f"status writer {number}", self._worker()) for number in range(self._writers))

    async def _worker(self) -> None:
        while True:
            uid = await self._order.get()
            writing = self._writing.get(uid)
            if writing is not None:
                await writing.wait()  # one write per object at a time, in order
            requested = self._requested.pop(uid, None)
            if requested is None:
                continue
            done = self._writing[uid] = asyncio.Event()
            problem, message = "", ""
            try:
                await self._write(requested)
            except (NotFound, Conflict) as error:
                # Deleted or replaced: there is nothing to update.
                problem, message = (NOT_FOUND if isinstance(error, NotFound) else CONFLICT), error.message
            except ApiProblem as error:
                problem, message = (PERMANENT if verdict(error) == "final" else TRANSIENT), error.message
                log.warning(
                    "status of %s %s/%s: %s", requested.resource.kind, requested.namespace, requested.name, error
                )
            except Exception as error:  # report a defect, so that the engine sends the update again
                problem, message = TRANSIENT, f"{type(error).__name__}: {error}"
                log.exception("status of %s %s/%s", requested.resource.kind, requested.namespace, requested.name)
            finally:
                if self._writing.get(uid) is done:
                    del self._writing[uid]
                done.set()
            for id_ in requested.ids:
                self._report(Outcome(id_, problem, message))

    async def _write(self, requested: _Request) -> None:
        """Write the requested changes of one status in one patch."""
        status: dict[str, Any] = dict(requested.counts)
        if requested.conditions:
            status["conditions"] = list(requested.conditions.values())
        if requested.nominated is not None:
            status["nominatedNodeName"] = requested.nominated or None
        if requested.resource in self._no_strategic:
            await self._rewrite(requested)
            return
        # With the uid in it, the patch fails if the object was replaced by another of the same name.
        patch = {"metadata": {"uid": requested.uid}, "status": status}
        try:
            await retrying(
                lambda: self._client.patch(
                    requested.resource,
                    requested.name,
                    patch,
                    requested.namespace,
                    patch_type="application/strategic-merge-patch+json",
                    subresource="status",
                ),
                self._rng,
            )
        except UnsupportedMediaType:
            self._no_strategic.add(requested.resource)
            await self._rewrite(requested)

    async def _rewrite(self, requested: _Request) -> None:
        """Read an object, merge its conditions by type and write it: custom resources have no strategic merge patch."""
        for attempt in range(5):
            obj = msgspec.json.decode(await self._client.get(requested.resource, requested.name, requested.namespace))
            if obj["metadata"]["uid"] != requested.uid:
                raise NotFound(f"{requested.resource.kind} {requested.namespace}/{requested.name} was replaced")
            status = obj.setdefault("status", {})
            kept = [c for c in status.get("conditions") or () if c["type"] not in requested.conditions]
            status["conditions"] = kept + list(requested.conditions.values())
            status.update(requested.counts)
            try:
                await self._client.update(
                    requested.resource, requested.name, obj, requested.namespace, subresource="status"
                )
                return
            except Conflict:
                if attempt == 4:
                    raise
