"""The live table of `phalanx up --demo`, as wide and as high as people's terminals are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from phalanx.cli.live import picture
from phalanx.cli.local import _guide
from phalanx.serve.demo_table import DemoRow, DemoTable

WHY = "0 of 24 pods fit; at most 20 fit now; 4 more nodes with 8 nvidia.com/gpu are needed, of 32 nodes 12 are full"


def row(name: str, status: str = "Running", message: str = "", namespace: str = "default") -> DemoRow:
    return DemoRow(namespace, name, "PodGroup", "Gang 24", 0, 0, 24, "rack-3", status, message)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_width_shows_names_counts_and_the_reason_in_full(width: int) -> None:
    lines = picture([row("training-workers-0-x7k2p"), row("evaluation", "Unschedulable", WHY)], width, 24).plain
    assert all(len(line) <= width for line in lines.splitlines())
    assert lines.splitlines()[2].startswith("evaluation"), "what waits comes first"
    assert "training-worker" in lines and "0/24" in lines and "Unschedulable" in lines
    assert " ".join(lines.split()).count(WHY) == 1


def test_a_low_terminal_says_how_many_groups_it_does_not_show() -> None:
    lines = picture([row(f"group-{n:02d}") for n in range(40)], 80, 24).plain.splitlines()
    assert len(lines) <= 23
    assert lines[-1] == f"and {40 - (len(lines) - 3)} more: kubectl get podgroups -A"


def test_namespaces_are_shown_only_where_they_differ() -> None:
    assert "default/" not in picture([row("a"), row("b")], 80, 24).plain
    assert "team/b" in picture([row("a"), row("b", namespace="team")], 80, 24).plain


def test_names_of_controllers_are_short_where_no_other_group_of_their_namespace_has_them() -> None:
    long = "train-5c5cc84c88-train-pgt-0-54b5d444c"
    table = picture([row(long, namespace="team-a"), row(long, namespace="team-b")], 80, 24).plain
    assert "team-a/train " in table and "team-b/train " in table


def test_a_table_without_groups_is_drawn() -> None:
    assert "GROUP" in picture([], 80, 24).plain


def test_the_first_screen_of_the_demo_fits_eighty_by_twenty_four_with_the_link_still_in_sight() -> None:
    guide = _guide(Path("/home/somebody/phalanx/data/kubeconfig")).splitlines()
    assert all(len(line) <= 80 for line in guide if "export PATH" not in line), guide
    running = [row(f"{name}-13a8644306") for name in ("inference-0", "inference-1", "training")]
    waiting = row("evaluation-666f6c5df9-evaluation-pgt-0-5b5d884f64", "Unschedulable", WHY * 2)
    table = picture([*running, waiting], 80, 24).plain.splitlines()
    assert [line.split()[0] for line in table if "/24" in line] == [
        "evaluation",
        "inference-0",
        "inference-1",
        "training",
    ]
    ready, dashboard, blank, below = 1, 1, 2, 1
    assert ready + dashboard + blank + len(guide) + len(table) + below <= 24


class NoScreen:
    """Of the client the table only follows objects, which come by hand here."""


def named(name: str) -> dict[str, str]:
    return {"namespace": "default", "name": name, "uid": name, "resourceVersion": "1"}


def test_a_gang_whose_pods_have_their_nodes_is_not_said_to_wait_until_its_condition_follows() -> None:
    async def rows() -> list[DemoRow]:
        table = DemoTable(NoScreen(), lambda _: None)  # type: ignore[arg-type]
        for name in ("a", "b"):
            spec = {"nodeName": "n", "schedulingGroup": {"podGroupName": "g"}}
            table._pods.remember({"metadata": named(name), "status": {}, "spec": spec})
        announced = [{"type": "PodGroupInitiallyScheduled", "status": "False", "reason": "WaitingForMembers"}]
        for name, least in (("g", 2), ("h", 1)):
            policy = {"schedulingPolicy": {"gang": {"minCount": least}}}
            table._groups.remember({"metadata": named(name), "status": {"conditions": announced}, "spec": policy})
        return table.rows()

    assert [(row.name, row.status) for row in asyncio.run(rows())] == [("g", "Running"), ("h", "Waiting")]


def test_a_gang_that_is_being_bound_does_not_show_the_condition_of_its_last_attempt() -> None:
    """It has no headline then, and kube-scheduler's words are not for the table."""

    async def rows() -> list[DemoRow]:
        table = DemoTable(NoScreen(), lambda _: None)  # type: ignore[arg-type]
        start = {"type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable"}
        healthy = {"type": "scheduling.phalanx.dev/Healthy", "status": "False", "reason": "Scheduling"}
        conditions = [
            {**start, "message": "pod group is unschedulable"},
            {**healthy, "message": "2 of 3 have a node"},
        ]
        policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        table._groups.remember({"metadata": named("g"), "status": {"conditions": conditions}, "spec": policy})
        return table.rows()

    assert [(row.status, row.message) for row in asyncio.run(rows())] == [("Scheduling", "2 of 3 have a node")]
