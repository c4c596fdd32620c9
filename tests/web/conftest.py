"""One cluster of 16 nodes in 4 racks with its dashboard, for all tests that do not restart it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.dashboard import Watched


@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    cluster = Watched(tmp_path_factory.mktemp("watched"), nodes=16, topology="blocks=2,racks=4")
    cluster.start()
    yield cluster
    cluster.stop()
