"""Stories that share what they have in common run as they would alone; what breaks in one of them is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.model.groups import forest
from support.lifecycle.events import Happenings
from support.lifecycle.run import Broken
from support.lifecycle.sequences import BRANCHES, Story, Tree, notify
from support.lifecycle.trees import tell_all

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["Job", "JobSet beside its controller"])
def test_a_branch_runs_in_a_copy_to_the_byte_as_it_runs_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: Any = Story.end
    histories = tmp_path / "histories"

    async def end(story: Story, life: Happenings) -> None:
        with histories.open("a") as file:
            file.write(f"{story.branch} {life.cluster.history}\n")
        await ends(story, life)

    def announced() -> dict[int, str]:
        lines = [line.split() for line in histories.read_text().splitlines()]
        histories.unlink()
        return {int(branch): history for branch, history in lines}

    monkeypatch.setattr(Story, "end", end)
    monkeypatch.setattr(Tree, "ends", lambda tree, branch: True)
    tree = Tree(name, 3)
    assert not tell_all([tree]).broken
    together = announced()
    assert len(together) == BRANCHES
    for branch in (0, 4, 9):
        notify([tree.story(branch)])
        assert announced() == {branch: together[branch]}


def test_what_breaks_in_a_branch_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    right = forest.spec_of_object

    def every_minimum_is_one(obj: Any) -> Any:
        return replace(right(obj), minimum=1)

    monkeypatch.setattr(forest, "spec_of_object", every_minimum_is_one)
    broken = tell_all([Tree("Job", seed) for seed in range(8, 16)]).broken
    assert any(" branch " in how for how in broken)
    assert all("pods and has" in how for how in broken), broken


def test_a_sequence_runs_from_the_command_line_as_make_fuzz_workloads_does() -> None:
    command = [sys.executable, "-m", "support.lifecycle", "--story", "Job beside its controller"]
    announced = subprocess.run(
        [*command, "--seed", "1", "--branch", "0"], capture_output=True, text=True, check=False, cwd=TESTS
    )
    assert (announced.stdout, announced.returncode) == ("nothing broke\n", 0), announced.stderr


def test_pods_may_wait_for_the_room_that_is_reserved_for_a_starving_pod() -> None:
    notify([Tree("StatefulSet beside its controller", 1795020635).story(7)])


def test_a_message_about_reserved_room_is_no_excuse_when_no_pod_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Happenings, "_age", lambda life, obj: 0.0)
    with pytest.raises(Broken, match="there is room, and 2 run"):
        notify([Tree("StatefulSet beside its controller", 1795020635).story(7)])
