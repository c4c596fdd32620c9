"""Fixtures every layer's tests may use: a shared API server in memory, and clusters of one's own."""

from __future__ import annotations

import faulthandler
import itertools
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # tests of other layers do not need a server
    from support.local_cluster import LocalCluster

pytest_plugins = ["phalanx.testing.pytest", "pytester"]

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=["measured", "rest"], help="only tests with or without coverage: coverage.toml")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if part is None:
        return
    here = Path(__file__).parent
    rules = tomllib.loads((here / "coverage.toml").read_text())

    def measured(item: pytest.Item) -> bool:
        path = item.path.relative_to(here)
        return path.parts[0] in rules["folders"] and path.as_posix() not in rules["without"]

    chosen = [item for item in items if measured(item) == (part == "measured")]
    config.hook.pytest_deselected(items=[item for item in items if measured(item) != (part == "measured")])
    items[:] = chosen


def pytest_configure(config: pytest.Config) -> None:
    """An exception in an engine ends the test: only tests of malformed objects have it set the object aside."""
    from phalanx.engine.scheduling.lifecycle.isolation import Isolation

    Isolation.strict = True


@pytest.fixture(autouse=True)
def _no_process_of_ours_in_here() -> Iterator[None]:
    """`serve.process.run` makes the process its own: its signals, and a timer that ends it when ending takes too long.
    Here that would be the end of pytest, half a minute later and in the middle of another test."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    if [signal.getsignal(number) for number in numbers] != before:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        pytest.fail("a command that serves was run inside pytest: start it as a process")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker that died says nothing any more; its exit code tells who ended it (-9: the kernel, or a kill)."""
    if error:
        code = node.gateway._io.popen.wait(30)
        node.config.get_terminal_writer().line(f"{node.gateway.id} ended with code {code}")


@pytest.fixture(scope="session")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalCluster]]:
    """A factory of clusters that live until the end of the session."""
    from support.local_cluster import local_cluster

    running: list[LocalCluster] = []

    def start(**settings: Any) -> LocalCluster:
        cluster = local_cluster(tmp_path_factory.mktemp("cluster"), movable=False, **settings)
        cluster.start()
        running.append(cluster)
        return cluster

    yield start
    for cluster in running:
        cluster.stop()


@pytest.fixture(scope="session")
def server(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """The API server with its duties: no nodes, no controllers, no scheduler. Shared: use a namespace of your own."""
    return start_cluster(run_nodes=False, run_controllers=False, run_scheduler=False)


@pytest.fixture
def namespace(server: LocalCluster) -> str:
    """A fresh namespace on the shared server."""
    name = f"test-{next(_numbers)}"
    server.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
