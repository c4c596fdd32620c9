"""A pytest plugin: a whole Kubernetes cluster as a fixture, for tests of controllers, operators, charts and clients.

In conftest.py:

    pytest_plugins = ["phalanx.testing.pytest"]

In a test:

    @pytest.mark.cluster(nodes=8, topology="racks=2,gpus=8")
    def test_my_operator(cluster):
        cluster.apply(open("job.yaml").read())
        ...

`cluster` is fresh for every test and starts in the test's own process within half a second; `cluster.kubeconfig` is a
file for kubectl and client libraries, `cluster.advance(3600)` lets an hour pass. `session_cluster` is one for all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # the cluster's code is read when the first one starts: sessions without one do not wait for it
    from phalanx.testing.local_cluster import LocalCluster

MARK = "cluster"
DEFAULTS: dict[str, Any] = {"nodes": 4}
ALLOWED = {
    "nodes",
    "topology",
    "gates",
    "run_nodes",
    "run_controllers",
    "run_scheduler",
    "data",
    "authorization",
    "audit_log",
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cluster(nodes=4, topology='', gates='', run_controllers=True, …): what the `cluster` fixture starts"
    )


@pytest.fixture(scope="session")
def start_phalanx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalCluster]]:
    """Return a factory of clusters that live until the end of the session, for tests that need several."""
    running: list[LocalCluster] = []

    def start(**options: Any) -> LocalCluster:
        cluster = _start(tmp_path_factory.mktemp("phalanx"), options)
        running.append(cluster)
        return cluster

    yield start
    for cluster in running:
        cluster.stop()


@pytest.fixture(scope="session")
def session_cluster(start_phalanx: Callable[..., LocalCluster]) -> LocalCluster:
    """Return one cluster for all tests: use a namespace of your own."""
    return start_phalanx()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Return a cluster for this test alone, configured by its mark `cluster`."""
    mark = request.node.get_closest_marker(MARK)
    started = _start(tmp_path, dict(mark.kwargs) if mark is not None else {})
    yield started
    started.stop()


def _start(directory: Path, options: dict[str, Any]) -> LocalCluster:
    """Start a cluster with checked options."""
    unknown = sorted(set(options) - ALLOWED)
    if unknown:
        raise pytest.UsageError(f"a cluster has no option {unknown[0]!r}; options are {', '.join(sorted(ALLOWED))}")
    with _without_collecting():
        from phalanx.testing.local_cluster import local_cluster

        started = local_cluster(directory, **{**DEFAULTS, **options})
        started.start()
    return started


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Disable the garbage collector during a start.

    Modules and a new cluster are a hundred thousand objects, none of them garbage: scanning them again and again takes
    a tenth of the start.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
