"""The README as users read it for the first time: typed word for word, and every manifest in it applied."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.local_cluster import LocalCluster
from support.walkthrough import play

README = Path(__file__).parents[2] / "README.md"
DEMO = "phalanx up --demo --data data --listen 127.0.0.1:0"  # what `make up` runs, on a free port


@pytest.mark.kubectl
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_the_five_minutes_happen_as_written() -> None:
    problems = play(README, start=DEMO, until="Scheduling 0/24")
    assert not problems, "\n\n".join(problems)


def test_every_manifest_is_accepted_and_its_gang_runs(start_cluster: Callable[..., LocalCluster]) -> None:
    cluster = start_cluster(nodes=4, topology="racks=2,gpus=8")
    blocks = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.S)
    assert blocks
    for block in blocks:
        pods = [body["metadata"]["name"] for body in yaml.safe_load_all(block) if body["kind"] == "Pod"]
        cluster.apply(block)
        path = "/api/v1/namespaces/default/pods"
        running = cluster.wait(
            path,
            lambda found, pods=pods: sum(p["status"].get("phase") == "Running" for p in found["items"]) >= len(pods),
        )
        assert {pod["metadata"]["name"] for pod in running["items"]} >= set(pods)
