"""Kubernetes' own end-to-end tests against whole local clusters: those of upstream/passing.txt pass."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from programs import program
from upstream_tests import PASSED, cannot, passing, run, summary

from local_cluster import LocalCluster

CLUSTERS = 6  # every one has a process of e2e.test of its own
ZONES = "Multi-AZ"  # in the names of tests that want nodes in several


def test_every_test_is_in_one_list_and_what_cannot_pass_has_a_reason() -> None:
    assert passing() == sorted(set(passing()))
    assert list(cannot()) == sorted(cannot())
    assert not set(passing()) & set(cannot())
    assert all(reason.strip() for reason in cannot().values())


@pytest.mark.timeout(3600)
def test_those_that_passed_before_pass(start_cluster: Callable[..., LocalCluster]) -> None:
    """UPSTREAM_TESTS=words chooses those whose names have these words."""
    binary = program("e2e.test")
    names = [name for name in passing() if os.environ.get("UPSTREAM_TESTS", "") in name]
    apart = [name for name in names if ZONES in name]
    plain = [name for name in names if ZONES not in name]
    clusters = [start_cluster(nodes=5) for _ in range(min(CLUSTERS, len(plain)))]
    outcomes = run(binary, [cluster.kubeconfig for cluster in clusters], plain)
    if apart:
        outcomes += run(binary, [start_cluster(nodes=6, topology="zones=2").kubeconfig], apart)
    print(summary(outcomes))
    assert all(outcome.state == PASSED for outcome in outcomes), summary(outcomes)
