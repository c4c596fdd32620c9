"""What gangs that do not fit cost while they sleep, and how soon one is placed when a node makes it fit. Engine only.

    python bench/waiting_gangs.py                        100,000 gangs of 3
    python bench/waiting_gangs.py --gangs 10000 --shapes 100

Objects are handed over as an informer would: decoded one by one, nothing shared. Memory is what the process grew by,
resident; time is process time, from the event of the node to the last Bind of the gang.
"""

from __future__ import annotations

import argparse
import gc
import time

import msgspec

from engine import DEFAULT_NODE, DEFAULT_POD, Runner, merged, numbered, resident
from phalanx.engine import decisions as d
from phalanx.engine.events import CHANGED_BY_KIND, NodeChanged, Outcome, PodChanged
from phalanx.model import objects as model
from progress import announced

SIZE = 3
STEP = 200  # roots per step


class WaitingGangs:
    def __init__(self, nodes: int = 1000) -> None:
        self.runner = Runner({})
        self.runner.op_createNodes(nodes, {"status": {"allocatable": {"cpu": "1"}}})
        self._pod = msgspec.json.Decoder(model.Pod).decode
        self._group = msgspec.json.Decoder(model.PodGroup).decode

    def wait(self, gangs: int, shapes: int) -> None:
        """Gangs of pods of 2 cpu and a little more, `shapes` different ones; no node has more than 1."""
        engine = self.runner.engine
        for i in range(gangs):
            meta = {"name": f"group-{i}", "namespace": "bench", "uid": f"group-{i}"}
            group = {"metadata": meta, "spec": {"schedulingPolicy": {"gang": {"minCount": SIZE}}}}
            engine.apply(CHANGED_BY_KIND["PodGroup"](self._group(msgspec.json.encode(group))))  # type: ignore[call-arg]
            requests = {"cpu": f"{2000 + i % shapes}m", "memory": "100Mi"}
            container = {"name": "c", "image": "x", "resources": {"requests": requests}}
            for member in range(SIZE):
                name = f"pod-{i}-{member}"
                spec = {"containers": [container], "schedulingGroup": {"podGroupName": f"group-{i}"}}
                pod = merged(DEFAULT_POD, {"metadata": {**meta, "name": name, "uid": name}, "spec": spec})
                engine.apply(PodChanged(self._pod(msgspec.json.encode(pod))))
            if i % STEP == STEP - 1:
                self.settle()
        self.settle()

    def settle(self) -> int:
        """Steps until nothing is decided any more; the number of binds."""
        bound = 0
        while decided := self.runner.engine.step(self.runner.now, STEP):
            for decision in decided:
                bound += isinstance(decision, d.Bind)
                self.runner.engine.apply(Outcome(decision.id))
        return bound

    def node(self, name: str, cpu: str) -> tuple[float, int]:
        """A node comes: milliseconds until the first gang is placed, or nothing is left to do; the pods bound."""
        body = merged(DEFAULT_NODE, {"metadata": {"name": name, "uid": name}, "status": {"allocatable": {"cpu": cpu}}})
        node = msgspec.convert(numbered(body, 0), model.Node)
        gc.collect()
        start = time.process_time()
        self.runner.engine.apply(NodeChanged(node))
        bound = 0
        while bound < SIZE and (decided := self.runner.engine.step(self.runner.now, 1)):
            bound += sum(isinstance(decision, d.Bind) for decision in decided)
            for decision in decided:
                self.runner.engine.apply(Outcome(decision.id))
        return (time.process_time() - start) * 1e3, bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=100_000)
    parser.add_argument("--shapes", type=int, default=1, help="how many different pods there are among them")
    options = parser.parse_args()
    gangs = WaitingGangs()
    gc.collect()
    before = resident()
    gangs.wait(options.gangs, options.shapes)
    gc.collect()
    kilobytes = (resident() - before) * 1024 / options.gangs
    print(f"{options.gangs:,} gangs of {SIZE}, {options.shapes} shapes, unschedulable: {kilobytes:.1f} kB each")
    announced(1, 3)
    for number, (name, cpu) in enumerate((("small", "1"), ("large", "7")), 2):
        took, bound = gangs.node(name, cpu)
        print(f"a node of {cpu} cpu comes: {bound} pods bound after {took:.1f} ms")
        announced(number, 3)


if __name__ == "__main__":
    main()
