"""The fixture `cluster` as users test their own programs with it: official client, YAML, time that passes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from phalanx.testing.local_cluster import LocalCluster

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  scheduling: {schedulingPolicy: {gang: {}}}
  template:
    metadata: {annotations: {simulation.phalanx.dev/run-seconds: "3000"}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: train, resources: {requests: {cpu: "1"}}}]
"""


@pytest.fixture
def cluster(start_phalanx: Any) -> LocalCluster:
    started: LocalCluster = start_phalanx(nodes=2)
    return started


def test_a_job_runs_for_an_hour_in_a_moment(cluster: LocalCluster) -> None:
    cluster.apply(JOB)
    pods = "/api/v1/namespaces/default/pods"
    cluster.wait(pods, lambda found: [p["status"]["phase"] for p in found["items"]] == ["Running"] * 2)
    began = time.time()
    cluster.advance(3600)
    job = cluster.wait("/apis/batch/v1/namespaces/default/jobs/train", lambda j: j["status"].get("succeeded") == 2)
    assert job["status"]["completionTime"] > job["status"]["startTime"]
    assert all(_ready(node) for node in cluster.list("/api/v1/nodes")), "nodes are alive after an hour that was skipped"
    assert time.time() - began < 3000, "virtual time passed, not real time"


def test_client_libraries_use_its_kubeconfig(cluster: LocalCluster) -> None:
    api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(cluster.kubeconfig)))
    assert len(api.list_node().items) == 2


def test_what_cannot_be_applied_says_so(cluster: LocalCluster) -> None:
    with pytest.raises(LookupError, match="Jobb is not served"):
        cluster.apply({"apiVersion": "batch/v1", "kind": "Jobb", "metadata": {"name": "x"}})
    with pytest.raises(TimeoutError, match="/api/v1/nodes after 0 s"):
        cluster.wait("/api/v1/nodes", lambda found: False, timeout=0)


def test_another_test_suite_gets_the_fixture_with_one_line(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["phalanx.testing.pytest"]')
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cluster(nodes=3, topology="racks=3", run_controllers=False)
        def test_nodes(cluster):
            assert len(cluster.list("/api/v1/nodes")) == 3

        @pytest.mark.cluster(node=3)
        def test_misspelt(cluster):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*a cluster has no option 'node'*"])


def _ready(node: Any) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


def test_the_page_about_it_names_every_option() -> None:
    from phalanx.testing.pytest import ALLOWED

    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    assert all(f"`{option}`" in text for option in ALLOWED)
