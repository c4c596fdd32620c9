"""A recording is private, never written over another, and its troubles are not the scheduler's."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.base.errors import ConfigProblem
from phalanx.engine.engine import Engine
from phalanx.engine.events import NodeChanged, PodChanged, PodGroupChanged
from phalanx.engine.framework.settings import EngineSettings
from phalanx.serve.recording import RecordedEngine, next_recording, read_head, replay
from phalanx.testing.builders import node, pod, pod_group


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    RecordedEngine(Engine(), path, {}).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_head(path)["format"] == 1


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("yesterday's")
    with pytest.raises(ConfigProblem, match="--record: .*is there already"):
        RecordedEngine(Engine(), path, {})
    assert path.read_text() == "yesterday's"
    assert next_recording(path).name == "run.jsonl.2"
    with pytest.raises(ConfigProblem, match="--record: cannot write .*No such file"):
        RecordedEngine(Engine(), tmp_path / "nowhere" / "run.jsonl", {})


def test_a_full_disk_ends_the_recording_and_not_the_scheduler(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorded = RecordedEngine(Engine(), tmp_path / "run.jsonl", {})
    assert recorded._file is not None
    recorded._file.close()
    recorded._file = open("/dev/full", "wb")  # noqa: SIM115 - the recording closes it
    for number in range(2000):
        recorded.apply(NodeChanged(node(f"n{number}").cpu("4").build()))
        recorded.step(float(number), 10)
    assert recorded.ended == "No space left on device"
    assert caplog.text.count("scheduling continues") == 1
    recorded.apply(PodChanged(pod("late").cpu("1").build()))
    assert [type(decision).__name__ for decision in recorded.step(3000.0, 10)] == ["Bind"]
    recorded.close()


def test_searches_that_were_cut_into_slices_replay_to_the_same_decisions(tmp_path: Path) -> None:
    """Others were bound between the slices, and each decision falls into the step in which it was made."""
    path = tmp_path / "run.jsonl"
    settings = EngineSettings(search_slice=30)
    recorded = RecordedEngine(Engine(settings), path, {})
    for i in range(8):
        recorded.apply(NodeChanged(node(f"n{i}").cpu(3 + i % 2).label("rack", f"r{i % 2}").build()))
    recorded.apply(PodGroupChanged(pod_group("hard").gang(9).build()))
    for i in range(9):
        member = pod(f"hard-{i}").cpu(1 + i % 3).group("hard").label("app", "hard").spread("rack", {"app": "hard"})
        recorded.apply(PodChanged(member.build()))
    names = []
    for number in range(60):
        if number % 4 == 0:
            recorded.apply(PodChanged(pod(f"easy-{number}").cpu("10m").build()))
        names += [each.name for each in recorded.step(1000.0 + number, 10) if type(each).__name__ == "Bind"]
    recorded.close()
    assert "easy-0" in names and "hard-0" in names and names.index("easy-4") < names.index("hard-0")
    assert read_head(path)["slice"] == 30
    assert replay(path, Engine(settings))["decisions"] > len(names) - 1
