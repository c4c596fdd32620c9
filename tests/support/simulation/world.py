"""One simulated cluster and what goes wrong in it: rounds of faults, each followed by calm and a full check."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from phalanx.base import informer
from phalanx.engine.decisions import Decision, Evict
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.local.store import Store
from support.simulation import faults
from support.simulation.disk import Disk
from support.simulation.faults import Fault
from support.simulation.front import GOOD, Front
from support.simulation.invariants import GROUPS, NODES, PODS, Ledger, Violation
from support.simulation.network import CALM, Host, Network
from support.simulation.processes import ADDRESS, ApiServer, Controllers, Nodes, Process, Scheduler
from support.simulation.user import User
from support.virtual_time import VirtualLoop

ROUND = (20.0, 90.0)  # seconds of faults
REST = 300.0  # seconds within which a cluster without faults must have settled
PARTIAL = 90.0  # seconds without faults after which no gang may be in part, though others may still be moving
QUIET = 45.0  # seconds without a change that count as rest
VALIDATE_EVERY = 400  # steps between full checks of the leader's engine


class SteppedLoop(VirtualLoop):
    """An event loop that counts its turns: one step is everything that is ready at one moment."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.after_step: Any = None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self.steps += 1
        if self.after_step is not None:
            self.after_step()


class Enough(Exception):
    """The requested number of steps was taken."""


@dataclass(frozen=True, slots=True)
class Scale:
    nodes: int = 4
    topology: str = "racks=2,cpu=8"


WITH_DEVICES = 3  # of so many seeds one has nodes with devices, and gangs that claim them


