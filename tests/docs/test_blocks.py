"""YAML on pages: what a page begins with does what the page says, and whatever can be applied is taken as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from phalanx.serve.scheduler_config import load_config
from support.local_cluster import LocalCluster

DOCS = Path(__file__).parents[2] / "docs"


# Blocks that are no objects of the API, and who reads them instead.
ELSEWHERE = {
    "migrate.md": "kinds of Kueue, which a cluster does not serve by itself: test_walkthroughs.py applies them",
    "metrics.md": "rules of Prometheus: test_documented.py reads them",
    "plugins.md": "a configuration with its own plugin, run by tests/engine/test_plugin_docs.py; a workflow of a CI",
}


def blocks() -> list[tuple[str, str]]:
    pages = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [(page.name, text) for page in pages for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)]


@pytest.mark.parametrize(("page", "text"), blocks(), ids=[page for page, _ in blocks()])
def test_every_manifest_on_a_page_is_taken(racks: LocalCluster, page: str, text: str, tmp_path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(text) if document]
    assert documents
    if page in ELSEWHERE:
        return
    for document in documents:
        if document["kind"] == "KubeSchedulerConfiguration":
            (tmp_path / "scheduler.yaml").write_text(text)
            config, _ = load_config(str(tmp_path / "scheduler.yaml"))
            assert [profile.scheduler_name for profile in config.profiles]
            continue
        racks.create(racks._path(document, "default"), document, dryRun="All", fieldValidation="Strict")


def first_block(page: str, heading: str) -> str:
    text = (DOCS / page).read_text()
    found = re.compile(r"```yaml\n(.*?)```", flags=re.DOTALL).search(text, text.index(heading))
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def racks(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(nodes=4, topology="racks=2,cpu=8")


@pytest.mark.parametrize(
    ("page", "heading", "groups", "pods"),
    [("groups.md", "# ", 1, 2), ("workloads.md", "## LeaderWorkerSet", 2, 8)],
)
def test_the_first_example_of_a_page_runs(racks: LocalCluster, page: str, heading: str, groups: int, pods: int) -> None:
    name = page.removesuffix(".md")
    racks.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    text = re.sub(
        r"^metadata: \{name: ([\w-]+)\}",
        rf"metadata: {{name: \1, namespace: {name}}}",
        first_block(page, heading),
        flags=re.M,
    )
    racks.apply(re.sub(r"^metadata:\n", f"metadata:\n  namespace: {name}\n", text, flags=re.M))
    running = racks.wait(
        f"/api/v1/namespaces/{name}/pods",
        lambda found: [pod["status"].get("phase") for pod in found["items"]] == ["Running"] * pods,
    )
    made = racks.get(f"/apis/scheduling.k8s.io/v1beta1/namespaces/{name}/podgroups")["items"]
    assert len(made) == groups
    assert all(pod["spec"]["schedulingGroup"]["podGroupName"] for pod in running["items"])
