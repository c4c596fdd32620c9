"""Devices: pods, gangs and NVLink domains per second on 5,000 nodes of 8 devices, and what the devices cost in memory.

    python bench/devices.py [--nodes 5000] [--pods 4000] [--json]

Claims are written and shown at once, as an API server without any delay would do it; CEL evaluations are counted.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.model import objects as o

DRIVER = "gpu.example.com"
DEVICES = 8
Json = dict[str, Any]


def node(number: int) -> e.NodeChanged:
    name = f"n{number:05d}"
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    body = {"metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": amounts}}  # fmt: skip
    return e.NodeChanged(msgspec.convert(body, o.Node))


def resource_slice(number: int) -> e.ResourceSliceChanged:
    name = f"n{number:05d}"
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "model": {"string": "h100"},
                "nvlink": {"int": index // 4},
                "uuid": {"string": f"{name}-{index}"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(DEVICES)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    body = {"metadata": {"name": name, "uid": f"s-{name}"},
            "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}}  # fmt: skip
    return e.ResourceSliceChanged(msgspec.convert(body, o.ResourceSlice))


def device_class() -> e.DeviceClassChanged:
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "h100"'}}
    body = {"metadata": {"name": "gpu", "uid": "gpu"}, "spec": {"selectors": [selector]}}
    return e.DeviceClassChanged(msgspec.convert(body, o.DeviceClass))


def claim(name: str, count: int, constraints: list[Json]) -> o.ResourceClaim:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}
    body = {"metadata": {"name": name, "namespace": "default", "uid": f"c-{name}"},
            "spec": {"devices": {"requests": [request], "constraints": constraints}}}  # fmt: skip
    return msgspec.convert(body, o.ResourceClaim)


def pod(name: str, group: str) -> e.PodChanged:
    spec: Json = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    body = {"metadata": {"name": name, "namespace": "default", "uid": f"p-{name}"}, "spec": spec}
    return e.PodChanged(msgspec.convert(body, o.Pod))


def pod_group(name: str, size: int) -> e.PodGroupChanged:
    body = {"metadata": {"name": name, "namespace": "default", "uid": f"g-{name}"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}  # fmt: skip
    return e.PodGroupChanged(msgspec.convert(body, o.PodGroup))


class World:
    """An API server without delay: what is decided is done, and seen, before the next step."""

    def __init__(self, nodes: int) -> None:
        self.engine = Engine()
        self.claims: dict[tuple[str, str], o.ResourceClaim] = {}
        self.pods: dict[str, o.Pod] = {}
        self.bound = 0
        self.now = 1000.0
        self.engine.apply(device_class())
        for number in range(nodes):
            self.engine.apply(node(number))
            self.engine.apply(resource_slice(number))

    def see(self, name: str, count: int, constraints: list[Json], group: str = "") -> None:
        made = claim(name, count, constraints)
        self.claims["default", name] = made
        event = pod(name, group)
        self.pods[name] = event.object
        self.engine.apply(e.ResourceClaimChanged(made))
        self.engine.apply(event)

    def run(self) -> None:
        while True:
            self.now += 0.001
            decisions = self.engine.step(self.now)
            if not decisions:
                return
            for decision in decisions:
                self._perform(decision)

    def _perform(self, decision: d.Decision) -> None:
        engine = self.engine
        if isinstance(decision, d.ReserveClaim):
            old = self.claims[decision.namespace, decision.name]
            status = o.devices.ResourceClaimStatus(allocation=decision.allocation, reserved_for=[decision.consumer])
            new = msgspec.structs.replace(old, status=status)
            self.claims[decision.namespace, decision.name] = new
            engine.apply(e.Outcome(decision.id))
            engine.apply(e.ResourceClaimChanged(new))
            return
        engine.apply(e.Outcome(decision.id))
        if isinstance(decision, d.Bind):
            self.bound += 1
            old_pod = self.pods[decision.name]
            spec = msgspec.structs.replace(old_pod.spec, node_name=decision.node)
            engine.apply(e.PodChanged(msgspec.structs.replace(old_pod, spec=spec)))


def names(prefix: str, count: int) -> Iterator[str]:
    return (f"{prefix}{number:06d}" for number in range(count))


def suite(world: World, name: str, pods: int, count: int, constraints: list[Json], gang: int = 0) -> Json:
    if gang:
        for number in range(pods // gang):
            world.engine.apply(pod_group(f"{name}-{number}", gang))
    for number, each in enumerate(names(f"{name}-p", pods)):
        world.see(each, count, constraints, f"{name}-{number // gang}" if gang else "")
    before, evaluations = world.bound, world.engine.indexes.devices.selectors.evaluations
    start, cpu = time.perf_counter(), time.process_time()
    world.run()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    done = world.bound - before
    made = world.engine.indexes.devices.selectors.evaluations - evaluations
    return {
        "suite": name,
        "pods": pods,
        "bound": done,
        "pods/s": round(done / seconds),
        "pods per CPU second": round(done / cpu),
        "CEL evaluations": made,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    empty = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    world = World(options.nodes)
    world.engine.indexes.devices.sync()
    gc.set_threshold(100_000, 50, 100)  # garbage collection as in a serving process (serve/process.py)
    gc.collect()
    gc.freeze()
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - empty) / 1024
    domain = [{"matchAttribute": f"{DRIVER}/nvlink"}]
    results = [
        {"suite": "inventory", "devices": options.nodes * DEVICES, "MiB, with nodes": round(memory)},
        suite(world, "one-claim", options.pods, 1, []),
        suite(world, "gangs-of-8", options.pods, 1, [], gang=8),
        suite(world, "nvlink-4", options.pods // 4, 4, domain),
    ]
    for result in results:
        print(json.dumps(result) if options.json else "  ".join(f"{key}: {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
