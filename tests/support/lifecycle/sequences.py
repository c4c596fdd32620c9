"""A model of lives: a workload of some kind, drawn by a seed, and what happens to it, one event after the other.

Stories run on a cluster on virtual time, many of them one after the other on the same one and under the same
names, so that whatever one of them leaves behind is met by the next. Those of one seed are branches of a tree
(`trees.py`): what a branch is about, and what is drawn on the way, depends on its seed and its place alone.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from phalanx.base import informer
from phalanx.controllers.nodes import lifecycle
from phalanx.local.nodes import KubeletOptions
from support.lifecycle.cluster_mode import BesideCluster
from support.lifecycle.crashes import Crash
from support.lifecycle.events import CLASS, Happenings, priority_class
from support.lifecycle.kinds import VARIANTS
from support.lifecycle.run import NODE_CPU, NODES, QUIET, Broken, Json, Variant
from support.simulated_cluster import SimulatedCluster
from support.virtual_time import VirtualLoop, run

SELDOM = KubeletOptions(heartbeat_seconds=3600.0)  # nodes do not fail in these stories
DEFINITIONS = Path(__file__).parents[3] / "examples/crds"


BRANCHES = 10  # stories of a seed
TRUNK = BRANCHES - 1  # the last of them
ENDS = 0.25  # of the branches
LENGTHS = (2, 2, 3, 3, 4, 5, 6)  # events


class Step(NamedTuple):
    event: str
    draws: str  # seed of whatever the event leaves to chance


@dataclass(frozen=True)
class Tree:
    """What a seed draws: what the workload is like, what happens to it, and ten things one of which happens then."""

    name: str  # of its variant
    seed: int

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.name]

    @property
    def native(self) -> bool:
        """Whether the cluster serves groups itself; else they are custom resources."""
        return not self.variant.beside or self._rng("native").random() < 0.5

    @property
    def where(self) -> tuple[object, ...]:
        """Stories of the same place run on one cluster."""
        return self.variant.beside, self.native, self.variant.definitions

    def _rng(self, what: object) -> random.Random:
        return random.Random(f"{self.name} {self.seed} {what}")

    def like(self) -> Json:
        rng = self._rng("like")
        return {
            **self.variant.sizes(rng),
            "cpu": rng.choice([1, 2, 3, 3]),
            "priority": rng.choice(["", "", CLASS]),
            "ttl": rng.choice([None, None, 30]),
        }

    def shared(self) -> list[Step]:
        """What happens in all branches, before they part."""
        rng = self._rng("shared")
        events = [rng.choice(self.variant.events) for _ in range(rng.choice(LENGTHS) - 1)]
        return [Step(event, f"{self.name} {self.seed} {number}") for number, event in enumerate(events)]

    def branches(self) -> list[Step]:
        """What happens then: no two events are the same."""
        drawn = self._rng("branches").sample(self.variant.events, len(self.variant.events))
        events = list(dict.fromkeys(drawn))[:BRANCHES]
        return [Step(event, f"{self.name} {self.seed} branch {number}") for number, event in enumerate(events)]

    def ends(self, branch: int) -> bool:
        """Whether the branch runs to the end, where nothing may be left; else it ends with its last event."""
        return branch == TRUNK or self._rng(f"end {branch}").random() < ENDS

    def story(self, branch: int | None = TRUNK) -> Story:
        """None: only what all of them share."""
        last = () if branch is None else (self.branches()[branch],)
        return Story(self, self.like(), [*self.shared(), *last], branch)


@dataclass
class Story:
    """A branch of a tree: a workload, and what happens to it."""

    tree: Tree
    like: Json
    steps: Sequence[Step]
    branch: int | None = None  # None: its events were not drawn, or it has not come so far
    announced: list[str] = field(default_factory=list)

    def broken(self, how: object) -> Broken:
        branch = "" if self.branch is None else f" branch {self.branch}"
        announced = " > ".join(self.announced)
        return Broken(f"{self.tree.name} {json.dumps(self.like)}, seed {self.tree.seed}{branch}: {announced}: {how}")

    async def notify(self, cluster: SimulatedCluster, crash: Crash) -> None:
        """Raises Broken, with everything that is needed to see it again."""
        with self.complaints():
            life = await self.begin(cluster, crash)
            for step in self.steps:
                await self.happens(life, step)
            await self.end(life)
            await self.leave(life)

    @contextmanager
    def complaints(self) -> Iterator[None]:
        try:
            yield
        except Broken as broken:
            raise self.broken(broken) from None
        except Exception as error:
            raise self.broken(repr(error)) from error

    async def begin(self, cluster: SimulatedCluster, crash: Crash) -> Happenings:
        own = dict(self.like)
        life = Happenings(cluster, random.Random(f"{self.tree.name} {self.tree.seed} make"), self.tree.variant)
        life.cpu, life.priority, life.ttl = own.pop("cpu"), own.pop("priority"), own.pop("ttl")
        life.sizes, life.completions, life.crash = own, own.get("parallelism", 0), crash
        await cluster.apply(priority_class(100))
        await life.make()
        self.announced.append("make")
        await cluster.settle(QUIET)
        life.check("make", {}, set())
        return life

    async def happens(self, life: Happenings, step: Step) -> None:
        self.announced.append(step.event)
        life.rng = random.Random(step.draws)
        before = {pod["metadata"]["uid"]: pod for pod in life.running()}
        replaced = await getattr(life, step.event)()
        if not await life.cluster.settle(QUIET):
            raise Broken(f"an hour after {step.event} it is still not quiet")
        life.check(step.event, before, replaced)

    async def end(self, life: Happenings) -> None:
        self.announced.append("delete")
        await life.delete()
        await life.cluster.settle(QUIET)
        life.nothing_left()

    async def leave(self, life: Happenings) -> None:
        self.announced.append("leave")
        await life.leave()


def notify(reasons_by_state: Sequence[Story]) -> None:
    """One after the other on one cluster; raises Broken."""

    async def on(cluster: SimulatedCluster, crash: Crash) -> None:
        for story in reasons_by_state:
            await story.notify(cluster, crash)

    on_a_cluster(reasons_by_state[0].tree, on)


def live(name: str, seed: int, events: Sequence[str], like: Json | None = None) -> None:
    """A story of one's own on a cluster of its own; what is not said is drawn."""
    tree = Tree(name, seed)
    steps = [Step(event, f"{name} {seed} {number}") for number, event in enumerate(events)]
    notify([Story(tree, {**tree.like(), **(like or {})}, steps)])


