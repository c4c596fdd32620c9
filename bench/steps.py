"""The longest single step: how long can one hard root keep the others waiting? Engine only.

    python bench/steps.py                       made-up hard roots, and the quality instances where there are any
    python bench/steps.py tied five             only scenarios whose names begin so
    python bench/steps.py --quality FOLDER      quality instances of another folder
    python bench/steps.py --rounds 1            each scenario once (the least of three rounds is the rule)

Beside every hard root a small pod arrives before each step: `beside` says how many of them were placed while the root
was being tried. Process time of `Engine.step` with the limit of the scheduler process, milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CHANGED_BY_KIND, Gone, Outcome
from phalanx.model import objects as model
from phalanx.serve.scheduler import STEP
from phalanx.testing.builders import node, pod, pod_group
from progress import counted

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "quality" / "instances" / "public"
MOST = 20_000  # steps after which a scenario is given up


@dataclass
class Figures:
    steps: list[float] = field(default_factory=list)  # milliseconds
    until: int = 0  # steps until the hard root was decided
    beside: int = 0  # small pods placed until then
    bound: int = 0
    evicted: int = 0


class Bench:
    """An engine, and around it a cluster where every decision succeeds at once."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.now = 1000.0
        self.pods: dict[str, model.Pod] = {}
        self.figures = Figures()

    def see(self, *objects: Any) -> None:
        for each in objects:
            obj = each.build() if hasattr(each, "build") else each
            if isinstance(obj, model.Pod):
                self.pods[obj.metadata.name] = obj
            self.engine.apply(CHANGED_BY_KIND[type(obj).__name__](obj))  # type: ignore[call-arg]

    def step(self) -> list[d.Decision]:
        start = time.process_time()
        out = self.engine.step(self.now, STEP)
        self.figures.steps.append((time.process_time() - start) * 1e3)
        for decision in out:
            self._perform(decision)
        return out

    def _perform(self, decision: d.Decision) -> None:
        if isinstance(decision, d.Bind):
            old = self.pods[decision.name]
            spec = msgspec.structs.replace(old.spec, node_name=decision.node)
            self.see(msgspec.structs.replace(old, spec=spec))
            self.figures.bound += 1
        elif isinstance(decision, d.Evict) and self.pods.pop(decision.name, None) is not None:
            self.figures.evicted += 1
            self.engine.apply(Gone("Pod", decision.name, decision.namespace, decision.uid))
        self.engine.apply(Outcome(decision.id))

    def settle(self) -> None:
        """Without a look at the watch: what was there before. The first pod ever makes the indexes of what is there."""
        self.see(pod("first").uid("first").cpu("1m"))
        for _ in range(MOST):
            out = self.step()
            due = self.engine.next_wake()
            if not out and (due is None or due > self.now):
                break
        self.figures = Figures()

    def decide(self, hard: str, small: Callable[[int], Any] | None = None) -> Figures:
        """Step until a pod of the hard root was bound, or its condition says why not."""
        gc.collect()
        gc.disable()
        figures = self.figures
        for number in range(MOST):
            if small is not None:
                self.see(small(number))
            out = self.step()
            names = [decision.name for decision in out if isinstance(decision, d.Bind | d.SetPodCondition)]
            figures.beside += sum(name.startswith("small") for name in names)
            if any(name.startswith(hard) for name in names):
                figures.until = number + 1
                break
        for _ in range(50):  # what follows: victims are gone, the rest of the members
            due = self.engine.next_wake()
            if not self.step() and (due is None or due > self.now):
                break
        gc.enable()
        return figures


def small(number: int) -> Any:
    return pod(f"small-{number}").uid(f"small-{number}").cpu("10m").mem("1Mi")


# ---- made up


