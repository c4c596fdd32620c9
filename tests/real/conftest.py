"""Tests on a real kube-apiserver. All are skipped where kube-apiserver and etcd are not at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.programs import program
from support.real_cluster import RealCluster

NODES, CPU = 8, 8


def _cluster(directory: pytest.TempPathFactory, *, groups: bool) -> Iterator[RealCluster]:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        program(name)
    cluster = RealCluster(directory.mktemp("real"), groups=groups)
    try:
        cluster.install()
        cluster.nodes(NODES, CPU)
        yield cluster
        assert cluster.broken() == []
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster that serves groups itself, with deploy/ applied and no part of ours running."""
    yield from _cluster(tmp_path_factory, groups=True)


@pytest.fixture(scope="module", params=["native", "custom"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """The same, and a cluster on which groups are custom resources."""
    yield from _cluster(tmp_path_factory, groups=request.param == "native")
