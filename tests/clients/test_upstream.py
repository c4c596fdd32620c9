"""Kubernetes' own end-to-end tests against a whole local cluster: those of upstream/passing.txt pass."""

from __future__ import annotations

import os
from collections.abc import Callable

from programs import program
from upstream_tests import PASSED, cannot, passing, run, summary

from local_cluster import LocalCluster


def test_no_test_is_in_both_lists() -> None:
    assert passing() == sorted(set(passing()))
    assert not set(passing()) & set(cannot())
    assert all(reason.strip() for reason in cannot().values())


def test_those_that_passed_before_pass(start_cluster: Callable[..., LocalCluster]) -> None:
    """UPSTREAM_TESTS=words chooses those whose names have these words."""
    binary = program("e2e.test")
    names = [name for name in passing() if os.environ.get("UPSTREAM_TESTS", "") in name]
    cluster = start_cluster(nodes=5)
    outcomes = run(binary, cluster.kubeconfig, names)
    print(summary(outcomes))
    assert all(outcome.state == PASSED for outcome in outcomes), summary(outcomes)
