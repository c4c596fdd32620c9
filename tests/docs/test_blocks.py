"""The YAML that pages begin with is applied as it stands, and does what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster

DOCS = Path(__file__).parents[2] / "docs"


def first_block(page: str) -> str:
    found = re.search(r"```yaml\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def racks(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(nodes=4, topology="racks=2,cpu=8")


@pytest.mark.parametrize(
    ("page", "groups", "pods"),
    [("concepts.md", 1, 2), ("groups.md", 1, 2), ("leaderworkerset.md", 2, 8)],
)
def test_the_first_example_of_a_page_runs(racks: LocalCluster, page: str, groups: int, pods: int) -> None:
    name = page.removesuffix(".md")
    racks.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    text = re.sub(
        r"^metadata: \{name: ([\w-]+)\}", rf"metadata: {{name: \1, namespace: {name}}}", first_block(page), flags=re.M
    )
    racks.apply(re.sub(r"^metadata:\n", f"metadata:\n  namespace: {name}\n", text, flags=re.M))
    running = racks.wait(
        f"/api/v1/namespaces/{name}/pods",
        lambda found: [pod["status"].get("phase") for pod in found["items"]] == ["Running"] * pods,
    )
    made = racks.get(f"/apis/scheduling.k8s.io/v1beta1/namespaces/{name}/podgroups")["items"]
    assert len(made) == groups
    assert all(pod["spec"]["schedulingGroup"]["podGroupName"] for pod in running["items"])
