"""What groups cost where throughput says nothing: gangs that fail, long queues, repair plans. Engine only.

    python bench/groups.py

Process time, 5,000 nodes. Suites of groups that are placed are in bench/suites/groups.yaml.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import msgspec

from engine import Runner
from phalanx.engine import decisions as d
from phalanx.engine.events import NodeChanged, PodChanged
from phalanx.model.groups import GroupKey
from phalanx.serve.queries.repair import repair
from progress import counted

RACKS = {"metadata": {"labels": {"rack": "rack-{i//16}"}}}
IN_A_RACK = {"spec": {"schedulingConstraints": {"topology": [{"key": "rack"}]}}}


def asking(cpu: str, memory: str = "1Mi") -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory}
    return {"spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}]}}


def cluster(nodes: int = 5000) -> Runner:
    """Nodes of 4 cpu in racks of 16."""
    runner = Runner({})
    runner.run([{"createNodes": {"count": nodes, "template": RACKS}}])
    return runner


def failing(size: int, *, topology: bool) -> tuple[float, int]:
    """(milliseconds, decisions) of the attempt of a gang that fits not: no node is large enough, or no rack. The median
    of five; each has a shape of its own, so that none is spared because it is like the one before."""
    runner = cluster()
    taken, made = [], 0
    for i in range(5):
        kept: list[Any] = []
        runner.op_createPodGroups(
            1, size, IN_A_RACK if topology else {}, asking("3" if topology else "5", f"{i + 1}Mi"), submit=kept.extend
        )
        for pod in kept:
            runner.engine.apply(PodChanged(pod))
        gc.collect()
        start = time.process_time()
        out = runner.engine.step(runner.now, 1)
        taken.append((time.process_time() - start) * 1e3)
        made = len(out)
        assert made and not any(isinstance(decision, d.Bind) for decision in out)
    return sorted(taken)[2], made


def pending(gangs: int, *, fit: bool) -> float:
    """Microseconds per gang of three, when that many wait at once."""
    runner = cluster()
    template = asking("100m" if fit else "5")
    start = time.process_time()
    runner.run([{"createPodGroups": {"count": gangs, "podsPerGroup": 3, "podTemplate": template}}])
    made = time.process_time() - start
    assert runner.bound == (gangs * 3 if fit else 0)
    return made / gangs * 1e6


def beside(waiting: int, gangs: int = 500) -> float:
    """Microseconds per gang of three that is placed while so many gangs sleep."""
    runner = cluster()
    runner.run([{"createPodGroups": {"count": waiting, "podsPerGroup": 3, "podTemplate": asking("5")}}])
    runner.run([{"createPodGroups": {"count": gangs, "podsPerGroup": 3, "measure": True}}])
    return float(runner.figures[0]["per_pod_us"]) * 3


def repaired(size: int) -> tuple[float, int]:
    """(milliseconds, moved pods) of the plan that repairs a gang of a full rack, or of part of one, after its first
    node is cordoned. Fresh cluster and index of victims, as in the process that answers such a question."""
    runner = cluster()
    runner.run([{"createPods": {"count": 10_000}}])
    group = {"count": 20, "podsPerGroup": size, "template": IN_A_RACK, "podTemplate": asking("3")}
    runner.run([{"createPodGroups": group}])
    engine, key = runner.engine, GroupKey("PodGroup", "bench", "group-0")
    members = engine.cluster.forest.leaves(key)[0].members
    node = engine.columns.nodes[engine.columns.row_of[next(iter(members.values())).node]]
    assert node is not None
    cordoned = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, unschedulable=True))
    engine.apply(NodeChanged(cordoned))
    engine.step(runner.now)
    gc.collect()
    start = time.process_time()
    move = repair(engine, key)
    assert move.placed == move.moved
    return (time.process_time() - start) * 1e3, move.moved


def main() -> None:
    for size, topology in counted(((10, False), (1000, False), (17, True), (1000, True))):
        taken, made = failing(size, topology=topology)
        where = "in one rack" if topology else "anywhere"
        print(f"gang of {size:5} pods that fits not {where:12}: {taken:7.2f} ms to say so, {made} decisions")
    for fit, gangs in counted((fit, gangs) for fit in (True, False) for gangs in (1000, 10_000)):
        word = "fit" if fit else "do not fit"
        print(f"{gangs:6} pending gangs that {word:10}: {pending(gangs, fit=fit):7.0f} us per gang, objects included")
    for waiting in counted((1, 1000, 10_000)):
        print(f"a gang is placed beside {waiting:6} that wait: {beside(waiting):7.0f} us")
    for size in counted((10, 16)):
        taken, moved = repaired(size)
        print(f"repair plan of a gang of {size:3} in racks of 16: {taken:7.2f} ms, {moved} pods move")


if __name__ == "__main__":
    main()
