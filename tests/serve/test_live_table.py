"""The live table of `phalanx up --demo`, as wide and as high as people's terminals are."""

from __future__ import annotations

import pytest

from phalanx.cli.live import picture
from phalanx.serve.board import Row

WHY = "0 of 24 pods fit; at most 20 fit now; 4 more nodes with 8 nvidia.com/gpu are needed, of 32 nodes 12 are full"


def row(name: str, status: str = "Scheduled", message: str = "", namespace: str = "default") -> Row:
    return Row(namespace, name, "PodGroup", "Gang 24", 0, 0, 24, "rack-3", status, message)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_width_shows_names_counts_and_the_reason_in_full(width: int) -> None:
    lines = picture([row("training-workers-0-x7k2p"), row("evaluation", "Unschedulable", WHY)], width, 24).plain
    assert all(len(line) <= width for line in lines.splitlines())
    assert lines.splitlines()[2].startswith("evaluation"), "what waits comes first"
    assert "training-worker" in lines and "0/24" in lines and "Unschedulable" in lines
    assert " ".join(lines.split()).count(WHY) == 1


def test_a_low_terminal_is_told_how_many_groups_it_does_not_show() -> None:
    lines = picture([row(f"group-{n:02d}") for n in range(40)], 80, 24).plain.splitlines()
    assert len(lines) <= 23
    assert lines[-1] == f"and {40 - (len(lines) - 3)} more: kubectl get podgroups -A"


def test_namespaces_are_shown_only_where_they_differ() -> None:
    assert "default/" not in picture([row("a"), row("b")], 80, 24).plain
    assert "team/b" in picture([row("a"), row("b", namespace="team")], 80, 24).plain


def test_a_table_without_groups_is_drawn() -> None:
    assert "GROUP" in picture([], 80, 24).plain
