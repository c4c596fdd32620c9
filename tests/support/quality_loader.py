"""Placement-quality instances (JSON) as placement problems, and a judge that shares no code with the search.

Instances come from the folder in PHALANX_QUALITY_DIR, or ../shared/quality/instances/public beside the repository when
that exists; the committed tests bring their own small ones and need neither.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, SearchOutcome, ShapeRow, place

HOSTNAME = "kubernetes.io/hostname"
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "quality" / "instances" / "public"


def instance_files(family: str = "F") -> list[Path]:
    folder = Path(os.environ.get("PHALANX_QUALITY_DIR", BESIDE))
    return sorted(folder.glob(f"{family}*.json")) if folder.is_dir() else []


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def _matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return all(labels.get(k) == v for k, v in selector.items())


def _tolerates(template: dict[str, Any], taint: dict[str, str]) -> bool:
    for t in template.get("tolerations") or []:
        if t.get("effect") and t["effect"] != taint["effect"]:
            continue
        if not t.get("key"):
            if t.get("operator") == "Exists":
                return True
        elif t["key"] == taint["key"] and (
            t.get("operator") == "Exists" or (t.get("value") or "") == (taint.get("value") or "")
        ):
            return True
    return False


@dataclass
class Node:
    name: str
    labels: dict[str, str]
    taints: list[dict[str, str]]
    alloc: dict[str, int]


@dataclass
class Placed:
    """A pod on a node: pod name, template name or inline template, node, group."""

    name: str
    template: dict[str, Any]
    node: str
    group: str | None


class Cluster:
    """The state an instance starts from and what was placed on it since."""

    def __init__(self, instance: dict[str, Any]) -> None:
        self.instance = instance
        self.nodes: list[Node] = []
        for n in instance["nodes"]:
            t = instance["nodeTypes"][n["type"]]
            labels = {**t.get("labels", {}), **n.get("labels", {}), HOSTNAME: n["name"]}
            taints = [*t.get("taints", []), *n.get("taints", [])]
            self.nodes.append(Node(n["name"], labels, taints, t["allocatable"]))
        self.index = {n.name: i for i, n in enumerate(self.nodes)}
        self.pods: list[Placed] = []
        for p in instance.get("running", {}).get("pods", []):
            t = instance["podTemplates"][p["template"]] if "template" in p else p
            template = {**t, "labels": {**t.get("labels", {}), **p.get("labels", {})}}
            self.pods.append(Placed(p["name"], template, p["node"], p.get("group")))
        self.resources = sorted({r for n in self.nodes for r in n.alloc} | {"pods"})

    def free(self) -> np.ndarray:
        free = np.array([[float(n.alloc.get(r, 0)) for n in self.nodes] for r in self.resources])
        row = {r: i for i, r in enumerate(self.resources)}
        for p in self.pods:
            for r, v in p.template["requests"].items():
                free[row[r], self.index[p.node]] -= v
            free[row["pods"], self.index[p.node]] -= 1
        return free

    def problem(
        self, root: dict[str, Any], budget: int = 20_000
    ) -> tuple[PlacementProblem, dict[int, list[tuple[str, str]]]]:
        """The problem of one workload, and id(leaf) -> its pods as (name, template name)."""
        templates = self.instance["podTemplates"]
        numbers: dict[str, int] = {}
        equal: dict[str, str] = {}  # equal templates are one shape
        rows: list[ShapeRow] = []
        used: list[str] = []
        members: dict[int, list[tuple[str, str]]] = {}

        def shape(name: str) -> int:
            text = json.dumps(templates[name], sort_keys=True)
            first = equal.setdefault(text, name)
            if first not in numbers:
                numbers[first] = len(rows)
                rows.append(self._shape(templates[first]))
                used.append(first)
            return numbers[first]

        def build(group: dict[str, Any]) -> Leaf | Composite:
            minimum = 1 if group["policy"] == "basic" else group["policy"]["gang"]
            if "children" in group:
                children = tuple(build(c) for c in group["children"])
                return Composite(group["name"], minimum, children, key=group.get("topologyKey"))
            counts = Counter(shape(t) for _, t in group["pods"])
            leaf = Leaf(group["name"], minimum, tuple(counts.items()), key=group.get("topologyKey"))
            members[id(leaf)] = [(pod, equal[json.dumps(templates[t], sort_keys=True)]) for pod, t in group["pods"]]
            return leaf

        tree = build(root)
        keys = sorted({g for n in self.nodes for g in n.labels})
        columns, names = {}, {}
        for key in keys:
            values = sorted({n.labels[key] for n in self.nodes if key in n.labels})
            ids = {v: i for i, v in enumerate(values)}
            columns[key] = np.array([ids.get(n.labels.get(key, ""), -1) for n in self.nodes], dtype=np.int32)
            names[key] = values
        conflicts = set()
        for a in range(len(used)):
            for b in range(a + 1, len(used)):
                if self._apart(templates[used[a]], templates[used[b]]):
                    conflicts.add((a, b))
        problem = PlacementProblem(
            self.resources, self.free(), rows, tree, columns, names, frozenset(conflicts), budget=budget
        )
        self._used = used
        return problem, members

    @staticmethod
    def _apart(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return any(_matches(s, b.get("labels") or {}) for s in a.get("antiAffinity") or []) or any(
            _matches(s, a.get("labels") or {}) for s in b.get("antiAffinity") or []
        )

    def _shape(self, template: dict[str, Any]) -> ShapeRow:
        request = np.array([1.0 if r == "pods" else float(template["requests"].get(r, 0)) for r in self.resources])
        mask = np.array([self._allowed(template, n) for n in self.nodes])
        cap = None
        if self._apart(template, template):
            cap = np.ones(len(self.nodes), dtype=np.int64)
        return ShapeRow(request, mask, cap)

    def _allowed(self, template: dict[str, Any], node: Node) -> bool:
        if not _matches(template.get("nodeSelector") or {}, node.labels):
            return False
        if any(t["effect"] in ("NoSchedule", "NoExecute") and not _tolerates(template, t) for t in node.taints):
            return False
        return not any(self._apart(template, p.template) for p in self.pods if p.node == node.name)

    def commit(self, outcome: SearchOutcome, members: dict[int, list[tuple[str, str]]]) -> None:
        templates = self.instance["podTemplates"]
        waiting = {leaf: list(pods) for leaf, pods in members.items()}
        for share in outcome.shares:
            name = self._used[share.shape]
            pool = waiting[id(share.leaf)]
            for node, count in zip(share.nodes, share.counts, strict=True):
                for _ in range(int(count)):
                    pod = next(p for p in pool if p[1] == name)
                    pool.remove(pod)
                    self.pods.append(Placed(pod[0], templates[name], self.nodes[int(node)].name, share.leaf.name))


def violations(cluster: Cluster) -> list[str]:
    """Rules of the format that the final state breaks; empty when it is valid."""
    bad: list[str] = []
    here: dict[str, list[Placed]] = {}
    for p in cluster.pods:
        here.setdefault(p.node, []).append(p)
    groups = {}

    def walk(group: dict[str, Any]) -> list[dict[str, Any]]:
        return [group, *(g for c in group.get("children", []) for g in walk(c))]

    for w in cluster.instance["workloads"]:
        groups.update({g["name"]: g for g in walk(w["root"])})
    for name, pods in here.items():
        node = cluster.nodes[cluster.index[name]]
        total: Counter[str] = Counter({"pods": len(pods)})
        for p in pods:
            total.update(p.template["requests"])
        bad += [f"overcommit {name} {r}" for r, v in total.items() if v > node.alloc.get(r, 0)]
        for p in pods:
            if p.group not in groups:
                continue
            if not _matches(p.template.get("nodeSelector") or {}, node.labels):
                bad.append(f"selector {p.name}")
            if any(t["effect"] != "PreferNoSchedule" and not _tolerates(p.template, t) for t in node.taints):
                bad.append(f"taint {p.name}")
            bad += [
                f"anti-affinity {p.name} {q.name}"
                for q in pods
                if q is not p and Cluster._apart(p.template, q.template)
            ]

    def visit(group: dict[str, Any]) -> tuple[bool, list[Placed]]:
        if "children" in group:
            below = [visit(c) for c in group["children"]]
            count, sitting = sum(ok for ok, _ in below), [p for _, s in below for p in s]
        else:
            sitting = [p for p in cluster.pods if p.group == group["name"]]
            count = len(sitting)
        ok = count >= (1 if group["policy"] == "basic" else group["policy"]["gang"])
        if sitting and not ok:
            bad.append(f"partial {group['name']}")
        key = group.get("topologyKey")
        if key and sitting:
            domains = {cluster.nodes[cluster.index[p.node]].labels.get(key) for p in sitting}
            if None in domains or len(domains) > 1:
                bad.append(f"topology {group['name']}")
        return ok, sitting

    for w in cluster.instance["workloads"]:
        visit(w["root"])
    return bad


@dataclass
class Result:
    solved: bool
    verdicts: list[str]
    expansions: int
    pods: int
    violations: list[str]


def run(instance: dict[str, Any], budget: int = 20_000) -> Result:
    """All workloads of an instance, one after the other."""
    cluster = Cluster(instance)
    verdicts, expansions, solved, pods = [], 0, True, 0
    for workload in instance["workloads"]:
        problem, members = cluster.problem(workload["root"], budget)
        outcome = place(problem)
        verdicts.append(outcome.verdict.value)
        expansions += outcome.expansions
        if not outcome.placed:
            solved = False
            continue
        before = len(cluster.pods)
        cluster.commit(outcome, members)
        pods += len(cluster.pods) - before
    return Result(solved, verdicts, expansions, pods, violations(cluster))
