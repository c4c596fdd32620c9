"""Groups of a leader and workers that come after it, for tests of LeaderReady."""

from __future__ import annotations

import json
from typing import Any

from phalanx.testing.builders import node, pod, pod_group

TO_COME = "scheduling.phalanx.dev/pods-to-come"


def replica(name: str, workers: int, cpu: str, *, topology: str = "", selector: Any = None, priority: int = 0) -> Any:
    """The group of a leader and so many workers, which do not exist yet."""
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    if selector:
        spec["nodeSelector"] = selector
    words = json.dumps({"size": workers + 1, "template": {"metadata": {}, "spec": spec}})
    group = (
        pod_group(name).gang(1).priority(priority).annotate(TO_COME, words).written_by("phalanx-controllers", TO_COME)
    )
    return group.topology(topology) if topology else group


def leader(name: str, cpu: str, priority: int = 0) -> Any:
    return pod(f"{name}-0").group(name).cpu(cpu).priority(priority)


def workers(name: str, count: int, cpu: str, **selector: str) -> list[Any]:
    made = [pod(f"{name}-{i + 1}").group(name).cpu(cpu) for i in range(count)]
    for key, value in selector.items():
        made = [one.select(key, value) for one in made]
    return made


def blocks(count: int, cpu: str = "8") -> list[Any]:
    return [node(f"n{b}{i}").cpu(cpu).label("block", f"b{b}") for b in range(count) for i in range(2)]
