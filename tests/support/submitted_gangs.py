"""Gangs that arrive at a running engine, created at its present time."""

from __future__ import annotations

from typing import Any

from phalanx.testing import Cluster
from phalanx.testing.builders import gang


def submit(run: Cluster, name: str, size: int, *, seconds: int = 0, **rules: Any) -> None:
    """Let a gang arrive and the scheduler decide. seconds: how long its pods may run; rules: as in `gang`."""
    group, *members = gang(name, size, **rules)
    for member in members:
        member.created(run.now)
        if seconds:
            member.spec["activeDeadlineSeconds"] = seconds
    run.see(group, *members).step()


def end(run: Cluster, name: str) -> None:
    """Delete a gang and its pods, and let the scheduler decide."""
    for pod_name in [p for p in run.pods if p.startswith(f"{name}-")]:
        run.gone("Pod", pod_name)
    run.gone("PodGroup", name)
    run.step()
