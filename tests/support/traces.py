"""Traces, clusters and recordings for `phalanx simulate`, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from phalanx.cli.main import cli
from phalanx.engine.decisions import Bind
from phalanx.engine.engine import Engine
from phalanx.engine.events import NodeChanged, PodChanged, PodGroupChanged
from phalanx.serve.recording import RecordedEngine
from phalanx.testing.builders import node, pod, pod_group

HEAD = "job,submit_s,duration_s,estimate_s,pods,gpus_per_pod,cpus_per_pod,priority,user,vc,checkpoint_s,status\n"
ROWS = (
    "a,0,100,200,3,8,32,,u1,,,completed\n"
    "big,1,50,60,4,8,32,,u2,,,completed\n"
    "short,2,30,40,1,8,32,,u1,,,completed\n"
    "long,3,500,600,1,8,32,,u1,,,completed\n"
)


def cluster(tmp_path: Path, nodes: int = 4, **more: Any) -> Path:
    path = tmp_path / "cluster.json"
    made = [
        {"name": f"n{i}", "gpus": 8, "cpus": 40, "zone": "z0", "block": "b0", "rack": f"r{i // 2}"}
        for i in range(nodes)
    ]
    path.write_text(json.dumps({"name": "small", "nodes": made, **more}))
    return path


def trace(tmp_path: Path, rows: str = ROWS, head: str = HEAD) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(head + rows)
    return path


def simulate(*args: object) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, args)], standalone_mode=False)


def events(path: Path, kind: str) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["job"]: line for line in lines if line["event"] == kind}


def recording(path: Path, cordoned: str = "") -> Path:
    """Record an engine: a gang of two fills the cluster for 100 s, another waits for it, a single pod never fits."""
    recorded = RecordedEngine(Engine(), path, {})
    for i in range(4):
        labels = node(f"n{i}").cpu("8").label("topology.phalanx.dev/rack", f"r{i % 2}")
        recorded.apply(NodeChanged(labels.build()))
    members = {name: [pod(f"{name}-{i}").cpu("6").group(name) for i in range(n)] for name, n in (("a", 3), ("b", 2))}
    members["c"] = [pod("c").cpu("99")]
    for name in "ab":
        recorded.apply(PodGroupChanged(pod_group(name).gang(len(members[name])).build()))
    bound: dict[str, str] = {}
    for now in range(0, 400, 10):
        if cordoned and now in (80, 200):
            changed = node(cordoned).cpu("8").label("topology.phalanx.dev/rack", "r0")
            recorded.apply(NodeChanged((changed.unschedulable() if now == 80 else changed).build()))
        if now in (0, 50):
            for made in members["a" if now == 0 else "b"] + (members["c"] if now else []):
                recorded.apply(PodChanged(made.build()))
        for name, end in (("a", 100), ("b", 300)):
            if now == end:
                for made in members[name] * 2:  # an ended pod is written again, by its Job
                    recorded.apply(PodChanged(made.node(bound[made.build().metadata.name]).phase("Succeeded").build()))
        for decision in recorded.step(float(1000 + now), 100):
            if isinstance(decision, Bind):
                bound[decision.name] = decision.node
                made = next(m for group in members.values() for m in group if m.build().metadata.name == decision.name)
                recorded.apply(PodChanged(made.node(decision.node).build()))
    recorded.close()
    return path
