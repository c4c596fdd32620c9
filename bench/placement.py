"""Speed of the placement search alone: no objects, no queue, no API. Run: python bench/placement.py [scenario]

Every scenario places group after group on 5,000 nodes (the columns change as groups are placed, as in the engine) and
prints CPU microseconds per group and pods per CPU second; best of three runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, ShapeRow, Subtree, place
from progress import counted

NODES = 5_000
RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")


class Cluster:
    def __init__(self, racks: int) -> None:
        node = np.array([4_000.0, 32 * 1024.0, 100_000.0, 110.0])  # millicores, MiB, MiB, pods
        self.free = np.repeat(node[:, None], NODES, axis=1)
        rack = (np.arange(NODES) * racks // NODES).astype(np.int32)
        self.domains = {"rack": rack, "block": (rack // 8).astype(np.int32), "zone": (rack // 64).astype(np.int32)}
        self.everywhere = np.ones(NODES, dtype=bool)

    def shape(self, cpu: float, memory: float) -> ShapeRow:
        return ShapeRow(np.array([cpu, memory, 0.0, 1.0]), self.everywhere)

    def place(self, root: Subtree, shapes: list[ShapeRow]) -> bool:
        outcome = place(PlacementProblem(RESOURCES, self.free, shapes, root, self.domains))
        for share in outcome.shares:
            self.free[:, share.nodes] -= shapes[share.shape].request[:, None] * share.counts
        return outcome.placed


def flat(count: int, size: int, racks: int, key: str | None) -> tuple[int, float]:
    cluster = Cluster(racks)
    shape = cluster.shape(100, 100)
    start = time.process_time()
    for i in range(count):
        assert cluster.place(Leaf(f"g{i}", size, ((0, size),), key=key), [shape])
    return count * size, time.process_time() - start


def mixed(count: int, racks: int, key: str | None) -> tuple[int, float]:
    """A leader and seven workers."""
    cluster = Cluster(racks)
    shapes = [cluster.shape(2_000, 4_096), cluster.shape(500, 1_024)]
    start = time.process_time()
    for i in range(count):
        assert cluster.place(Leaf(f"g{i}", 8, ((0, 1), (1, 7)), key=key), shapes)
    return count * 8, time.process_time() - start


def tree(count: int) -> tuple[int, float]:
    """zone > block > rack: 4 composites of 4 gangs of 4 pods."""
    cluster = Cluster(313)
    shape = cluster.shape(500, 1_024)
    start = time.process_time()
    for _ in range(count):
        middles = tuple(
            Composite(f"m{m}", 4, tuple(Leaf(f"l{m}{j}", 4, ((0, 4),), key="rack") for j in range(4)), key="block")
            for m in range(4)
        )
        assert cluster.place(Composite("root", 4, middles, key="zone"), [shape])
    return count * 64, time.process_time() - start


def hopeless(count: int, key: str | None, kinds: int) -> tuple[int, float]:
    """Ten pods that cannot fit: every node is too full."""
    cluster = Cluster(313)
    cluster.free[0] = 900.0
    cluster.free[0, :5] = 2_000.0
    shapes = [cluster.shape(1_000 + 100 * k, 100) for k in range(kinds)]
    leaf = Leaf("g", 12, tuple((k, 12 // kinds) for k in range(kinds)), key=key)
    start = time.process_time()
    for _ in range(count):
        assert not cluster.place(leaf, shapes)
    return count, time.process_time() - start


SCENARIOS: dict[str, tuple[int, Callable[[], tuple[int, float]]]] = {
    "3000 gangs x 3": (3_000, lambda: flat(3_000, 3, 313, None)),
    "9 gangs x 1000": (9, lambda: flat(9, 1_000, 313, None)),
    "2250 gangs x 4, rack, 50 racks": (2_250, lambda: flat(2_250, 4, 50, "rack")),
    "2250 gangs x 4, rack, 313 racks": (2_250, lambda: flat(2_250, 4, 313, "rack")),
    "9 gangs x 1000, rack, 50 racks": (9, lambda: flat(9, 1_000, 50, "rack")),
    "500 mixed gangs x 8": (500, lambda: mixed(500, 313, None)),
    "500 mixed gangs x 8, rack, 313 racks": (500, lambda: mixed(500, 313, "rack")),
    "100 trees of 64 pods, zone > block > rack": (100, lambda: tree(100)),
    "hopeless, alike": (100, lambda: hopeless(100, None, 1)),
    "hopeless, alike, rack": (100, lambda: hopeless(100, "rack", 1)),
    "hopeless, three kinds": (100, lambda: hopeless(100, None, 3)),
    "hopeless, three kinds, rack": (100, lambda: hopeless(100, "rack", 3)),
}


def main() -> None:
    wanted = " ".join(sys.argv[1:])
    for name, (groups, run) in counted(item for item in SCENARIOS.items() if wanted in item[0]):
        pods, seconds = min((run() for _ in range(3)), key=lambda result: result[1])
        print(f"{name:44} {seconds / groups * 1e6:9.0f} us/group {pods / seconds:10.0f} pods/s")


if __name__ == "__main__":
    main()