class World:
    """Made inside a SteppedLoop. `skip`: numbers of faults that do not happen, to find out which ones matter."""

    def __init__(self, seed: int, steps: int, skip: frozenset[int] = frozenset(), scale: Scale | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        self.loop, self.steps, self.skip = loop, steps, skip
        self.scale = scale or Scale()
        root = random.Random(seed)
        self._devices = seed % WITH_DEVICES == 0
        self._rng = {name: random.Random(root.getrandbits(64)) for name in (
            "network", "disk", "front", "faults", "user", "informers", "processes")}  # fmt: skip
        self.story: list[str] = []
        self.faults: list[Fault] = []  # that happened
        self.rounds = 0
        self._drawn = 0
        self._problem: BaseException | None = None
        self._current: asyncio.Task[Any] | None = None
        self.network = Network(loop, self._rng["network"])
        self.disk = Disk(self._rng["disk"])
        self.ledger = Ledger(loop.time)
        self.front = Front(self._rng["front"], self._acknowledged, self._asked)
        processes = self._rng["processes"]
        self.api = ApiServer(self.network, loop, processes, self.disk, self._opened, self.front.around)
        self.schedulers = [Scheduler(f"scheduler-{n}", self.network, loop, processes, self._decided) for n in "ab"]
        self.processes: dict[str, Process] = {
            process.name: process
            for process in (
                self.api,
                *self.schedulers,
                Controllers("controllers", self.network, loop, processes),
                Nodes(self.network, loop, processes, self.scale.nodes, self.scale.topology, devices=self._devices),
            )
        }
        self._down: set[str] = set()
        loop.after_step = self._after_step

    # -- running

    async def run(self) -> None:
        """Run until the steps are taken; raises Violation."""
        self._current = asyncio.current_task()
        supervisor = asyncio.create_task(self._supervise(), name="supervisor")
        try:
            with _seeded_informers(self._rng["informers"]):
                for process in self.processes.values():
                    process.start()
                host = Host("kubectl")
                connection = Connection(f"http://{ADDRESS}", None)
                async with HttpClient(
                    connection, user_agent="kubectl", timeout=10, connect=self.network.connecting(host)
                ) as client:
                    user = User(client, self._rng["user"], self.scale.nodes, devices=self._devices)
                    await self._calm("everything starts")
                    await user.prepare()
                    while True:
                        await self._round(user)
        except asyncio.CancelledError:
            if isinstance(self._problem, Enough):
                return
            if self._problem is not None:
                raise self._problem from None
            raise
        finally:
            self.loop.after_step = None
            supervisor.cancel()
            self.front.forget_duplicates()
            for process in self.processes.values():
                await process.crash()
            self.disk.remove()

    async def _round(self, user: User) -> None:
        self.rounds += 1
        rng = self._rng["faults"]
        seconds = rng.uniform(*ROUND)
        drawn = faults.draw(rng, seconds, self._drawn)
        self._drawn += len(drawn)
        self.notify(f"round {self.rounds}")
        acting = asyncio.create_task(self._act(user, seconds), name="user")
        happening = [asyncio.create_task(self._happen(fault), name=str(fault)) for fault in drawn]
        await asyncio.gather(acting, *happening)
        await self._calm("faults stop")
        if self.rounds % 3 == 0:
            self.notify("the user cleans up")
            await user.clean()

    async def _act(self, user: User, seconds: float) -> None:
        end = self.loop.time() + seconds
        rng = self._rng["user"]
        while self.loop.time() < end:
            self.notify(f"user {await user.act()}")
            await asyncio.sleep(rng.expovariate(1 / 6.0))

    async def _happen(self, fault: Fault) -> None:
        if fault.number in self.skip:
            return
        self.faults.append(fault)
        await asyncio.sleep(fault.at)
        self.notify(str(fault))
        match fault.kind:
            case "crash":
                await self._crash(fault.target, fault.seconds)
            case "weather":
                self.network.weather = faults.WEATHER[fault.target]
                await asyncio.sleep(fault.seconds)
                self.network.weather = CALM
            case "mood":
                self.front.moods = faults.MOODS[fault.target]
                await asyncio.sleep(fault.seconds)
                self.front.moods = GOOD
            case "disk":
                await self._trouble_disk(fault)
            case "clock":
                self.processes[fault.target].clock.skew += fault.amount
                await asyncio.sleep(fault.seconds)
                self.processes[fault.target].clock.skew -= fault.amount
            case "pause":
                self.loop.jump(fault.amount)

    async def _crash(self, name: str, seconds: float) -> None:
        if name in self._down:
            return
        self._down.add(name)
        process = self.processes[name]
        await process.crash()
        if name == "apiserver":
            self.disk.crash()
        await asyncio.sleep(seconds)
        process.start()
        self._down.discard(name)

    async def _trouble_disk(self, fault: Fault) -> None:
        disk = self.disk
        if fault.target == "lying":
            await self._lie(fault.seconds)
            return
        disk.full, disk.failing = fault.target == "full", 0.3 if fault.target == "failing" else 0.0
        disk.delay = 0.3 if fault.target == "slow" else 0.001
        await asyncio.sleep(fault.seconds)
        disk.full, disk.failing, disk.delay = False, 0.0, 0.001

    async def _lie(self, seconds: float) -> None:
        """Give back files of an earlier moment, which the server must refuse; then restore the right ones."""
        if "apiserver" in self._down:
            return
        self.disk.remember()
        before = self.ledger.revision
        await asyncio.sleep(seconds)
        if "apiserver" in self._down:
            return
        self._down.add("apiserver")
        lost = self.ledger.revision > before
        await self.api.crash()
        self.disk.crash()
        old, right = self.disk.lie(), self.disk.folder
        if old is not None and lost:
            self.disk.folder = old
            refused = len(self.api.refused)
            self.api.start()
            await asyncio.sleep(5.0)
            if len(self.api.refused) == refused:
                raise Violation("durable", "the server started on files that had lost acknowledged writes")
            await self.api.crash()
            self.disk.folder = right
        self.api.start()
        self._down.discard("apiserver")

    async def _supervise(self) -> None:
        """Restart processes that ended, as systemd or a kubelet would."""
        while True:
            await asyncio.sleep(1.0)
            for name, process in self.processes.items():
                if name not in self._down and not process.up:
                    self.notify(f"{name} had ended and is started again")
                    process.start()

    # -- what the parts tell

    def notify(self, text: str) -> None:
        self.story.append(f"{self.loop.time():10.3f} s  {text}")

    def _opened(self, store: Store) -> None:
        unheard = [change for change in store._window._changes if change.revision > self.ledger.revision]
        resources = sorted({key[0] for key in self.ledger.newest} | {change.entry.key[0] for change in unheard})
        there = {entry.key: entry.revision for resource in resources for entry in store.list(resource)}
        self._guard(lambda: self.ledger.check_durable(there, store.revision, unheard))
        publish = store._hub.publish

        def observed(changes: Any) -> None:
            self._guard(lambda: self.ledger.committed(changes))
            publish(changes)

        store._hub.publish = observed  # type: ignore[method-assign]

    def _acknowledged(self, body: bytes) -> None:
        try:
            revision = msgspec.json.decode(body, type=_Answer).metadata.resource_version
        except msgspec.DecodeError:
            return
        if revision:
            self._guard(lambda: self.ledger.check_acknowledged(int(revision)))

    def _asked(self, agent: str, method: str, path: str, body: bytes) -> None:
        agent = agent.removeprefix("phalanx-")  # the user agent of a process; its lease has the plain name
        if not agent.startswith("scheduler-"):
            return
        parts = path.strip("/").split("/")
        if method == "POST" and parts[-1] == "binding":
            holder = self.ledger.holder
            if not holder.startswith(f"{agent}_"):
                who = f"{holder} holds the lease" if holder else "no process holds the lease"
                self._stop(Violation("one-leader", f"{agent} binds {parts[-2]} while {who}"))
        elif method == "DELETE" and parts[-2:-1] == ["pods"]:
            uid = (msgspec.json.decode(body).get("preconditions") or {}).get("uid", "") if body else ""
            self._guard(lambda: self.ledger.check_eviction(("pods", parts[3], parts[-1]), uid))

    def _decided(self, name: str, made: list[Decision]) -> None:
        for decision in made:
            if isinstance(decision, Evict):
                self.notify(f"{name} evicts {decision.name} for {decision.preemptor or decision.reason}")

    # -- checks

    def _after_step(self) -> None:
        if self.loop.steps >= self.steps:
            self._stop(Enough())
            return
        for process in self.processes.values():
            if process.deaths:
                problem = process.deaths[0]
                self._stop(Violation("alive", f"{process.name} died of {type(problem).__name__}: {problem}"))
            if process.stuck:
                self._stop(Violation("alive", f"{process.name} did not end when asked to"))
        if self.loop.steps % VALIDATE_EVERY == 0:
            for scheduler in self.schedulers:
                if scheduler.service is not None and scheduler.service.synced:
                    self._guard(partial(_validated, scheduler.service.engine))

    def _guard(self, check: Any) -> None:
        """Run a check so that its failure stops the run from outside, not inside the part it checks."""
        try:
            check()
        except Violation as violation:
            self._stop(violation)

    def _stop(self, problem: BaseException) -> None:
        if self._problem is None and self._current is not None:
            self._problem = problem
            self._current.cancel()

    async def _calm(self, why: str) -> None:
        """Stop all faults: within a bounded time everything must settle, and then every invariant must hold."""
        self.notify(why)
        self.network.weather, self.front.moods = CALM, GOOD
        began = self.loop.time()
        while self.loop.time() - self.ledger.last_change < QUIET or not self._healthy():
            if self.loop.time() - began > REST:
                raise Violation("converges", f"{REST:.0f} s after the last fault: {self._unrest()}")
            await asyncio.sleep(1.0)
            for what in self.ledger.partial_gangs(PARTIAL, began):
                raise Violation("no-partial-gang", f"{what}, for {PARTIAL:.0f} s without a fault")
        self._check_rest()

    def _healthy(self) -> bool:
        leader = self._leader()
        nodes = self.api.store is not None and len(self.ledger.room) == self.scale.nodes
        return nodes and leader is not None and leader.service is not None and leader.service.synced

    def _unrest(self) -> str:
        down = [name for name, process in self.processes.items() if not process.up]
        return (
            f"last change {self.loop.time() - self.ledger.last_change:.0f} s ago, leader "
            f"{leader.name if (leader := self._leader()) else 'none'}, down: {down or 'none'}"
        )

    def _leader(self) -> Scheduler | None:
        return next((s for s in self.schedulers if s.elector is not None and s.elector.leading and s.up), None)

    def _check_rest(self) -> None:
        ledger = self.ledger
        for what in ledger.partial_gangs(0.0):
            raise Violation("no-partial-gang", f"{what}, at rest")
        leader = self._leader()
        assert leader is not None and leader.service is not None
        _validated(leader.service.engine)
        for follower in leader.service._informers:
            resource = {"pods": PODS, "nodes": NODES, "podgroups": GROUPS}.get(follower.resource.plural)
            if resource is None:
                continue
            announced = {key: int(state.split()[1]) for key, state in follower.known.items()}
            there = {key[1:]: revision for key, revision in ledger.newest.items() if key[0] == resource}
            if announced != there:
                wrong = sorted(set(announced.items()) ^ set(there.items()))
                raise Violation("watch-equals-list", f"{resource}: {wrong[:4]}")
        self._check_accounted(leader)

    def _check_accounted(self, leader: Scheduler) -> None:
        assert self.api.store is not None and leader.service is not None
        for key, pod in self.ledger.pods.items():
            if pod.node or pod.leaving or pod.over:
                continue
            entry = self.api.store.get(key)
            body = msgspec.json.decode(entry.value) if entry is not None else {}
            conditions = (body.get("status") or {}).get("conditions") or ()
            announced = [
                c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False" and c.get("message")
            ]
            if not announced:
                raise Violation("accounted", f"{key[2]} waits and its condition does not say why")


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Answer(msgspec.Struct):
    metadata: _Meta


def _validated(engine: Any) -> None:
    try:
        engine.validate()
    except AssertionError as problem:
        if isinstance(problem, Violation):
            raise
        raise Violation("accounted", str(problem)) from problem


@contextmanager
def _seeded_informers(rng: random.Random) -> Iterator[None]:
    """Draw the length of informers' watches from the seed instead of at random."""
    seeded = SimpleNamespace(Random=lambda: random.Random(rng.getrandbits(64)))
    with mock.patch.object(informer, "random", seeded):
        yield
