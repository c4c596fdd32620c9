"""Kubernetes' own end-to-end tests against whole local clusters: those of upstream/passing.txt pass."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from clients.commands import Commands
from clients.upstream_tests import PASSED, cannot, passing, run, summary
from support.local_cluster import LocalCluster
from support.programs import program

CLUSTERS = 6  # every one has a process of e2e.test of its own
ZONES = ("Multi-AZ",)  # in the names of tests that want nodes in several
ANNOTATED = (  # of those whose pods end by themselves, are ready late, lack an image or write a log
    "[sig-apps] Job", "[sig-apps] CronJob", "TTLAfterFinished", "UnhealthyPodEvictionPolicy", "PersistentVolumes NFS",
    "should rollback without unnecessary restarts", "support proportional scaling", "set in pod conditions",
    "report success for a pending container", "[sig-node] Events should be sent", "running a failing command",
)  # fmt: skip


def among(names: list[str], words: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(word in name for word in words)]


def test_every_test_is_in_one_list_and_what_cannot_pass_has_a_reason() -> None:
    assert passing() == sorted(set(passing()))
    assert list(cannot()) == sorted(cannot())
    assert not set(passing()) & set(cannot())
    assert all(reason.strip() for reason in cannot().values())


@pytest.mark.timeout(3600)
def test_those_that_passed_before_pass(start_cluster: Callable[..., LocalCluster]) -> None:
    """UPSTREAM_TESTS=words chooses those whose names have these words."""
    binary = program("e2e.test")
    faulthandler.cancel_dump_traceback_later()  # a quarter of an hour is usual here
    names = [name for name in passing() if os.environ.get("UPSTREAM_TESTS", "") in name]
    announced, zones = among(names, ANNOTATED), among(names, ZONES)
    plain = [name for name in names if name not in announced and name not in zones]
    clusters = [start_cluster(nodes=5) for _ in range(min(CLUSTERS, len(plain)))]
    outcomes = run(binary, [cluster.kubeconfig for cluster in clusters], plain)
    clusters = [start_cluster(nodes=5) for _ in range(min(CLUSTERS // 2, len(announced)))]
    with ExitStack() as stack:
        for cluster in clusters:
            stack.callback(Commands(cluster).close)
        outcomes += run(binary, [cluster.kubeconfig for cluster in clusters], announced)
    if zones:
        outcomes += run(binary, [start_cluster(nodes=6, topology="zones=2").kubeconfig], zones)
    print(summary(outcomes))
    assert all(outcome.state == PASSED for outcome in outcomes), summary(outcomes)
