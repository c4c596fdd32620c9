"""Packing: how much of all GPUs is allocated when a trace of pods with parts of GPUs and whole GPUs fills a cluster.

    python bench/packing.py NODES.csv PODS.csv [--seed N] [--load 1.0] [--fragmentation WEIGHT]

The files have the format of Alibaba's cluster-trace-gpu-v2023 (openb): nodes with `sn,cpu_milli,memory_mib,gpu,model`,
pods with `cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec`. A GPU is a device whose capacity of 1,000 is divided among
claims. Pods come one by one and never end. Without `--seed` they come in the order of the file, again from the start
when it is over; with a seed they are drawn at random with replacement. The run ends when the pods that came have asked
for `--load` times the GPUs of the cluster. Allocated is what the claims of bound pods hold, as a share of all GPUs, and
the same for pods that ask for whole GPUs and for parts. `--fragmentation` sets the weight of the plugin
GPUFragmentation; 0 disables it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from devices import DRIVER, World
from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model import objects as o

Json = dict[str, Any]
WHOLE = 1000


def settings(weight: int | None) -> EngineSettings:
    """Return the default settings, with another weight of GPUFragmentation if one is given."""
    if weight is None:
        return EngineSettings()
    uses = tuple(PluginUse(name) for name in DEFAULT_PLUGINS if name != "GPUFragmentation")
    if weight:
        uses = (*uses, PluginUse("GPUFragmentation", weight))
    return EngineSettings(profiles=(ProfileSettings(plugins=uses),))


class OpenCluster(World):
    """Nodes of a trace, with one device per GPU."""

    def __init__(self, rows: list[dict[str, str]], weight: int | None = None) -> None:
        self.engine = Engine(settings(weight))
        self.claims, self.pods, self.bound, self.now = {}, {}, 0, 1000.0
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        body = {"metadata": {"name": "gpu", "uid": "gpu"}, "spec": {"selectors": [selector]}}
        self.engine.apply(e.DeviceClassChanged(msgspec.convert(body, o.DeviceClass)))
        for row in rows:
            self._add(row)

    def _add(self, row: dict[str, str]) -> None:
        name = row["sn"]
        amounts = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi", "pods": "1000"}
        body: Json = {"metadata": {"name": name, "uid": name}, "status": {"allocatable": amounts}}
        self.engine.apply(e.NodeChanged(msgspec.convert(body, o.Node)))
        gpu = {"allowMultipleAllocations": True, "attributes": {"model": {"string": row["model"]}},
               "capacity": {"milli": {"value": str(WHOLE)}}}  # fmt: skip
        found = [{"name": f"gpu-{number}", **gpu} for number in range(int(row["gpu"]))]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": found}
        body = {"metadata": {"name": name, "uid": f"s-{name}"}, "spec": spec}
        self.engine.apply(e.ResourceSliceChanged(msgspec.convert(body, o.ResourceSlice)))

    def come(self, name: str, row: dict[str, str]) -> bool:
        """Let a pod come; return whether it was bound."""
        spec: Json = {
            "containers": [
                {
                    "name": "c",
                    "resources": {"requests": {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}},
                }
            ],
            "preemptionPolicy": "Never",
        }
        if int(row["num_gpu"]):
            made = _claim(name, row)
            self.claims["default", name] = made
            self.engine.apply(e.ResourceClaimChanged(made))
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        body = {"metadata": {"name": name, "namespace": "default", "uid": f"p-{name}"}, "spec": spec}
        pod = self.pods[name] = msgspec.convert(body, o.Pod)
        before = self.bound
        self.engine.apply(e.PodChanged(pod))
        self.run()
        if self.bound == before:
            self.engine.apply(e.Gone("Pod", name, "default", f"p-{name}"))
        return self.bound > before


def _claim(name: str, row: dict[str, str]) -> o.ResourceClaim:
    exactly: Json = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": int(row["num_gpu"])}
    exactly["capacity"] = {"requests": {"milli": row["gpu_milli"]}}
    if models := row.get("gpu_spec"):
        allowed = " || ".join(f'device.attributes["{DRIVER}"].model == "{model}"' for model in models.split("|"))
        exactly["selectors"] = [{"cel": {"expression": allowed}}]
    body = {"metadata": {"name": name, "namespace": "default", "uid": f"c-{name}"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}  # fmt: skip
    return msgspec.convert(body, o.ResourceClaim)


def arrivals(rows: list[dict[str, str]], seed: int | None) -> Iterator[dict[str, str]]:
    if seed is None:
        yield from itertools.cycle(rows)
    draw = random.Random(seed)
    while True:
        yield draw.choice(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes")
    parser.add_argument("pods")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--fragmentation", type=int, metavar="WEIGHT")
    options = parser.parse_args()
    with open(options.nodes) as nodes, open(options.pods) as pods:
        node_rows, pod_rows = list(csv.DictReader(nodes)), list(csv.DictReader(pods))
    world, total = OpenCluster(node_rows, options.fragmentation), sum(int(row["gpu"]) for row in node_rows) * WHOLE
    came = bound = 0
    asked = {"whole": 0, "parts": 0}
    held = {"whole": 0, "parts": 0}
    begun = time.process_time()
    for row in arrivals(pod_rows, options.seed):
        amount = int(row["num_gpu"]) * int(row["gpu_milli"] or 0)
        kind = "parts" if 0 < int(row["gpu_milli"] or 0) < WHOLE else "whole"
        asked[kind] += amount
        came += 1
        if world.come(f"p{came:06d}", row):
            bound += 1
            held[kind] += amount
        if sum(asked.values()) >= options.load * total:
            break
    seconds = time.process_time() - begun
    print(f"GPUs allocated: {sum(held.values()) / total:.2%} of {total // WHOLE} ({bound} of {came} pods bound)")
    for kind in ("whole", "parts"):
        print(
            f"  {kind}: {held[kind] / total:.2%} of all GPUs, {held[kind] / max(1, asked[kind]):.2%} of what was asked"
        )
    print(f"CPU seconds: {seconds:.0f}")


if __name__ == "__main__":
    main()
