"""Perform the engine's decisions through an API server and report the outcome of each one exactly once.

Binds and evictions run concurrently. Status writes have separate workers: only the latest status per object is written,
so a message that changes ten times while the server is busy costs one write, and no status write delays a bind.
If the answer to a bind is lost, its result is read from the pod or from the informer, never assumed; until then the
bind has no outcome, so that the engine keeps its resources reserved. An eviction waits for the binds of its pod's gang:
a gang is bound as a whole or returned as a whole before another eviction in it starts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from itertools import count

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.errors import (
    AlreadyExists,
    ApiProblem,
    Conflict,
    NotFound,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from phalanx.base.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from phalanx.base.retry import delay, retrying, verdict
from phalanx.base.tasks import run_all
from phalanx.base.well_known import DISRUPTION_TARGET, SELECTED_NODE
from phalanx.engine import decisions as d
from phalanx.engine.events import CONFLICT, NOT_FOUND, PERMANENT, TRANSIENT, Outcome
from phalanx.kube.claims import ClaimWriter
from phalanx.kube.recorder import ObjectRef, Recorder
from phalanx.kube.status import StatusWriter
from phalanx.model.groups.keys import BOUND_IN_GROUP
from phalanx.model.objects import Pod

log = logging.getLogger(__name__)

CALLS = 64  # writes at the same time
MANY = CALLS // 4  # of binds and evictions that make others wait
STATUS_WRITERS = 8
BIND_ATTEMPTS = 6  # of a bind that the server answers
FAILURES_BEFORE_WARNING = 4
LEASE_RAN_OUT = "the lease was not renewed in time: another process may be the leader now"
Answer = tuple[str, str]  # problem ("" if done), message
_POD = msgspec.json.Decoder(Pod)


class _GroupBinds(msgspec.Struct):
    """Binds of one group that are under way together."""

    pods: set[str] = msgspec.field(default_factory=set)  # uids
    left: int = 0
    known: asyncio.Event = msgspec.field(default_factory=asyncio.Event)  # set when all outcomes are known


class Executor:
    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        report: Callable[[Outcome], None],
        clock: Clock,
        rng: random.Random,
        *,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """may_act: checked before each bind and eviction: a process that was stopped may have lost its lease unseen."""
        self._may_act = may_act
        self._client, self._recorder, self._report = client, recorder, report
        self._rng = rng
        self._urgent: asyncio.Queue[d.Decision] = asyncio.Queue()
        self.status = StatusWriter(client, report, clock, rng, writers=STATUS_WRITERS)
        self._claims = ClaimWriter(client, clock, rng)
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._binding: dict[str, _GroupBinds] = {}  # by the group's uid, while any is under way
        self._unanswered: dict[str, tuple[d.Bind, asyncio.Future[Answer]]] = {}  # by "namespace/name"

    def submit(self, decisions: list[d.Decision]) -> None:
        """Start to perform decisions, without waiting. Outcomes arrive later through `report`."""
        for decision in decisions:
            match decision:
                case d.RecordEvent():
                    self._record(decision)
                    self._report(Outcome(decision.id))
                case d.PlaceAnswered():
                    self._report(Outcome(decision.id))  # nothing to write: the controller that asked reads the decision
                case d.SetPodCondition() | d.SetGroupCondition() | d.Nominate():
                    self.status.submit(decision)
                case _:
                    self._in_flight += 1
                    self._idle.clear()
                    if isinstance(decision, d.Bind) and (group := decision.annotations.get(BOUND_IN_GROUP)):
                        binds = self._binding.setdefault(group, _GroupBinds())
                        binds.pods.add(decision.uid)
                        binds.left += 1
                    self._urgent.put_nowait(decision)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def busy(self) -> bool:
        """Return True while so many binds are under way that events should be written later."""
        return self._in_flight > MANY

    @property
    def unanswered(self) -> int:
        """Return the number of binds whose result is unknown."""
        return len(self._unanswered)

    def pod_seen(self, namespace: str, name: str, pod: Pod | None) -> None:
        """Resolve a bind whose result is unknown, from the informer's state of its pod (None: deleted)."""
        unknown = self._unanswered.get(f"{namespace}/{name}")
        if unknown is not None and (answer := _reported_by(unknown[0], pod)) is not None and not unknown[1].done():
            unknown[1].set_result(answer)

    async def run(self) -> None:
        workers = [(f"executor {number}", self._worker()) for number in range(CALLS)]
        await run_all([*workers, ("status", self.status.run())])

    async def drain(self) -> None:
        """Wait until every bind, eviction and volume write under way has an outcome."""
        await self._idle.wait()

    async def _worker(self) -> None:
        while True:
            decision = await self._urgent.get()
            try:
                problem, message = await self._perform(decision)
            except Exception as error:  # report a defect, so that the engine tries the pod again
                log.exception("performing %s", type(decision).__name__)
                problem, message = TRANSIENT, f"{type(error).__name__}: {error}"
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
            if isinstance(decision, d.Bind):
                self._bind_is_known(decision)
            self._report(Outcome(decision.id, problem, message))

    def _bind_is_known(self, bind: d.Bind) -> None:
        group = bind.annotations.get(BOUND_IN_GROUP, "")
        binds = self._binding.get(group)
        if binds is not None:
            binds.left -= 1
            if not binds.left:
                binds.known.set()
                del self._binding[group]

    async def _perform(self, decision: d.Decision) -> tuple[str, str]:
        try:
            match decision:
                case d.Bind():
                    return await self._bind(decision)
                case d.Evict():
                    await self._evict(decision)
                case d.BindVolume():
                    await self._bind_volume(decision)
                case d.ProvisionVolume():
                    await self._provision(decision)
                case d.ReserveClaim() | d.ReleaseClaim() | d.CreateExtendedClaim():
                    if not self._may_act():
                        raise ServiceUnavailable(LEASE_RAN_OUT)
                    await self._claims.perform(decision)
        except ApiProblem as problem:
            kind = problem_kind(problem)
            if kind == PERMANENT:  # a retry would fail in the same way: a right is missing or a rule forbids it
                log.warning("%s of %s/%s: %s", type(decision).__name__, decision.namespace, decision.name, problem)
            return kind, problem.message
        return "", ""

    async def _bind(self, bind: d.Bind) -> tuple[str, str]:
        # An Unschedulable condition that is still to be written must not be written after the bind.
        await self.status.withdraw(bind.uid)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": bind.name,
                "namespace": bind.namespace,
                "uid": bind.uid,
                **({"annotations": bind.annotations} if bind.annotations else {}),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
        key = f"{bind.namespace}/{bind.name}"
        unanswered = False  # a call may still be on its way to the server
        try:
            for attempt in count():
                if not self._may_act():
                    if not unanswered:
                        return TRANSIENT, LEASE_RAN_OUT
                    answer = await self._wait(key, 0.5)
                    if answer is not None:
                        return answer
                    continue
                try:
                    await self._client.create(PODS, body, bind.namespace, name=bind.name, subresource="binding")
                    return "", ""
                except Exception as error:
                    problem = (
                        error if isinstance(error, ApiProblem) else Unreachable(f"{type(error).__name__}: {error}")
                    )
                    unanswered = isinstance(problem, Unreachable | Timeout)
                    if _may_be_bound(problem):
                        self._unanswered.setdefault(key, (bind, asyncio.get_running_loop().create_future()))
                        answer = await self._read_result(bind, problem)
                        if answer is not None:
                            return answer
                    if verdict(problem) == "final" or (attempt >= BIND_ATTEMPTS - 1 and not unanswered):
                        return problem_kind(problem), problem.message
                    answer = await self._wait(key, delay(attempt, problem, self._rng))
                    if answer is not None:
                        return answer
        finally:
            self._unanswered.pop(key, None)
        raise AssertionError("unreachable: the loop returns")

    async def _read_result(self, bind: d.Bind, problem: ApiProblem) -> Answer | None:
        """Read the pod after an uncertain answer to find the result of its bind; None if it is not bound."""
        absent = 0
        for attempt in count():
            try:
                return _reported_by(bind, _POD.decode(await self._client.get(PODS, bind.name, bind.namespace)))
            except (ApiProblem, msgspec.DecodeError) as unreadable:
                absent = absent + 1 if isinstance(unreadable, NotFound) else 0
                if absent == 2:  # a single 404 may come from a proxy
                    return _reported_by(bind, None)
                if attempt == FAILURES_BEFORE_WARNING:
                    log.warning("bind of %s/%s: unknown whether it was done (%s)", bind.namespace, bind.name, problem)
                known = unreadable if isinstance(unreadable, ApiProblem) else Unreachable(str(unreadable))
                answer = await self._wait(f"{bind.namespace}/{bind.name}", delay(attempt, known, self._rng))
                if answer is not None:
                    return answer
        raise AssertionError("unreachable: the loop returns")

    async def _wait(self, key: str, seconds: float) -> Answer | None:
        """Wait for some seconds, or until the informer reports the pod; return what it shows about the bind."""
        if key not in self._unanswered:
            await asyncio.sleep(seconds)
            return None
        announced = self._unanswered[key][1]
        await asyncio.wait((announced,), timeout=seconds)
        return announced.result() if announced.done() else None

    async def _evict(self, evict: d.Evict) -> None:
        for binds in tuple(self._binding.values()):
            if evict.uid in binds.pods:
                await binds.known.wait()  # they were queued before the eviction, so each has a worker by now
        if not self._may_act():
            raise ServiceUnavailable(LEASE_RAN_OUT)
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": evict.reason,
            "message": evict.message,
        }
        try:
            await self.status.pod_condition_now(evict.namespace, evict.name, evict.uid, condition)
            self._recorder.record(
                ObjectRef("v1", "Pod", evict.namespace, evict.name, evict.uid),
                "Normal",
                evict.event_reason,
                "Preempting",
                evict.event_message,
            )
            await retrying(
                lambda: self._client.delete(PODS, evict.name, evict.namespace, uid=evict.uid), self._rng, attempts=8
            )
        except (NotFound, Conflict):
            return  # deleted, or replaced by another pod: its resources are free either way

    async def _bind_volume(self, decision: d.BindVolume) -> None:
        patch = {
            "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": decision.claim_namespace,
                    "name": decision.claim_name,
                    "uid": decision.claim_uid,
                }
            },
        }
        await retrying(lambda: self._client.patch(PERSISTENT_VOLUMES, decision.name, patch), self._rng)

    async def _provision(self, decision: d.ProvisionVolume) -> None:
        patch = {"metadata": {"annotations": {SELECTED_NODE: decision.node}}}
        await retrying(
            lambda: self._client.patch(PERSISTENT_VOLUME_CLAIMS, decision.name, patch, decision.namespace), self._rng
        )

    def _record(self, event: d.RecordEvent) -> None:
        version = API_VERSION_OF.get(event.kind, "v1")
        self._recorder.record(
            ObjectRef(version, event.kind, event.namespace, event.name, event.uid),
            event.type,
            event.reason,
            event.action,
            event.message,
        )


