"""Placement quality: instances with known answers. Own small ones always; a whole folder where one is at hand."""

from __future__ import annotations

import os
from typing import Any

import pytest

from support.quality_loader import instance_files, read, run

G4 = {"allocatable": {"cpu": 46_000, "memory": 368_640, "nvidia.com/gpu": 4, "pods": 110}}
C16 = {"allocatable": {"cpu": 15_500, "memory": 59_392, "pods": 110}}
LEADER = {"requests": {"cpu": 24_000, "memory": 131_072, "nvidia.com/gpu": 2}}
WORKER = {"requests": {"cpu": 10_000, "memory": 65_536, "nvidia.com/gpu": 1}}
LOADER = {"requests": {"cpu": 6_000, "memory": 24_576}}


def instance(nodes: list[dict[str, Any]], root: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "nodeTypes": {"g4": G4, "c16": C16},
        "nodes": nodes,
        "podTemplates": {"leader": LEADER, "worker": WORKER, "loader": LOADER, **more.get("templates", {})},
        "running": {"pods": more.get("running", [])},
        "workloads": [{"name": "w", "root": r} for r in (root, *more.get("later", ()))],
    }


def gang_of(name: str, *counts: tuple[str, int], key: str | None = None, minimum: int | None = None) -> dict[str, Any]:
    pods = [[f"{name}-{t}-{i}", t] for t, n in counts for i in range(n)]
    return {"name": name, "policy": {"gang": minimum or len(pods)}, "topologyKey": key, "pods": pods}


def nodes(kind: str, count: int, start: int = 0, **labels: str) -> list[dict[str, Any]]:
    return [{"name": f"{kind}-{start + i}", "type": kind, "labels": labels} for i in range(count)]


def load(node: str, cpu: int, gpu: int) -> dict[str, Any]:
    return {"name": f"on-{node}", "node": node, "requests": {"cpu": cpu, "memory": 1, "nvidia.com/gpu": gpu}}


MIXED = nodes("g4", 2) + nodes("c16", 1)
APART = {"requests": {"cpu": 2_000, "memory": 4_096}, "labels": {"app": "s"}, "antiAffinity": [{"app": "s"}]}
RACKS = [
    *nodes("g4", 2, 0, rack="a", block="x"),
    *nodes("g4", 1, 2, rack="b", block="x"),
    *nodes("g4", 1, 3, rack="c", block="y"),
]

FEASIBLE = {
    "loaders leave the cpu of gpu nodes to workers": instance(
        MIXED, gang_of("g", ("loader", 4), ("leader", 1), ("worker", 5))
    ),
    "one replica per host": instance(MIXED, gang_of("g", ("apart", 3), ("worker", 2)), templates={"apart": APART}),
    "two racks of one block": instance(
        RACKS,
        {
            "name": "root",
            "policy": {"gang": 2},
            "topologyKey": "block",
            "children": [gang_of("small", ("worker", 4), key="rack"), gang_of("large", ("worker", 8), key="rack")],
        },
    ),
    "plain pods leave the cpu that feeds a device": instance(
        [*nodes("g4", 1), *nodes("c16", 1)],
        gang_of("first", ("loader", 1)),
        running=[load("g4-0", cpu=35_000, gpu=3)],  # fits one loader, and c16-0 two
        later=[gang_of("second", ("worker", 1))],
    ),
    "a small gang takes the device that no larger pod could use": instance(
        nodes("g4", 2),
        gang_of("first", ("worker", 1), ("loader", 1)),
        running=[
            load("g4-0", cpu=2_000, gpu=3),
            load("g4-1", cpu=20_000, gpu=2),
        ],  # left: 1 with 44 cpu, 2 with 26
        later=[gang_of("second", ("leader", 1))],
    ),
    "the next gang finds room too": instance(
        RACKS, gang_of("first", ("worker", 3), key="rack"), later=[gang_of("second", ("worker", 8), key="rack")]
    ),
}
INFEASIBLE = {
    "enough gpus, not on enough nodes": instance(
        nodes("g4", 3),
        gang_of("g", ("leader", 4)),
        running=[load(f"g4-{i}", cpu=1_000, gpu=1) for i in range(3)],
    ),
    "no rack of that size": instance(RACKS, gang_of("g", ("worker", 9), key="rack")),
    "one host too few": instance(MIXED, gang_of("g", ("apart", 4)), templates={"apart": APART}),
}


@pytest.mark.parametrize("name", FEASIBLE)
def test_what_can_be_placed_is_placed(name: str) -> None:
    result = run(FEASIBLE[name])
    assert result.violations == []
    assert result.solved


def racked(minimum: int, *sizes: int) -> dict[str, Any]:
    """Gangs of workers, each in one rack and content with two of them."""
    children = [gang_of(f"c{i}", ("worker", size), key="rack", minimum=2) for i, size in enumerate(sizes)]
    return {"name": "root", "policy": {"gang": minimum}, "topologyKey": None, "children": children}


@pytest.mark.parametrize(
    ("racks", "root", "most"),
    [
        # A rack of eight devices and one of four: the larger gang belongs into the larger rack.
        (
            (2, 1),
            racked(2, 5, 6),
            10,
        ),
        (
            (2, 1),
            racked(2, 6, 5),
            10,
        ),
        # One child is enough, and the one that comes first would keep the other from its rack.
        (
            (1, 1, 2),
            racked(1, 5, 7),
            11,
        ),
    ],
)
def test_a_tree_that_cannot_be_whole_gets_as_many_pods_as_can_be(
    racks: tuple[int, ...], root: dict[str, Any], most: int
) -> None:
    where = [n for r, size in enumerate(racks) for n in nodes("g4", size, 10 * r, rack=f"r{r}")]
    result = run(instance(where, root))
    assert result.violations == []
    assert result.solved and result.pods == most


@pytest.mark.parametrize("name", INFEASIBLE)
def test_what_cannot_be_placed_is_proved_so_and_nothing_binds(name: str) -> None:
    result = run(INFEASIBLE[name])
    assert result.verdicts == ["impossible"]
    assert result.pods == 0 and result.violations == []


@pytest.mark.parametrize("family", ["F1", "F2", "F3", "F4", "F5", "F6"])
def test_every_instance_of_a_family_gets_its_answer(family: str) -> None:
    """Of other folders than the public one, sequences are exempt: they are feasible only in hindsight."""
    elsewhere = "PHALANX_QUALITY_DIR" in os.environ
    files = instance_files(family)
    if not files:
        pytest.skip("no folder of quality instances beside the repository")
    missed, wrong, fewer = [], [], []
    for path in files:
        given = read(path)
        result = run(given)
        feasible = given["oracle"]["feasible"]
        if result.violations or (result.solved and not feasible):
            wrong.append(path.name)
        exempt = elsewhere and len(given["workloads"]) > 1
        if feasible and not result.solved and not exempt:
            missed.append(path.name)
        elif (
            family == "F4"
            and not elsewhere
            and given["oracle"]["feasible"]
            and result.pods < given["oracle"]["maxPods"]
        ):
            fewer.append(path.name)
    assert (missed, wrong, fewer) == ([], [], [])
