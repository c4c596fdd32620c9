"""The scheduler as a service: informers feed the engine, the executor performs its decisions and returns outcomes.

Runs inside `phalanx up` (in-process client) and as `phalanx scheduler` against any API server. The engine runs in
slices so that input and output are never delayed for long.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.base import resources as r
from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, MonotonicTime
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.tasks import begin, cause_of_end, end, run_all
from phalanx.base.well_known import SCHEDULER_ERROR
from phalanx.engine import events
from phalanx.engine.decisions import Decision, SetGroupCondition, SetPodCondition
from phalanx.engine.engine import Engine
from phalanx.kube.executor import Executor
from phalanx.kube.observed_client import ObservedClient
from phalanx.kube.placement_lease import PlacementLease
from phalanx.kube.recorder import Recorder
from phalanx.model import objects
from phalanx.model.gates import Gates
from phalanx.serve.foreign_groups import ForeignGroups, UsedDialects
from phalanx.serve.metrics.plugin_times import PluginSamples, PluginTimes
from phalanx.serve.recording import RecordedEngine
from phalanx.serve.turns import LINGER, Turns

log = logging.getLogger(__name__)

STEP = 64  # units per step: a few milliseconds
ERRORS_EVERY = 60.0  # seconds between two log lines about the same error
MOST_ERRORS = 100  # remembered errors
TOGETHER = 0.01  # seconds in which outcomes and new pods are collected for one step while many binds are under way
MOST_IN_FLIGHT = 4096  # binds without an outcome; more would only make decisions older
LAST_CALL = 20.0  # seconds that running binds get at shutdown
KEEP_ALIVE = 1.0  # seconds between two checks of the placement lease while binds are running
LAST_EVENTS = 3.0  # seconds for pending events at shutdown: they carry no state

_CORE: tuple[tuple[Resource, type[Any]], ...] = (
    (r.NAMESPACES, objects.Namespace),
    (r.NODES, objects.Node),
    (r.PODS, objects.Pod),
    (r.PERSISTENT_VOLUMES, objects.PersistentVolume),
    (r.PERSISTENT_VOLUME_CLAIMS, objects.PersistentVolumeClaim),
    (r.SERVICES, objects.Service),
    (r.RESOURCE_QUOTAS, objects.ResourceQuota),
    (r.REPLICATION_CONTROLLERS, objects.ReplicationController),
    (r.REPLICA_SETS, objects.ReplicaSet),
    (r.STATEFUL_SETS, objects.StatefulSet),
    (r.DISRUPTION_BUDGETS, objects.PodDisruptionBudget),
    (r.STORAGE_CLASSES, objects.StorageClass),
    (Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False), objects.CSINode),
    (Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False), objects.CSIDriver),
    (Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"), objects.CSIStorageCapacity),
)
# A server without these has no dynamic resource allocation.
_DEVICES: tuple[tuple[Resource, type[Any]], ...] = (
    (r.DEVICE_CLASSES, objects.DeviceClass),
    (r.RESOURCE_SLICES, objects.ResourceSlice),
    (r.RESOURCE_CLAIMS, objects.ResourceClaim),
    (
        r.DEVICE_TAINT_RULES,
        objects.DeviceTaintRule,
    ),
)
# Optional kinds: a server without them has no groups.
_GROUPS: tuple[tuple[Resource, type[Any]], ...] = (
    (r.WORKLOADS, objects.Workload),
    (r.POD_GROUPS, objects.PodGroup),
    (r.COMPOSITE_POD_GROUPS, objects.CompositePodGroup),
    (r.WORKLOAD_POLICIES, objects.WorkloadPolicy),
)


@dataclass(frozen=True)
class SchedulerOptions:
    name: str = "default-scheduler"
    record: Path | None = None  # file for every event and decision
    record_head: dict[str, Any] = field(default_factory=dict)
    times: PluginTimes | None = None
    may_act: Callable[[], bool] = lambda: True  # checked before each bind and eviction
    placement_lease: str = ""  # "namespace/name" of the Lease by which Phalanx schedulers take turns; "": none
    lease_client: Client | None = None  # client for the placement lease; None: the main client
    dialects: Sequence[str] = ()  # other schedulers whose PodGroups are used, by name


class SchedulerService:
    def __init__(
        self,
        client: Client,
        engine: Engine,
        gates: Gates,
        clock: Clock,
        rng: random.Random,
        options: SchedulerOptions | None = None,
    ) -> None:
        options = options or SchedulerOptions()
        self.name = name = options.name
        self.engine = engine
        self._driver: Engine | RecordedEngine = engine
        self._recording: RecordedEngine | None = None
        if options.record is not None:
            self._recording = self._driver = RecordedEngine(engine, options.record, options.record_head)
        self._clock = clock
        self._time = MonotonicTime(clock)
        self._wake = asyncio.Event()
        self._stopping = False
        self.observed = ObservedClient(client)
        self.turns: Turns | None = None
        lease: PlacementLease | None = None
        if options.placement_lease:
            identity = "+".join(sorted(engine.profiles))
            lease = PlacementLease(
                options.lease_client or client, clock, rng, identity, self._wake.set, lease=options.placement_lease
            )
            self.turns = Turns(lease, clock, lambda: self._informers, self.observed.written)
        self.recorder = Recorder(
            self.observed, name, f"{name}-{socket.gethostname()}", clock, rng, busy=lambda: self.executor.busy
        )
        self.executor = Executor(
            self.observed,
            self.recorder,
            self._outcome,
            clock,
            rng,
            may_act=lambda: options.may_act() and (lease is None or lease.holds),
        )
        self._informers: list[Informer[Any]] = []
        self._foreign: ForeignGroups | None = None
        if options.dialects:
            dialects = UsedDialects(options.dialects, engine.profiles)
            self._foreign = ForeignGroups(dialects, client, clock, rng, self.recorder, self._outcome)
            for resource, type_, translate in self._foreign.resources:
                self._add_foreign_informer(client, resource, type_, translate, rng)
        for resource, type_ in _CORE:
            self._add_informer(client, resource, type_, rng, optional=False)
        for resource, type_ in _DEVICES:
            self._add_informer(client, resource, type_, rng, optional=True)
        for resource, type_ in _GROUPS if gates("GenericWorkload") else ():
            self._add_informer(client, resource, type_, rng, optional=True)
        # Callbacks for metrics: decisions, and the duration of a step.
        self._errors: dict[str, float] = {}  # message -> time of its last log line
        self.on_decisions: list[Callable[[list[Decision]], None]] = []
        self.on_step: list[Callable[[float], None]] = []
        self.on_event: Callable[[str, float], None] | None = None  # kind of the handled event, and seconds
        self.samples: PluginSamples | None = None
        self.times = options.times
        self.on_outcome: list[Callable[[events.Outcome], None]] = []

    def _add_informer(
        self, client: Client, resource: Resource, type_: type[Any], rng: random.Random, *, optional: bool
    ) -> None:
        changed: Callable[[Any], events.Event] = events.CHANGED_BY_KIND[resource.kind]

        update, delete = f"{resource.kind}Update", f"{resource.kind}Delete"

        def sink(change: ObjectChange[Any]) -> None:
            if self.executor.unanswered and resource.kind == "Pod":
                self.executor.pod_seen(change.namespace, change.name, change.object)
            if change.object is None:
                self.executor.status.gone(resource.kind, change.namespace, change.name)
            began = self._clock.monotonic()
            translated = self._foreign.translate(resource.kind, change) if self._foreign is not None else None
            if translated is not None:
                self._apply_all(translated)
            elif change.object is None:
                self._apply(events.Gone(resource.kind, change.name, change.namespace))
            else:
                self._apply(changed(change.object))
            if self.on_event is not None:
                self.on_event(update if change.object is not None else delete, self._clock.monotonic() - began)

        self._informers.append(Informer(client, resource, type_, sink, optional=optional, rng=rng))

    def _add_foreign_informer(
        self,
        client: Client,
        resource: Resource,
        type_: type[Any],
        translate: Callable[[ObjectChange[Any]], list[events.Event]],
        rng: random.Random,
    ) -> None:
        def sink(change: ObjectChange[Any]) -> None:
            self._apply_all(translate(change))

        self._informers.append(Informer(client, resource, type_, sink, optional=True, rng=rng))

    def _apply_all(self, found: list[events.Event]) -> None:
        for event in found:
            self._apply(event)

    def apply(self, event: events.Event) -> None:
        """Pass an event that comes from no informer to the engine."""
        self._apply(event)

    def _apply(self, event: events.Event) -> None:
        self._driver.apply(event)
        self._wake.set()

    def _outcome(self, outcome: events.Outcome) -> None:
        for listener in self.on_outcome:
            listener(outcome)
        self._apply(outcome)

    @property
    def settled(self) -> bool:
        """Return True if none of our writes is running or unknown, so that another scheduler may begin."""
        return not self.executor.in_flight

    @property
    def informers(self) -> list[Informer[Any]]:
        return self._informers

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self._informers)

    def now(self) -> float:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def relists(self) -> int:
        return sum(informer.relists for informer in self._informers)

    @property
    def unsynced(self) -> list[str]:
        return [i.resource.plural for i in self._informers if not i.synced.is_set()]

    async def wait_synced(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()

    async def run(self) -> None:
        """Run until cancelled or stopped. Cancelling ends at once; `stop` lets running binds finish."""
        background = asyncio.create_task(run_all(self._parts()), name="scheduler parts")
        deciding = begin("deciding", self._decide())
        try:
            await asyncio.wait({deciding, background}, return_when=asyncio.FIRST_COMPLETED)
            if background.done() or deciding.cancelled() or not self._stopping:
                raise cause_of_end((deciding, background))
            deciding.result()
        finally:
            await end((deciding, background))
            if self._recording is not None:
                self._recording.close()

    def _parts(self) -> Iterator[tuple[str, Coroutine[Any, Any, object]]]:
        """Yield the background tasks; none if the process is ending already."""
        for informer in self._informers:
            yield f"{informer.resource.plural} informer", informer.run()
        if self.turns is not None:
            yield "placement lease", self.turns.lease.run()
        if self._foreign is not None:
            yield "foreign groups", self._foreign.run()
        yield "recorder", self.recorder.run()
        yield "executor", self.executor.run()

    def _log_problems(self) -> None:
        """Write the problems that the engine recorded to the log."""
        for problems in (self.engine.isolation.unlogged, self.engine.faults):
            while problems:
                log.error("%s", problems.popleft())

    def _log_errors(self, made: list[Decision], now: float) -> None:
        """Log failed attempts (an exception of a plugin, with file and line), each text once a minute."""
        for each in made:
            if not isinstance(each, SetPodCondition | SetGroupCondition) or each.reason != SCHEDULER_ERROR:
                continue
            if now - self._errors.get(each.message, now - ERRORS_EVERY) >= ERRORS_EVERY:
                if len(self._errors) >= MOST_ERRORS:
                    self._errors.clear()
                self._errors[each.message] = now
                log.error("the attempt to place %s/%s failed: %s", each.namespace, each.name, each.message)

    async def stop(self) -> None:
        """Take no more work and let running writes finish; `run` then returns."""
        self._stopping = True
        self._wake.set()

    def _log_illegal_transitions(self) -> None:
        for text in self.engine.illegal_transitions.take():
            log.error("illegal transition, not made: %s", text)

    async def _decide(self) -> None:
        await self.wait_synced()
        log.info("caches are filled; deciding")
        while not self._stopping:
            self._wake.clear()
            now = self._time.now()
            if jumped := self._time.take_jump():
                log.warning("the clock was set forward by %.0f seconds; time limits go on without them", jumped)
                self._driver.apply(events.TimePassed(now, jumped))
            due: float | None = None
            if self.executor.in_flight < MOST_IN_FLIGHT:
                self._step(now, STEP if await self._may_place(now) else 0)
                due = self.engine.next_wake()
            idle = due is None or due > now
            if self.turns is not None and self.turns.over(idle=idle and not self.executor.in_flight):
                await self._end_turn(again=not idle)
            elif not idle:
                await asyncio.sleep(0)
            elif not self._stopping:
                await self._wait(None if due is None else max(0.0, due - now))
                if self.executor.busy:
                    await asyncio.sleep(TOGETHER)
        await self._finish()

    async def _may_place(self, now: float) -> bool:
        """Return True if no other Phalanx scheduler places pods now. Without work the lease is not requested."""
        if self.turns is None or self.turns.lease.fresh:
            return True
        due = self.engine.next_wake()
        if (due is None or due > now) and not self.executor.in_flight and not self.engine.pod_lifecycle.holding:
            return False
        return await self.turns.begin()

    async def _end_turn(self, *, again: bool) -> None:
        """Wait until the binds of this turn are finished and seen by the watch; then release the lease."""
        assert self.turns is not None
        while self.engine.unseen_binds or self.executor.in_flight or self.engine.outbox.nominating:
            self._wake.clear()
            await self.turns.lease.renew()
            self._step(self._time.now(), 0)
            await self._wait(KEEP_ALIVE)
            if self._stopping and again:
                return
        await self.turns.end(again=again)

    def _step(self, now: float, limit: int) -> None:
        """Run one step of the engine, sampled if a profile is due, and report its length."""
        began = self._clock.monotonic()
        if self.samples is not None and self.samples.due(began):
            made = self.samples.run(partial(self._driver.step, now, limit))
        else:
            made = self._driver.step(now, limit)
        self._log_problems()
        for observe in self.on_step:
            observe(self._clock.monotonic() - began)
        self._log_illegal_transitions()
        if self.times is not None:
            self.times.report_slow()
        if made:
            self._log_errors(made, now)
            self.executor.submit(made if self._foreign is None else self._foreign.take(made))
            for listener in self.on_decisions:
                listener(made)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for an event for at most this many seconds."""
        if self.turns is not None and (self.executor.in_flight or self.turns.lease.contended):
            most = LINGER if self.turns.lease.contended else KEEP_ALIVE
            seconds = most if seconds is None else min(seconds, most)
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _finish(self) -> None:
        """Let running binds and events finish, and release the placement lease."""
        try:
            async with asyncio.timeout(LAST_CALL):
                await self.executor.drain()
                if self.turns is not None and self.turns.lease.holds:
                    await self._end_turn(again=False)
        except TimeoutError:
            log.warning("%d binds were still under way at shutdown", self.executor.in_flight)
        try:
            async with asyncio.timeout(LAST_EVENTS):
                await self.recorder.flush()
        except TimeoutError:
            log.info("some events were not written before shutdown")
