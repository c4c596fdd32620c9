"""A model of lives: a workload of some kind, drawn by a seed, and what happens to it, one event after the other.

Stories are told on a cluster on virtual time, many of them one after the other on the same one and under the same
names, so that whatever one of them leaves behind is met by the next. A story that fails is made as short as it can be.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from beside_cluster import BesideCluster
from crashing import Crash
from happenings import CLASS, Happenings, priority_class
from life import NODE_CPU, NODES, QUIET, Broken, Json, Variant
from variants import VARIANTS, kinds

from phalanx.base import informer
from phalanx.controllers.nodes import attention
from phalanx.local.nodes import KubeletOptions
from phalanx.testing.simulated_cluster import SimulatedCluster
from phalanx.testing.virtual_time import VirtualLoop, run

SELDOM = KubeletOptions(heartbeat_seconds=3600.0)  # nodes do not fail in these stories
DEFINITIONS = Path(__file__).parents[2] / "examples/crds"
ON_ONE_CLUSTER = 50  # stories; then a fresh one


@dataclass
class Story:
    """What a seed draws: what the workload is like, and what happens to it."""

    name: str  # of its variant
    seed: int
    like: Json
    events: list[str]
    told: list[str]

    @classmethod
    def draw(cls, name: str, seed: int, events: Sequence[str] | None = None, like: Json | None = None) -> Story:
        rng = random.Random(f"{name} {seed}")
        variant = VARIANTS[name]
        drawn = {
            **variant.sizes(rng),
            "cpu": rng.choice([1, 2, 3]),
            "priority": rng.choice(["", "", CLASS]),
            "ttl": rng.choice([None, None, 30]),
        }
        happens = [rng.choice(variant.events) for _ in range(rng.randint(2, 6))]
        return cls(name, seed, {**drawn, **(like or {})}, list(happens if events is None else events), [])

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.name]

    @property
    def native(self) -> bool:
        """Whether the cluster serves groups itself; else they are custom resources."""
        return not self.variant.beside or random.Random(f"{self.name} {self.seed} native").random() < 0.5

    @property
    def where(self) -> tuple[object, ...]:
        """Stories of the same place are told on one cluster."""
        return self.variant.beside, self.native, self.variant.definitions

    def broken(self, how: object) -> Broken:
        return Broken(f"{self.name} {json.dumps(self.like)}, seed {self.seed}: {' > '.join(self.told)}: {how}")

    async def tell(self, cluster: SimulatedCluster, crash: Crash) -> None:
        """Raises Broken, with everything that is needed to see it again."""
        try:
            await self._tell(cluster, crash)
        except Broken as broken:
            raise self.broken(broken) from None
        except Exception as error:
            raise self.broken(repr(error)) from error

    async def _tell(self, cluster: SimulatedCluster, crash: Crash) -> None:
        own = dict(self.like)
        life = Happenings(cluster, random.Random(f"{self.name} {self.seed} choices"), self.variant)
        life.cpu, life.priority, life.ttl = own.pop("cpu"), own.pop("priority"), own.pop("ttl")
        life.sizes, life.completions, life.crash = own, own.get("parallelism", 0), crash
        await cluster.apply(priority_class(100))
        await life.make()
        self.told.append("make")
        await cluster.settle(QUIET)
        life.check("make", {}, set())
        for event in self.events:
            self.told.append(event)
            before = {pod["metadata"]["uid"]: pod for pod in life.running()}
            replaced = await getattr(life, event)()
            if not await cluster.settle(QUIET):
                raise Broken(f"an hour after {event} it is still not quiet")
            life.check(event, before, replaced)
        self.told.append("delete")
        await life.delete()
        await cluster.settle(QUIET)
        life.nothing_left()
        self.told.append("leave")
        await life.leave()


def tell(stories: Sequence[Story]) -> None:
    """One after the other on one cluster; raises Broken."""

    async def main(loop: VirtualLoop) -> None:
        first = stories[0]
        make = BesideCluster(first.seed, native=first.native) if first.variant.beside else SimulatedCluster(first.seed)
        crash = Crash()
        try:
            await _start(make, first.variant, crash)
            for story in stories:
                await story.tell(make, crash)
        finally:
            await make.stop()

    with _unhurried():
        try:
            run(main)
        except Broken:
            raise
        except Exception as error:
            raise next(story for story in stories if "leave" not in story.told).broken(repr(error)) from error


@contextmanager
def _unhurried() -> Iterator[None]:
    """No collections but one at the end, few questions after kinds that never come, and no ticks between two of which a
    node could be lost."""
    gc.collect()
    gc.freeze()
    gc.disable()
    before = informer.ABSENT_SECONDS, attention.TICK
    informer.ABSENT_SECONDS = attention.TICK = 3600.0
    try:
        yield
    finally:
        informer.ABSENT_SECONDS, attention.TICK = before
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


# ---- many stories


def tell_all(kind: str, seeds: Sequence[int]) -> list[str]:
    """What breaks, of the stories of these seeds: the variants of the kind take turns."""
    names = kinds()[kind]
    stories = [Story.draw(names[seed % len(names)], seed) for seed in seeds]
    broken: list[str] = []
    for where in dict.fromkeys(story.where for story in stories):
        left = [story for story in stories if story.where == where]
        while left:
            together, left = left[:ON_ONE_CLUSTER], left[ON_ONE_CLUSTER:]
            try:
                tell(together)
            except Broken as how:
                last = sum("leave" in story.told for story in together)
                broken.append(_shortest(together[: last + 1], str(how)))
                left = together[last + 1 :] + left
    return broken


def live(name: str, seed: int, events: Sequence[str] | None = None, like: Json | None = None) -> None:
    """The story of one seed on a cluster of its own, or another one of the same workload."""
    tell([Story.draw(name, seed, events, like)])


def _shortest(stories: Sequence[Story], how: str) -> str:
    """The shortest story found that breaks as the last of these did: alone, or after as few others as can be."""
    name, seed = stories[-1].name, stories[-1].seed
    events = Story.draw(name, seed).events
    try:
        live(name, seed)
    except Broken as broken:
        how = str(broken)
    else:
        before = 1
        while before < len(stories):
            earlier = [f"{story.name} {story.seed}" for story in stories[-1 - before : -1]]
            try:
                tell([Story.draw(story.name, story.seed) for story in stories[-1 - before :]])
            except Broken as broken:
                return f"after {', '.join(earlier)} on the same cluster: {broken}"
            before *= 2
        return f"after {', '.join(f'{story.name} {story.seed}' for story in stories[:-1])} on the same cluster: {how}"
    index = 0
    while index < len(events):
        fewer = [*events[:index], *events[index + 1 :]]
        try:
            live(name, seed, fewer)
            index += 1
        except Broken as broken:
            events, how = fewer, str(broken)
    return how
