"""One descriptor per kind of workload: nothing outside its folder names it, and the folder says everything."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import phalanx
from phalanx.controllers.workloads import registry
from phalanx.controllers.workloads.kind import WorkloadKind

SOURCES = Path(phalanx.__file__).parent
FOLDER = SOURCES / "controllers" / "workloads"
ALLOWED = {
    # Spreading pods of a set is a rule of the scheduler.
    "serve/scheduler.py": {"ReplicaSet", "ReplicationController", "StatefulSet"},
    "web/manifest.py": {"ReplicaSet"},  # writes a question of the page as something kubectl would take
}


def test_nothing_outside_its_folder_names_a_kind() -> None:
    named = re.compile(rf"""["']({"|".join(registry.BY_KIND)})["']|\.({"|".join(registry.BY_KIND)})\b""")
    found = []
    for part in ("controllers", "serve", "cli", "kube", "web"):
        for path in sorted((SOURCES / part).rglob("*.py")):
            own = str(path.relative_to(SOURCES))
            if FOLDER in path.parents and path.parent != FOLDER:
                continue
            for line in path.read_text().splitlines():
                for match in named.finditer(line):
                    if (match[1] or match[2]) not in ALLOWED.get(own, ()):
                        found.append(f"{own}: {line.strip()}")
    assert found == []


def test_every_folder_is_a_kind_of_the_registry() -> None:
    folders = {path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists()}
    read = "\n".join(line for line in inspect.getsource(registry).splitlines() if line.startswith("from "))
    assert folders == set(re.findall(r"workloads\.(\w+)\.kind import", read))


def test_each_name_of_a_kind_on_the_command_line_means_one_kind() -> None:
    assert len(registry.BY_NAME) == sum(len(kind.names) for kind in registry.KINDS)
    assert len(registry.BY_KIND) == len(registry.KINDS)


@pytest.mark.parametrize("kind", registry.KINDS, ids=lambda kind: kind.resource.kind)
def test_a_kind_that_is_followed_says_how_its_pods_are_known(kind: WorkloadKind) -> None:
    if kind.grouped_in_cluster_mode:
        assert {resource for _, resource in kind.rights} == {kind.resource, *kind.reads}
    else:
        assert (kind.run is not None or kind.creates is not None) and not kind.rights
