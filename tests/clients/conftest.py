"""A whole cluster (scheduler, controllers, nodes) that the clients of other people talk to over TLS."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from support.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def cluster(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(nodes=3)


@pytest.fixture
def place(cluster: LocalCluster) -> str:
    """A namespace of one's own."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name