API_VERSION_OF = {
    "PodGroup": "scheduling.k8s.io/v1beta1",
    "CompositePodGroup": "scheduling.k8s.io/v1alpha3",
    "Workload": "scheduling.k8s.io/v1beta1",
}


def _may_be_bound(problem: ApiProblem) -> bool:
    """Return True if a bind that failed in this way may have been done."""
    if isinstance(problem, TooManyRequests | Unauthorized | NotFound):
        return False
    return verdict(problem) != "final" or isinstance(problem, Conflict | AlreadyExists)


def _reported_by(bind: d.Bind, pod: Pod | None) -> Answer | None:
    """Return the result of a bind as its pod shows it; None if the pod is not bound."""
    if pod is None:
        return NOT_FOUND, f"pod {bind.namespace}/{bind.name} is gone"
    if pod.metadata.uid != bind.uid:
        return NOT_FOUND, f"pod {bind.namespace}/{bind.name} was replaced by another of the same name"
    if pod.spec.node_name == bind.node:
        return "", ""
    if pod.spec.node_name:
        return CONFLICT, f"pod is bound to {pod.spec.node_name} already"
    return None


def problem_kind(problem: ApiProblem) -> str:
    if isinstance(problem, NotFound):
        return NOT_FOUND
    if isinstance(problem, Conflict | AlreadyExists):
        return CONFLICT
    return PERMANENT if verdict(problem) == "final" else TRANSIENT
