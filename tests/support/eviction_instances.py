"""Eviction instances (JSON, the preemption family of the placement-quality format) as preemption problems.

Instances come from the folder in PHALANX_QUALITY_DIR, or ../shared/quality/instances/public beside the repository when
that exists; the committed tests bring their own small ones and need neither.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, ShapeRow
from phalanx.engine.preemption import PreemptionProblem, Units

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "quality" / "instances" / "public"


def instance_files() -> list[Path]:
    folder = Path(os.environ.get("PHALANX_QUALITY_DIR", BESIDE))
    return sorted(folder.glob("*F7*.json")) if folder.is_dir() else []


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def _ancestors(groups: dict[str, Any], name: str | None) -> list[dict[str, Any]]:
    found = []
    while name:
        found.append(groups[name])
        name = groups[name].get("parent")
    return found


def _labels(instance: dict[str, Any], pod: dict[str, Any]) -> dict[str, str]:
    template = instance["podTemplates"][pod["template"]] if "template" in pod else pod
    return {**template.get("labels", {}), **pod.get("labels", {})}


def _requests(instance: dict[str, Any], pod: dict[str, Any]) -> dict[str, int]:
    template = instance["podTemplates"][pod["template"]] if "template" in pod else pod
    requests: dict[str, int] = template["requests"]
    return requests


def _hits(labels: dict[str, str], budget: dict[str, Any]) -> bool:
    return bool(labels) and all(labels.get(k) == v for k, v in budget["matchLabels"].items())


def _workloads(names: list[str], units: dict[str, list[dict[str, Any]]], gangs: dict[str, int]) -> list[int]:
    """Per unit: the group that goes as a whole, or the gang of its pod; -1 for a pod of neither."""
    numbers: dict[str, int] = {}
    found = []
    for name in names:
        group = units[name][0].get("group")
        hit = name if name.startswith("group ") else group if group in gangs else None
        found.append(-1 if hit is None else numbers.setdefault(hit, len(numbers)))
    return found


def problem_of(instance: dict[str, Any], **options: Any) -> PreemptionProblem:
    nodes = instance["nodes"]
    kinds = [instance["nodeTypes"][n["type"]] for n in nodes]
    resources = sorted({r for k in kinds for r in k["allocatable"]})
    row = {n["name"]: i for i, n in enumerate(nodes)}
    free = np.array([[float(k["allocatable"].get(r, 0)) for k in kinds] for r in resources])

    def vector(requests: dict[str, int]) -> np.ndarray:
        return np.array([1.0 if r == "pods" else float(requests.get(r, 0)) for r in resources])

    running = instance["running"]
    groups = {g["name"]: g for g in running.get("groups", [])}
    workload = instance["workloads"][0]
    units: dict[str, list[dict[str, Any]]] = {}
    priority: dict[str, int] = {}
    for pod in running["pods"]:
        free[:, row[pod["node"]]] -= vector(_requests(instance, pod))
        chain = _ancestors(groups, pod.get("group"))
        value = chain[-1]["priority"] if chain else pod.get("priority", 0)
        if value >= workload["priority"]:
            continue
        whole = [g for g in chain if g.get("disruptionMode") == "all"]
        name = f"group {whole[-1]['name']}" if whole else f"pod {pod['name']}"
        units.setdefault(name, []).append(pod)
        priority[name] = value
    names = sorted(units, key=lambda u: (priority[u], len(units[u]), u))
    gangs = [g for g in groups.values() if g["kind"] == "PodGroup" and g["policy"] != "basic"]
    gang_number = {g["name"]: i for i, g in enumerate(gangs)}
    budgets = instance.get("pdbs", [])
    parts: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for u, name in enumerate(names):
        for pod in units[name]:
            parts.setdefault((row[pod["node"]], u), []).append(pod)
    order = sorted(parts)
    part_hits = [[sum(_hits(_labels(instance, p), b) for p in parts[at]) for at in order] for b in budgets]
    members = [Counter(gang_number[p["group"]] for p in units[n] if p.get("group") in gang_number) for n in names]
    made = Units(
        names,
        np.array([priority[n] for n in names], dtype=np.int64),
        np.zeros(len(names)),
        np.array([u for _, u in order], dtype=np.int64),
        np.array([n for n, _ in order], dtype=np.int64),
        np.array([sum(vector(_requests(instance, p)) for p in parts[at]) for at in order])
        .reshape(-1, len(resources))
        .T,
        np.array([len(parts[at]) for at in order], dtype=np.int64),
        np.array(part_hits, dtype=np.int64).reshape(len(budgets), len(order)),
        np.array([b["disruptionsAllowed"] for b in budgets], dtype=np.int64),
        [sorted(m.items()) for m in members],
        [sum(p.get("group") == g["name"] for p in running["pods"]) for g in gangs],
        [g["policy"]["gang"] for g in gangs],
        workload=_workloads(names, units, gang_number),
    )
    templates = sorted(instance["podTemplates"])
    shapes = [
        ShapeRow(vector(instance["podTemplates"][t]["requests"]), np.ones(len(nodes), dtype=bool)) for t in templates
    ]
    keys = sorted({k for n in nodes for k in n.get("labels", {})})
    domains, domain_names = {}, {}
    for key in keys:
        values = sorted({n["labels"][key] for n in nodes if key in n.get("labels", {})})
        domain_names[key] = values
        domains[key] = np.array(
            [values.index(n["labels"][key]) if key in n.get("labels", {}) else -1 for n in nodes], dtype=np.int32
        )

    def tree(g: dict[str, Any]) -> Leaf | Composite:
        minimum = 1 if g["policy"] == "basic" else g["policy"]["gang"]
        if "children" in g:
            return Composite(g["name"], minimum, tuple(tree(c) for c in g["children"]), key=g.get("topologyKey"))
        counts = Counter(t for _, t in g["pods"])
        demand = tuple((templates.index(t), c) for t, c in sorted(counts.items()))
        return Leaf(g["name"], minimum, demand, key=g.get("topologyKey"))

    placement = PlacementProblem(resources, free, shapes, tree(workload["root"]), domains, domain_names)
    return PreemptionProblem(placement, made, node_names=[n["name"] for n in nodes], **options)