def tied(fits: bool, size: int = 80) -> Callable[[], Figures]:
    """Members that keep apart on hosts, want company in a zone and spread over racks, in three sizes, on 60 nodes with
    unequal room: counting alone misleads."""

    def run() -> Figures:
        bench, rng = Bench(), random.Random(7)
        for i in range(60):
            free = rng.choice((4, 6, 8, 10))
            bench.see(node(f"n{i}").cpu(free).mem("64Gi").zone(f"z{i % 3}").label("rack", f"r{i % 9}"))
        kinds = [("lead", "4"), ("work", "3"), ("load", "1")]
        bench.see(pod_group("hard").gang(size))
        for i in range(size):
            kind, cpu = kinds[i % 3]
            one = (
                pod(f"hard-{i}")
                .uid(f"hard-{i}")
                .cpu(cpu)
                .mem("1Gi")
                .group("hard")
                .label("app", "hard")
                .label("kind", kind)
            )
            one = one.spread("rack", {"app": "hard"})
            if kind == "lead":
                one = one.anti_affinity("kubernetes.io/hostname", {"kind": "lead"})
            if not fits:
                one = one.affinity("topology.kubernetes.io/zone", {"app": "hard"})
            bench.see(one)
        return bench.decide("hard-", small)

    return run


def fragmented(nodes: int, rng: random.Random) -> Bench:
    bench = Bench()
    for i in range(nodes):
        bench.see(node(f"n{i}").cpu("32").mem("128Gi").label("rack", f"r{i // 16}"))
        used = rng.randrange(20_000, 31_000, 250)
        filler = pod(f"f{i}").uid(f"f{i}").cpu(f"{used}m").mem(f"{rng.randrange(64, 126)}Gi").node(f"n{i}")
        bench.see(filler)
    bench.settle()
    return bench


def five(small_ones: bool, size: int = 1000, nodes: int = 5000) -> Callable[[], Figures]:
    """A gang of five shapes on fragmented nodes."""

    def run() -> Figures:
        bench = fragmented(nodes, random.Random(3))
        bench.see(pod_group("hard").gang(size))
        asks = [("1", "2Gi"), ("2", "6Gi"), ("3", "4Gi"), ("5", "20Gi"), ("7", "8Gi")]
        if not small_ones:
            asks = [(str(int(cpu) + 4), f"{int(memory[:-2]) + 24}Gi") for cpu, memory in asks]
        for i in range(size):
            cpu, memory = asks[i % 5]
            bench.see(pod(f"hard-{i}").uid(f"hard-{i}").cpu(cpu).mem(memory).group("hard"))
        return bench.decide("hard-", small)

    return run


def different(size: int, nodes: int) -> Callable[[], Figures]:
    """A gang in which no two pods are alike."""

    def run() -> Figures:
        bench = fragmented(nodes, random.Random(5))
        bench.see(pod_group("hard").gang(size))
        for i in range(size):
            bench.see(pod(f"hard-{i}").uid(f"hard-{i}").cpu(f"{1000 + 7 * i}m").mem(f"{1000 + 13 * i}Mi").group("hard"))
        return bench.decide("hard-", small)

    return run


def singles(count: int, nodes: int) -> Callable[[], Figures]:
    """Pods of no group, no two alike, all at once."""

    def run() -> Figures:
        bench = fragmented(nodes, random.Random(5))
        for i in range(count):
            bench.see(pod(f"hard-{i}").uid(f"hard-{i}").cpu(f"{1000 + 7 * i}m").mem(f"{1000 + 13 * i}Mi"))
        return bench.decide(f"hard-{count - 1}", small)

    return run


def alike(size: int, nodes: int, gangs: int = 1) -> Callable[[], Figures]:
    """Large gangs of equal pods: deciding is counting, the rest is writing down."""

    def run() -> Figures:
        bench = fragmented(nodes, random.Random(5))
        for gang in range(gangs):
            bench.see(pod_group(f"g{gang}").gang(size))
            for i in range(size):
                bench.see(pod(f"g{gang}-{i}").uid(f"g{gang}-{i}").cpu("1").mem("1Gi").group(f"g{gang}"))
        return bench.decide(f"g{gangs - 1}-", small)

    return run


