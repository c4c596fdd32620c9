"""Pods on simulated nodes, for tests of what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.in_process import Inside, Json

RUN = "simulation.phalanx.dev/run-seconds"
EXIT = "simulation.phalanx.dev/exit-code"
FAIL = "simulation.phalanx.dev/fail"
NODE = "node-00000"


async def bound(
    cluster: Inside, name: str, *, node: str = NODE, cpu: str = "1", policy: str = "Never", **rest: Any
) -> Json:
    annotations = rest.pop("annotations", {})
    spec = {
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        "nodeName": node,
        "restartPolicy": policy,
        **rest,
    }
    return await cluster.create("Pod", name, metadata={"annotations": annotations}, spec=spec)


def phase(*wanted: str) -> Callable[[Json], bool]:
    return lambda body: body.get("status", {}).get("phase") in wanted


def conditions(body: Json) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in body.get("status", {}).get("conditions") or ()}
