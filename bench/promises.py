"""How long it takes to plan promised starts again. Run: python bench/promises.py [nodes] [waiting gangs] [events]

Gangs of up to 16 pods fill the nodes, one pod each, and end at known times; gangs of up to 64 pods wait. Then one gang
ends per second, then one arrives per second.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from typing import Any

from phalanx.engine.scheduling.attempt.queue_plan import QueuePlan
from phalanx.testing import Cluster
from phalanx.testing.builders import gang, node
from progress import counted

PLANS: list[float] = []  # CPU seconds of each plan


def measure() -> None:
    make = QueuePlan.make

    def timed(plan: QueuePlan, *args: Any) -> None:
        begun = time.process_time()
        make(plan, *args)
        PLANS.append(time.process_time() - begun)

    QueuePlan.make = timed  # type: ignore[method-assign]


def report(what: str) -> None:
    milliseconds = sorted(1000 * seconds for seconds in PLANS)
    middle, mean = statistics.median(milliseconds), statistics.mean(milliseconds)
    print(f"{what}: {len(PLANS)} plans, median {middle:.1f} ms, mean {mean:.1f}, longest {milliseconds[-1]:.1f}")
    PLANS.clear()


class Load:
    def __init__(self, nodes: int) -> None:
        self.draw, self.sizes = random.Random(1), dict[str, int]()
        self.run = Cluster()
        self.run.engine.validate = lambda: None  # type: ignore[method-assign]
        self.run.see(*(node(f"n{number:05}").cpu(1) for number in range(nodes)))

    def submit(self, name: str, size: int) -> None:
        group, *members = gang(name, size)
        for member in members:
            member.created(self.run.now)
            member.spec["activeDeadlineSeconds"] = self.draw.randint(600, 86_400)
        self.sizes[name] = size
        self.run.see(group, *members)

    def end(self, name: str) -> None:
        for number in range(self.sizes.pop(name)):
            self.run.gone("Pod", f"{name}-{number}")
        self.run.gone("PodGroup", name)
        self.run.step(1.0)


def main(nodes: int, waiting: int, events: int) -> None:
    load, left = Load(nodes), nodes
    while left:
        size = min(left, load.draw.choice([1, 2, 4, 8, 16]))
        load.submit(f"run{len(load.sizes)}", size)
        left -= size
    for _ in range(20):
        load.run.step(1.0)
    running = list(load.sizes)
    measure()
    for number in range(waiting):
        load.submit(f"wait{number}", load.draw.choice([1, 2, 4, 8, 16, 64]))
    for _ in range(40):
        load.run.step(1.0)
    report(f"{waiting} gangs that came at once, {len(load.run.engine.starts.plan.units)} with a start")
    for _ in counted(range(events)):
        load.end(running.pop(load.draw.randrange(len(running))))
    report("ends")
    for number in counted(range(events)):
        load.submit(f"later{number}", load.draw.choice([1, 2, 4, 8, 16, 64]))
        load.run.step(1.0)
    report("arrivals")


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 100)  # garbage collection as in a serving process (serve/process.py)
    words = [int(word) for word in sys.argv[1:]]
    main(*(words + [5000, 1000, 30][len(words) :]))