def evicting(size: int, nodes: int, kinds: int) -> Callable[[], Figures]:
    """A gang of several shapes that has to make room among units of many priorities."""

    def run() -> Figures:
        bench, rng = Bench(), random.Random(11)
        for i in range(nodes):
            bench.see(node(f"n{i}").cpu("16").mem("64Gi").label("rack", f"r{i // 16}"))
            for j in range(4):
                low = pod(f"low-{i}-{j}").uid(f"low-{i}-{j}").cpu(str(rng.randrange(3, 5))).mem("4Gi")
                bench.see(low.priority(rng.randrange(5)).node(f"n{i}"))
        bench.settle()
        bench.see(pod_group("hard").gang(size).priority(100))
        for i in range(size):
            bench.see(pod(f"hard-{i}").uid(f"hard-{i}").cpu(str(4 + i % kinds)).mem("2Gi").group("hard").priority(100))
        return bench.decide("hard-", small)

    return run


def crowded_cluster(nodes: int, preemptors: int, gang: bool) -> Callable[[], Figures]:
    """Ten pods of ten priorities and many sizes on every node, half of them under budgets; preemptors no two alike."""

    def run() -> Figures:
        bench, rng = Bench(), random.Random(13)
        for app in range(20):
            name = f"b{app}"
            budget = {
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"selector": {"matchLabels": {"app": f"a{app}"}}},
                "status": {"disruptionsAllowed": app % 3},
            }
            bench.see(msgspec.convert(budget, model.PodDisruptionBudget))
        for i in range(nodes):
            bench.see(node(f"n{i}").cpu("32").mem("128Gi").label("rack", f"r{i // 16}"))
            for j in range(10):
                low = pod(f"low-{i}-{j}").uid(f"low-{i}-{j}").cpu(f"{rng.randrange(2000, 3200, 100)}m").mem("4Gi")
                bench.see(low.priority(j).label("app", f"a{rng.randrange(40)}").node(f"n{i}"))
        bench.settle()
        if gang:
            bench.see(pod_group("hard").gang(preemptors).priority(100))
        for i in range(preemptors):
            one = pod(f"hard-{i}").uid(f"hard-{i}").cpu(f"{16_000 + 7 * i}m").mem("9Gi").priority(100)
            bench.see(one.group("hard") if gang else one)
        return bench.decide(f"hard-{preemptors - 1}", small)

    return run


def in_the_way(nodes: int, size: int, rule: str) -> Callable[[], Figures]:
    """A gang that finds on every node a port taken, or a pod that its members keep away from; or in every zone,
    many who may go, or some who stay."""

    def run() -> Figures:
        bench, rng = Bench(), random.Random(17)
        for i in range(nodes):
            bench.see(node(f"n{i}").cpu("32").mem("128Gi").zone(f"z{i % 3}"))
            for j in range(10):
                low = (
                    pod(f"low-{i}-{j}").uid(f"low-{i}-{j}").cpu("3").mem("4Gi").priority(rng.randrange(5)).node(f"n{i}")
                )
                if j == i % 10:
                    low.port(80).label("app", "old")
                if j == 3 and rule == "zone" and i < nodes // 3:
                    low.label("app", "rival")
                if j == 3 and rule == "stays" and i < 9:
                    low.label("app", "rival").priority(1000)
                bench.see(low)
        bench.settle()
        bench.see(pod_group("hard").gang(size).priority(100))
        for i in range(size):
            one = pod(f"hard-{i}").uid(f"hard-{i}").cpu("4").mem("2Gi").group("hard").priority(100).label("app", "hard")
            if rule == "port":
                one.port(80)
            elif rule == "host":
                one.anti_affinity("kubernetes.io/hostname", {"app": "old"})
            elif rule == "spread":
                one.spread("topology.kubernetes.io/zone", {"app": "hard"})
            else:
                one.anti_affinity("topology.kubernetes.io/zone", {"app": "rival"})
            bench.see(one)
        return bench.decide("hard-", small)

    return run


