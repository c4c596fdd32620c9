"""How long the scheduler's answers take on 5,000 nodes: why, whatif and plan, inside one process and without the fork.

    python bench/questions.py [word of a question]

Median and worst of seven answers to the same question, process time in milliseconds. Nothing changes meanwhile:
what an answer tries it takes back.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine import Runner
from phalanx.engine.explain import Question, plan, whatif, why
from phalanx.model import objects as model
from progress import counted

TIMES = 7
RACKS = {"metadata": {"labels": {"zone": "zone-{i//1000}", "block": "block-{i//100}", "rack": "rack-{i//16}"}}}
IN_A_RACK = {"spec": {"schedulingConstraints": {"topology": [{"key": "rack"}]}}}
Ask = Callable[[], object]


def asking(cpu: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]}}


def cluster() -> Runner:
    """5,000 nodes of 4 cpu in racks of 16."""
    runner = Runner({})
    runner.run([{"createNodes": {"count": 5000, "template": RACKS}}])
    return runner


def gang(*, relax: bool) -> Ask:
    """A gang of 250 that asks for one rack, where 16 nodes of 4 cpu are."""
    runner = cluster()
    runner.op_createPodGroups(1, 250, IN_A_RACK, asking("3"))
    assert not runner.bound
    return lambda: why(runner.engine, "PodGroup", "bench", "group-0", relax=relax)


def tree(*, relax: bool) -> Ask:
    """Two groups of 40 in a rack each, both in one block: a rack has room for 16."""
    runner = cluster()
    runner.op_createTrees(1, ["block", "rack"], 2, 40, asking("3"))
    assert not runner.bound
    return lambda: why(runner.engine, "CompositePodGroup", "bench", "tree-0", relax=relax)


def question() -> Ask:
    """250 pods that fit somewhere, not created."""
    runner = cluster()
    spec = {"schedulingPolicy": {"gang": {"minCount": 250}}}
    body = {"metadata": {"name": "asked", "namespace": "bench", "uid": "asked"}, "spec": spec}
    template = {**asking("3")["spec"], "schedulingGroup": {"podGroupName": "asked"}}
    pods = [runner._pod(i, {"spec": template}, 1) for i in range(250)]
    asked = Question(pods=pods, pod_groups=[msgspec.convert(body, model.PodGroup)])
    assert whatif(runner.engine, asked).fits
    return lambda: whatif(runner.engine, asked)


def victims() -> Ask:
    """A gang of 16 that needs a whole rack, among 9,000 pods of lower priority, two on most nodes."""
    runner = cluster()
    runner.run([{"createPods": {"count": 9000, "template": asking("2")}}])
    runner.op_createPodGroups(
        1, 16, {"spec": {**IN_A_RACK["spec"], "priority": 100}},
        {"spec": {**asking("4")["spec"], "priority": 100, "schedulingGates": [{"name": "wait"}]}},
    )  # fmt: skip
    answer = plan(runner.engine, "PodGroup", "bench", "group-0")
    assert answer.result == "plan", answer.summary
    return lambda: plan(runner.engine, "PodGroup", "bench", "group-0")


QUESTIONS: dict[str, Callable[[], Ask]] = {
    "why of a gang of 250, without remedies": lambda: gang(relax=False),
    "why of a gang of 250, with remedies": lambda: gang(relax=True),
    "why of a tree of 2 x 40, without remedies": lambda: tree(relax=False),
    "why of a tree of 2 x 40, with remedies": lambda: tree(relax=True),
    "whatif of a gang of 250 that fits": question,
    "plan for a gang of 16 among 9,000 pods": victims,
}


def main() -> None:
    wanted = " ".join(sys.argv[1:])
    for name, make in counted(item for item in QUESTIONS.items() if wanted in item[0]):
        ask = make()
        ask()  # the first one also makes what every later one finds
        gc.collect()
        taken = []
        for _ in range(TIMES):
            started = time.process_time()
            ask()
            taken.append((time.process_time() - started) * 1e3)
        print(f"{name:44} {statistics.median(taken):7.1f} ms (worst {max(taken):.1f})")


if __name__ == "__main__":
    main()
