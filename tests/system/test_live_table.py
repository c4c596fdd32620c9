"""The live table of `phalanx up --demo`, as wide and as high as people's terminals are."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cli.live import draw_table
from phalanx.cli.local import _guide
from phalanx.model.printing.groups import HEALTHY
from phalanx.serve.demo_table import DemoRow, rows_of
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, gang, node, pod, pod_group

WHY = "0 of 24 pods fit; at most 20 fit now; 4 more nodes with 8 nvidia.com/gpu are needed, of 32 nodes 12 are full"


def row(name: str, status: str = "Running", message: str = "", namespace: str = "default") -> DemoRow:
    return DemoRow(namespace, name, "PodGroup", "Gang 24", 0, 24, "rack-3", status, message)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_width_shows_names_counts_and_the_reason_in_full(width: int) -> None:
    lines = draw_table([row("training-workers-0-x7k2p"), row("evaluation", "Unschedulable", WHY)], width, 24).plain
    assert all(len(line) <= width for line in lines.splitlines())
    assert lines.splitlines()[2].startswith("evaluation"), "what waits comes first"
    assert "training-worker" in lines and "0/24" in lines and "Unschedulable" in lines
    assert " ".join(lines.split()).count(WHY) == 1


def test_a_low_terminal_says_how_many_groups_it_does_not_show() -> None:
    lines = draw_table([row(f"group-{n:02d}") for n in range(40)], 80, 24).plain.splitlines()
    assert len(lines) <= 23
    assert lines[-1] == f"and {40 - (len(lines) - 3)} more: kubectl get podgroups -A"


def test_namespaces_are_shown_only_where_they_differ() -> None:
    assert "default/" not in draw_table([row("a"), row("b")], 80, 24).plain
    assert "team/b" in draw_table([row("a"), row("b", namespace="team")], 80, 24).plain


def test_names_of_controllers_are_short_where_no_other_group_of_their_namespace_has_them() -> None:
    long = "train-5c5cc84c88-train-pgt-0-54b5d444c"
    table = draw_table([row(long, namespace="team-a"), row(long, namespace="team-b")], 80, 24).plain
    assert "team-a/train " in table and "team-b/train " in table


def test_a_table_without_groups_is_drawn() -> None:
    assert "GROUP" in draw_table([], 80, 24).plain


def test_the_first_screen_of_the_demo_fits_eighty_by_twenty_four_with_the_link_still_in_sight() -> None:
    guide = _guide(Path("/home/somebody/phalanx/data/kubeconfig")).splitlines()
    assert all(len(line) <= 80 for line in guide if "export PATH" not in line), guide
    running = [row(f"{name}-13a8644306") for name in ("inference-0", "inference-1", "training")]
    waiting = row("evaluation-666f6c5df9-evaluation-pgt-0-5b5d884f64", "Unschedulable", WHY * 2)
    table = draw_table([*running, waiting], 80, 24).plain.splitlines()
    assert [line.split()[0] for line in table if "/24" in line] == [
        "evaluation",
        "inference-0",
        "inference-1",
        "training",
    ]
    ready, dashboard, blank, below = 1, 1, 2, 1
    assert ready + dashboard + blank + len(guide) + len(table) + below <= 24


def rows(cluster: Cluster) -> list[tuple[str, str, int, int, str, str]]:
    found = rows_of(EngineReader(cluster.engine, lambda: cluster.now))
    return [(row.name, row.status, row.placed, row.pods, row.where, row.message) for row in found]


def test_the_table_shows_what_the_scheduler_knows_before_any_condition_is_written() -> None:
    rack = "topology.phalanx.dev/rack"
    cluster = Cluster().see(*(node(f"n{i}").cpu("2").label(rack, "r0") for i in range(2)))
    cluster.see(*gang("placed", 2, cpu="1", topology=rack), *gang("large", 9, cpu="2"), *gang("short", 2)[:2])
    cluster.step()
    large, placed, short = rows(cluster)
    assert placed == ("placed", "Running", 2, 2, "r0", "")
    assert large[:5] == ("large", "Scheduling", 0, 9, "")
    assert large[5].startswith("9 pods ask for 18 cpu")
    assert short[:2] == ("short", "Waiting")
    assert "1 of 2" in short[5]


def test_a_gang_that_lost_a_member_shows_the_message_of_its_condition() -> None:
    cluster = Cluster().see(node("n").cpu("4"), *gang("g", 2))
    cluster.step()
    cluster.gone("Pod", "g-0")
    cluster.step()
    ((_, status, placed, _, where, message),) = rows(cluster)
    assert (status, placed, where) == ("Degraded", 1, "1 node")
    assert message


def test_the_message_is_about_the_present_count_also_before_the_condition_is_written() -> None:
    cluster = Cluster().see(node("n").cpu("4"), *gang("g", 3))
    cluster.step()
    for left in (2, 1):
        cluster.gone("Pod", f"g-{left}")  # seen, and the condition is still of one more
        ((_, status, placed, _, _, message),) = rows(cluster)
        assert (status, placed) == ("Degraded", left)
        assert message.startswith(f"{left} of 3 pods have a node")


def test_a_group_whose_parent_is_missing_or_in_a_cycle_is_in_the_table() -> None:
    cluster = Cluster().see(
        node("n").cpu("4"),
        composite("a").gang(1).parent("b"),
        composite("b").gang(1).parent("a"),
        pod_group("in-cycle").gang(1).parent("a"),
        pod_group("orphan").gang(1).parent("nowhere"),
        *(pod(name).group(name).cpu("1") for name in ("in-cycle", "orphan")),
    )
    cluster.step(2)
    found = {name: (status, message) for name, status, *_, message in rows(cluster)}
    assert found.keys() == {"a", "b", "in-cycle", "orphan"}
    assert found["a"][0] == "Invalid" and "cyclic" in found["a"][1]
    assert found["orphan"][0] == "Waiting" and "nowhere" in found["orphan"][1]
    written = cluster.objects["CompositePodGroup"]["a"].status.conditions or ()
    assert [each.reason for each in written if each.type == HEALTHY] == ["Invalid"], "kubectl and the table agree"