SCENARIOS: dict[str, Callable[[], Figures]] = {
    "tied gang of 80, fits": tied(True),
    "tied gang of 80, two rules that exclude each other": tied(False),
    "five shapes, 1,000 pods, 5,000 fragmented nodes": five(True),
    "five larger shapes, 1,000 pods, likewise": five(False),
    "alike, 1,000 pods, 5,000 nodes": alike(1000, 5000),
    "alike, 5,000 pods, 5,000 nodes": alike(5000, 5000),
    "alike, 9 gangs of 1,000 at once, 5,000 nodes": alike(1000, 5000, 9),
    "different, gang of 100, 5,000 nodes": different(100, 5000),
    "different, gang of 1,000, 5,000 nodes": different(1000, 5000),
    "singles, 500 pods no two alike, 5,000 nodes": singles(500, 5000),
    "evicting, gang of 50 in 3 shapes, 500 nodes": evicting(50, 500, 3),
    "evicting, gang of 200 in 5 shapes, 1,000 nodes": evicting(200, 1000, 5),
    "crowded, 4 single pods, 5,000 nodes of 10 pods": crowded_cluster(5000, 4, False),
    "crowded, gang of 4, 5,000 nodes of 10 pods": crowded_cluster(5000, 4, True),
    "in the way, a port, gang of 20, 1,000 nodes of 10 pods": in_the_way(1000, 20, "port"),
    "in the way, a pod on the host, likewise": in_the_way(1000, 20, "host"),
    "in the way, a pod in the zone, gang of 20, 200 nodes": in_the_way(200, 20, "zone"),
    "in the way, hundreds in the zone, gang of 20, 1,000 nodes": in_the_way(1000, 20, "zone"),
    "in the way, a pod in the zone that stays, likewise": in_the_way(1000, 20, "stays"),
    "in the way, no pod, but tied: spread over zones, likewise": in_the_way(1000, 20, "spread"),
}


# ---- quality instances


def _amounts(given: dict[str, int]) -> dict[str, str]:
    units = {"cpu": "m", "memory": "Mi"}
    return {name: f"{value}{units.get(name, '')}" for name, value in given.items()}


