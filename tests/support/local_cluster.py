"""The public harness under the name that tests import, and waiting in a cluster whose clock is simulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from phalanx.testing.local_cluster import Json, LocalCluster, Reply, Watch, local_cluster

__all__ = ["Json", "LocalCluster", "Reply", "Watch", "advance_until", "local_cluster"]


def advance_until(cluster: LocalCluster, found: Callable[[], Any], seconds: float = 0.0) -> Any:
    """Wait for something, and return it; each round moves the cluster's time by `seconds`."""
    end = time.monotonic() + 60
    while not (answer := found()):
        assert time.monotonic() < end, "it never happened"
        if seconds:
            cluster.advance(seconds)
        time.sleep(0.05)
    return answer
