"""The public harness under the name that tests import, and waiting in a cluster whose clock is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.testing.local_cluster import Json, LocalCluster, Reply, Watch, local_cluster
from support.waiting import eventually

__all__ = ["Json", "LocalCluster", "Reply", "Watch", "advance_until", "local_cluster"]


def advance_until(cluster: LocalCluster, found: Callable[[], Any], seconds: float = 0.0) -> Any:
    """Wait for something, and return it; each round moves the cluster's time by `seconds`."""
    return eventually(found, "what the test waits for", meanwhile=lambda: cluster.advance(seconds))