class Instance:
    """One file of the quality suite, as objects."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.bench = Bench()
        for each in body["nodes"]:
            kind = body["nodeTypes"][each["type"]]
            labels = {**kind.get("labels", {}), **each.get("labels", {}), "kubernetes.io/hostname": each["name"]}
            self._see(model.Node, each["name"], {
                "metadata": {"labels": labels},
                "spec": {"taints": [*kind.get("taints", []), *each.get("taints", [])]},
                "status": {"allocatable": _amounts(kind["allocatable"])},
            })  # fmt: skip
        running = body.get("running", {})
        for group in running.get("groups", []):
            self._group(group, group["kind"] == "PodGroup", group.get("parent"), group["priority"])
        for budget in body.get("pdbs", []):
            self._see(model.PodDisruptionBudget, budget["name"], {
                "spec": {"minAvailable": 1, "selector": {"matchLabels": budget["matchLabels"]}},
                "status": {"disruptionsAllowed": budget["disruptionsAllowed"]},
            })  # fmt: skip
        for each in running.get("pods", []):
            template = body["podTemplates"][each["template"]] if "template" in each else each
            labels = {**template.get("labels", {}), **each.get("labels", {})}
            self._pod(
                each["name"], {**template, "labels": labels}, each.get("priority", 0), each.get("group"), each["node"]
            )
        self.bench.settle()

    def _see(self, kind: type[Any], name: str, body: dict[str, Any]) -> None:
        body.setdefault("metadata", {}).update(name=name, uid=name)
        if kind is not model.Node:
            body["metadata"]["namespace"] = "default"
        self.bench.see(msgspec.convert(body, kind))

    def _group(self, group: dict[str, Any], leaf: bool, parent: str | None, priority: int) -> None:
        word = "minCount" if leaf else "minGroupCount"
        policy = {"basic": {}} if group["policy"] == "basic" else {"gang": {word: group["policy"]["gang"]}}
        spec: dict[str, Any] = {
            "schedulingPolicy": policy,
            "priority": priority,
            "disruptionMode": {group.get("disruptionMode", "single"): {}},
        }
        if parent:
            spec["parentCompositePodGroupName"] = parent
        if group.get("topologyKey"):
            spec["schedulingConstraints"] = {"topology": [{"key": group["topologyKey"]}]}
        self._see(model.PodGroup if leaf else model.CompositePodGroup, group["name"], {"spec": spec})

    def _pod(self, name: str, template: dict[str, Any], priority: int, group: str | None, at: str = "") -> None:
        spec: dict[str, Any] = {
            "priority": priority,
            "nodeName": at,
            "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "x", "resources": {"requests": _amounts(template["requests"])}}],
            "nodeSelector": template.get("nodeSelector") or {},
            "tolerations": template.get("tolerations") or [],
        }
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        if template.get("antiAffinity"):
            terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
                     for labels in template["antiAffinity"]]  # fmt: skip
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        self._see(model.Pod, name, {"metadata": {"labels": template.get("labels") or {}}, "spec": spec})

    def run(self) -> Figures:
        for workload in self.body["workloads"]:
            first = self._submit(workload["root"], None, workload.get("priority", 0))
            self.bench.decide(first)
        return self.bench.figures

    def _submit(self, group: dict[str, Any], parent: str | None, priority: int) -> str:
        """The children before their parents: the workload becomes known at one moment. Returns a pod's name."""
        first = ""
        for child in group.get("children", ()):
            first = self._submit(child, group["name"], priority) or first
        for name, template in group.get("pods", ()):
            self._pod(name, self.body["podTemplates"][template], priority, group["name"])
            first = first or name
        self._group(group, "pods" in group, parent, priority)
        return first


# ---- the table


def row(name: str, figures: Figures) -> None:
    steps = sorted(figures.steps)
    p99 = steps[-(-99 * len(steps) // 100) - 1]
    print(
        f"{name:52} {steps[-1]:9.1f} {p99:8.1f} {sum(steps):9.0f} {figures.until:7} {figures.beside:7} "
        f"{figures.bound:6} {figures.evicted:8}",
        flush=True,
    )


def best(run: Callable[[], Figures], rounds: int) -> Figures:
    return min((run() for _ in range(rounds)), key=lambda figures: max(figures.steps))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quality", type=Path, default=BESIDE)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{'':52} {'longest':>9} {'p99':>8} {'all':>9} {'steps':>7} {'beside':>7} {'bound':>6} {'evicted':>8}")
    wanted = [name for name in SCENARIOS if not args.names or any(name.startswith(word) for word in args.names)]
    for name in counted(wanted):
        row(name, best(SCENARIOS[name], args.rounds))
    if args.names and "quality" not in args.names:
        return
    files = sorted(args.quality.glob("F*.json")) if args.quality.is_dir() else []
    for family in sorted({path.name[:2] for path in files}):
        every = Figures()
        worst = (0.0, "")
        for path in counted(path for path in files if path.name.startswith(family)):
            body = json.loads(path.read_text())
            found = best(lambda body=body: Instance(body).run(), args.rounds)  # type: ignore[misc]
            every.steps += found.steps
            every.bound, every.evicted = every.bound + found.bound, every.evicted + found.evicted
            worst = max(worst, (max(found.steps), path.stem))
        row(f"quality {family} (longest: {worst[1]})", every)


if __name__ == "__main__":
    main()