def on_a_cluster(first: Tree, notify: Callable[[SimulatedCluster, Crash], Awaitable[None]]) -> None:
    """On a fresh one, where stories of this tree can run."""

    async def main(loop: VirtualLoop) -> None:
        cluster = (
            BesideCluster(first.seed, native=first.native) if first.variant.beside else SimulatedCluster(first.seed)
        )
        crash = Crash()
        try:
            await _start(cluster, first.variant, crash)
            await notify(cluster, crash)
        finally:
            await cluster.stop()

    with _unhurried():
        run(main)


@contextmanager
def _unhurried() -> Iterator[None]:
    """No collections but one at the end, few questions after kinds that never come, and no ticks between two of which a
    node could be lost."""
    gc.collect()
    gc.freeze()
    gc.disable()
    before = informer.ABSENT_SECONDS, lifecycle.TICK
    informer.ABSENT_SECONDS = lifecycle.TICK = 3600.0
    try:
        yield
    finally:
        informer.ABSENT_SECONDS, lifecycle.TICK = before
        gc.enable()
        gc.unfreeze()


@cache
def definitions(file: str) -> list[Json]:
    return list(yaml.safe_load_all((DEFINITIONS / f"{file}.yaml").read_text()))


async def _start(cluster: SimulatedCluster, variant: Variant, crash: Crash) -> None:
    cluster.between = crash.client
    await cluster.start_duties()
    for file in variant.definitions:
        for definition in definitions(file):
            await cluster.apply(definition)
    if isinstance(cluster, BesideCluster):
        await cluster.install()
        await cluster.start_upstream()
    await cluster.start_nodes(NODES, f"cpu={NODE_CPU}", SELDOM)
    await cluster.start_controllers()
    await cluster.start_scheduler()
