"""Signs of life: after two seconds, on a terminal's standard error only, and the line is gone at the end."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phalanx.cli import progress as module
from phalanx.cli.progress import Progress, progress


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.drew = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.drew.set()
        return super().write(text)


def test_a_terminal_sees_how_far_it_is_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "AFTER", 0.0)
    with progress("replaying run.jsonl") as notify:
        notify(1, 4)
        assert terminal.drew.wait(30)
    assert "replaying run.jsonl" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")


def test_what_is_quick_or_no_terminal_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("quick"):
        pass
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(module, "AFTER", 0.0)
    with progress("in a log") as notify:
        notify(1, 2)
    assert terminal.getvalue() == "" and file.getvalue() == ""


def test_a_line_says_the_share_and_the_time() -> None:
    shown = Progress("restoring")
    assert shown.line(3.0).endswith("restoring, 3 s")
    shown.notify(1, 4)
    assert shown.line(65.0).endswith("25%, 65 s")
    assert shown.line(125.0).endswith("25%, 2 min 5 s")


def test_what_can_be_counted_is_counted() -> None:
    shown = Progress("starting", "nodes")
    shown.notify(1200, 5000)
    assert "starting 1,200 of 5,000 nodes" in shown.line(4.0) and shown.line(4.0).endswith("24%, 4 s")


def test_what_the_work_prints_stays_above_the_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "AFTER", 0.0)
    shown = Progress("bench engine")
    shown.start()
    try:
        assert terminal.drew.wait(30)
        shown.say("SchedulingBasic 4000\n")
    finally:
        shown.stop()
    assert capsys.readouterr().out == "SchedulingBasic 4000\n"
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_benchmark_tells_how_far_it_is() -> None:
    ours, theirs = pty.openpty()
    program = (
        "import sys; from phalanx.cli import bench, progress; progress.AFTER = 0.0\n"
        "sys.exit(bench.watched([sys.executable, '-c', sys.argv[1]], 'bench made-up'))"
    )
    script = (
        "import sys; sys.path.insert(0, 'bench'); from progress import counted\n"
        "for number in counted(range(3)): print('figure', number, flush=True); number != 1 or sys.stdin.readline()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=theirs, text=True, cwd=Path(__file__).parents[2])  # fmt: skip
    os.close(theirs)
    said = ""
    try:
        while "bench made-up 1 of 3 parts" not in said:
            said += os.read(ours, 4096).decode()
        out, _ = process.communicate("go on\n", timeout=60)
    finally:
        os.close(ours)
        process.kill()
    assert process.returncode == 0 and out.splitlines() == ["figure 0", "figure 1", "figure 2"]


BACKGROUND = """
import sys, time
from pathlib import Path
from phalanx.cli import progress
from phalanx.cli.detach import detached

progress.AFTER = 0.0
here = Path(sys.argv[1])

def start(tell):
    tell(1200, 5000)
    while not (here / "seen").exists():
        time.sleep(0.01)
    print("ready https://127.0.0.1:1", flush=True)
    return 0

sys.exit(detached(start, here / "log", 60.0, "Stop it."))
"""


def test_a_start_in_the_background_shows_how_many_nodes_exist(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", BACKGROUND, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    said = ""
    try:
        while "starting 1,200 of 5,000 nodes" not in said:
            said += os.read(ours, 4096).decode()
        (tmp_path / "seen").touch()
        out, _ = process.communicate(timeout=60)
    finally:
        (tmp_path / "seen").touch()
        os.close(ours)
        process.wait(60)
    assert process.returncode == 0 and out.startswith("ready ")
