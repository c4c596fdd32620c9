"""Speed of the preemption planner alone, and of preemption in the engine. Run: python bench/preemption.py [scenario]

Prints milliseconds per plan (median of the plans of a scenario), what the plan costs and whether it is proved.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from phalanx.engine.decisions import Bind, Evict
from phalanx.engine.engine import Engine
from phalanx.engine.events import Gone, NodeChanged, Outcome, PodChanged
from phalanx.engine.placement import Leaf, PlacementProblem, ShapeRow
from phalanx.engine.preemption import Plan, PreemptionProblem, Units, plan
from phalanx.model.objects import Pod
from phalanx.testing.builders import node, pod
from progress import counted


def units_of(group: np.ndarray, node: np.ndarray, request: np.ndarray, priority: np.ndarray) -> Units:
    """group: (P,) unit of each pod; node: (P,); request: (R, P); priority: (U,)."""
    count = len(priority)
    part = node * count + group
    keys, inverse = np.unique(part, return_inverse=True)
    freed = np.array([np.bincount(inverse, weights=row) for row in request])
    pods = np.bincount(inverse)
    empty = np.zeros((0, len(keys)), dtype=np.int64)
    return Units(
        [f"unit {u}" for u in range(count)],
        priority,
        np.zeros(count),
        keys % count,
        keys // count,
        freed,
        pods,
        empty,
        np.zeros(0, dtype=np.int64),
    )


class Cluster:
    def __init__(self, nodes: int, allocatable: list[float]) -> None:
        self.free = np.repeat(np.array(allocatable)[:, None], nodes, axis=1)
        self.nodes = nodes
        self.gone: set[int] = set()

    def fill(self, group: np.ndarray, node: np.ndarray, request: list[float], priority: np.ndarray) -> None:
        self.group, self.node, self.priority = group, node, priority
        self.request = np.repeat(np.array(request)[:, None], len(group), axis=1)
        for r in range(len(request)):
            self.free[r] -= np.bincount(node, weights=self.request[r], minlength=self.nodes)
        self.alive = np.ones(len(group), dtype=bool)

    def problem(
        self, root: Leaf, request: list[float], domains: dict[str, np.ndarray] | None = None
    ) -> PreemptionProblem:
        keep = np.flatnonzero(self.alive)
        names, group = np.unique(self.group[keep], return_inverse=True)
        units = units_of(group, self.node[keep], self.request[:, keep], self.priority[names])
        self.names = names
        shape = ShapeRow(np.array(request), np.ones(self.nodes, dtype=bool))
        placement = PlacementProblem(
            ("cpu", "nvidia.com/gpu", "pods")[: len(request)], self.free, [shape], root, domains or {}
        )
        return PreemptionProblem(placement, units)

    def carry_out(self, made: Plan, request: list[float]) -> None:
        out = np.isin(self.group, self.names[[v.unit for v in made.victims]]) & self.alive
        self.alive &= ~out
        for r in range(len(request)):
            self.free[r] += np.bincount(self.node[out], weights=self.request[r, out], minlength=self.nodes)
        for share in made.placement.shares:
            self.free[:, share.nodes] -= np.array(request)[:, None] * share.counts


Plans = Iterator[tuple[float, Plan]]


def timed(problem: PreemptionProblem) -> tuple[float, Plan]:
    start = time.perf_counter()
    made = plan(problem)
    took = time.perf_counter() - start
    assert isinstance(made, Plan), made
    return took, made


def gang_basic(gangs: int, size: int) -> Plans:
    """100 nodes of 4 cpu with ten low pods of 40m each; members need 3970m."""
    cluster = Cluster(100, [4000.0, 0.0, 110.0])
    pods = np.arange(1_000)
    cluster.fill(pods, pods % 100, [40.0, 0.0, 1.0], np.zeros(1_000, dtype=np.int64))
    request = [3970.0, 0.0, 1.0]
    for _ in range(gangs):
        took, made = timed(cluster.problem(Leaf("gang", size, ((0, size),)), request))
        cluster.carry_out(made, request)
        yield took, made


def groups(mode: str) -> Plans:
    """1,000 nodes, 10,000 low pods of 300m in 1,000 groups; 100 single preemptors of 3970m."""
    cluster = Cluster(1_000, [4000.0, 0.0, 110.0])
    pods = np.arange(10_000)
    group = pods // 10 if mode == "all" else pods
    cluster.fill(group, pods * 7 % 1_000, [300.0, 0.0, 1.0], np.zeros(group.max() + 1, dtype=np.int64))
    request = [3970.0, 0.0, 1.0]
    for _ in range(100):
        took, made = timed(cluster.problem(Leaf("pod", 1, ((0, 1),)), request))
        cluster.carry_out(made, request)
        yield took, made


def wide(mode: str) -> Plans:
    """1,000 nodes, 10,000 low pods in 1,000 groups; one gang of 100."""
    cluster = Cluster(1_000, [4000.0, 0.0, 110.0])
    pods = np.arange(10_000)
    group = pods // 10 if mode == "all" else pods
    cluster.fill(group, pods * 7 % 1_000, [400.0, 0.0, 1.0], np.zeros(group.max() + 1, dtype=np.int64))
    yield timed(cluster.problem(Leaf("gang", 100, ((0, 100),)), [400.0, 0.0, 1.0]))


def gpus(key: str | None) -> Plans:
    """5,000 nodes of 8 GPUs full of lower-priority pods of 1, 2, 4 or 8; a gang of 250 pods with 8 GPUs each."""
    nodes = 5_000
    cluster = Cluster(nodes, [96_000.0, 8.0, 110.0])
    sizes = np.resize([1, 2, 1, 4, 8, 4, 4, 2, 2, 2, 2], 9 * nodes)
    left = np.full(nodes, 8)
    placed: list[tuple[int, int]] = []
    at = 0
    for size in sizes:
        if at >= nodes:
            break
        if left[at] >= size:
            left[at] -= size
            placed.append((at, int(size)))
        if left[at] < 2:
            at += 1
    node = np.array([n for n, _ in placed])
    size_of = np.array([s for _, s in placed], dtype=np.float64)
    priority = np.resize([0, 10, 10, 20, 50, 10, 0], len(node)).astype(np.int64)
    cluster.fill(np.arange(len(node)), node, [0.0, 0.0, 1.0], priority)
    cluster.request[1] = size_of
    cluster.free[1] -= np.bincount(node, weights=size_of, minlength=nodes)
    rack = (np.arange(nodes) // 500).astype(np.int32)
    domains = {"rack": rack} if key else {}
    yield timed(cluster.problem(Leaf("gang", 250, ((0, 250),), key=key), [8_000.0, 8.0, 1.0], domains))


SCENARIOS: dict[str, Callable[[], Plans]] = {
    "100 nodes, 1000 victims, 1 gang x 100": lambda: gang_basic(1, 100),
    "100 nodes, 1000 victims, 10 gangs x 10": lambda: gang_basic(10, 10),
    "1000 nodes, 1000 groups (single), 100 pods": lambda: groups("single"),
    "1000 nodes, 1000 groups (all), 100 pods": lambda: groups("all"),
    "1000 nodes, 1000 groups (single), gang x 100": lambda: wide("single"),
    "1000 nodes, 1000 groups (all), gang x 100": lambda: wide("all"),
    "5000 full nodes, gang 250 x 8 GPU, rack": lambda: gpus("rack"),
    "5000 full nodes, gang 250 x 8 GPU": lambda: gpus(None),
}


def preemption_async(nodes: int) -> None:
    """The whole engine: `nodes` nodes with four low pods each, as many preemptors that need three of them gone.
    Evicted pods are gone at once, binds are confirmed at once."""
    engine = Engine()
    low = pod("low").cpu("900m").mem("500Mi").priority(0).build()
    high = pod("high").cpu("3").mem("500Mi").priority(10).build()

    def named(like: Pod, name: str, on: str = "") -> Pod:
        metadata = msgspec.structs.replace(like.metadata, name=name, uid=name)
        return msgspec.structs.replace(like, metadata=metadata, spec=msgspec.structs.replace(like.spec, node_name=on))

    for i in range(nodes):
        engine.apply(NodeChanged(node(f"n{i}").cpu("4").mem("32Gi").build()))
    for i in range(4 * nodes):
        engine.apply(PodChanged(named(low, f"low{i}", f"n{i % nodes}")))
    waiting = [named(high, f"high{i}") for i in range(nodes)]
    start, bound, evicted, now = time.process_time(), 0, 0, 1.0
    for each in waiting:
        engine.apply(PodChanged(each))
    while (decided := engine.step(now)) or (engine.next_wake() or now + 1) <= now:  # in slices
        now += 0.01
        for decision in decided:
            engine.apply(Outcome(decision.id))
            if isinstance(decision, Evict):
                evicted += 1
                engine.apply(Gone("Pod", decision.name, "default", decision.uid))
            elif isinstance(decision, Bind):
                bound += 1
                engine.apply(PodChanged(named(high, decision.name, decision.node)))
    took = time.process_time() - start
    print(f"{'PreemptionAsync':46} {bound / took:8.0f} pods/s of process time, {bound} bound, {evicted} evicted")


def main() -> None:
    wanted = " ".join(sys.argv[1:])
    if wanted in "PreemptionAsync":
        preemption_async(5_000)
    for name, run in counted(item for item in SCENARIOS.items() if wanted in item[0]):
        plans = list(run())
        times = [took for took, _ in plans]
        pods = sum(made.cost.pods for _, made in plans)
        proved = sum(made.optimal for _, made in plans)
        print(
            f"{name:46} {statistics.median(times) * 1e3:8.1f} ms (worst {max(times) * 1e3:.1f})"
            f"  {pods} pods evicted, {proved}/{len(plans)} proved, {plans[0][1].expansions} expansions"
        )


if __name__ == "__main__":
    main()
