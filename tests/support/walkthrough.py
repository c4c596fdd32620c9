"""Plays a walk-through: the `console` blocks of a document, typed into one shell, against the cluster it starts.

A line that starts with `$ ` is a command; a here-document belongs to it. What follows, up to the next command, is what
the command prints. `<WORD>` stands for something that differs from run to run (`<PODS>` for several, with commas), a
line `...` for any lines; runs of blanks count as one. The command that starts the cluster is in an `sh` block and runs
beside the others; a further `sh` block begins another cluster in another directory. A `yaml` block that begins with the
comment `# NAME.yaml` is that file.

    python -m support.walkthrough docs/how-to/gang-workloads.md    # prints what really comes out
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT = 90.0


@dataclass
class Step:
    line: int
    command: str
    expected: list[str] = field(default_factory=list)


@dataclass
class Walk:
    start: str = ""  # the command that starts the cluster
    steps: list[Step] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> list[Walk]:
    """Return a walk for each cluster of the document."""
    walks = [Walk()]
    fence = until = file = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = "" if fence else line[3:].strip()
            until = file = ""
            if fence == "sh" and walks[-1].start:
                walks.append(Walk())
        elif fence == "sh":
            walks[-1].start = f"{walks[-1].start}\n{line}".lstrip()
        elif fence == "yaml":
            named = re.fullmatch(r"# (\S+\.yaml)", line)
            file = named[1] if named else file
            if file:
                walks[-1].files[file] = walks[-1].files.get(file, "") + line + "\n"
        elif fence == "console":
            steps = walks[-1].steps
            if until:
                steps[-1].command += "\n" + line
                until = "" if line == until else until
            elif line.startswith("$ "):
                steps.append(Step(number, line[2:]))
                here = re.search(r"<<-?\s*'?(\w+)'?", line)
                until = here[1] if here else ""
            else:
                steps[-1].expected.append(line)
    return walks


def matches(expected: list[str], printed: list[str]) -> bool:
    """Line by line; `...` takes any number of lines."""
    if not expected:
        return not printed
    if expected[0].strip() == "...":
        return any(matches(expected[1:], printed[at:]) for at in range(len(printed) + 1))
    return bool(printed) and _same(expected[0], printed[0]) and matches(expected[1:], printed[1:])


def _same(expected: str, printed: str) -> bool:
    pieces = re.split(r"(<[A-Z]+>)", " ".join(expected.split()))
    wild = {"<PODS>": r"\S+(?:, \S+)*"}
    pattern = "".join(
        wild.get(piece, r"\S+") if re.fullmatch(r"<[A-Z]+>", piece) else re.escape(piece) for piece in pieces
    )
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


class Shell:
    def __init__(self, directory: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        source = os.environ.get("PYTHONPATH", "")  # of a checkout that shares the virtual environment of another
        self.environment = {"PATH": path, "HOME": str(directory), "LC_ALL": "C.UTF-8", "PYTHONPATH": source}
        self._directory = directory
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=directory, env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def background(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command.split(), cwd=self._directory, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, command: str) -> tuple[int, list[str]]:
        stdin, stdout = self._bash.stdin, self._bash.stdout
        assert stdin is not None and stdout is not None
        stdin.write(f"{{ {command}\n}} </dev/null; printf '\\n==%s==\\n' $?\n".encode())
        stdin.flush()
        collected = b""
        end = time.monotonic() + TIMEOUT
        while not (done := re.search(rb"\n==(\d+)==\n$", collected)):
            ready, _, _ = select.select([stdout], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise AssertionError(f"no end of: {command}\n{collected.decode()}")
            collected += piece
        printed = collected[: done.start()].decode()
        return int(done[1]), [line.rstrip() for line in printed.splitlines()]

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()


def play(document: Path, *, start: str = "", until: str = "", show: bool = False) -> list[str]:
    """Everything that differs from what the document says. `start` is for documents that start with `make up`,
    `until` what the cluster prints before the first command makes sense."""
    problems = []
    for walk in parse(document.read_text()):
        walk.start = start or walk.start
        problems += _play(walk, document.name, until=until, show=show)
    return problems


def _play(walk: Walk, name: str, *, until: str, show: bool) -> list[str]:
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(Path(__file__).parents[2] / "examples")
        for file, text in walk.files.items():
            (Path(folder) / file).write_text(text)
        shell = Shell(Path(folder))
        cluster = shell.background(walk.start)
        try:
            assert cluster.stdout is not None
            line = cluster.stdout.readline()
            assert line.startswith("ready"), line + cluster.stdout.read()
            while until and until not in line:
                line = cluster.stdout.readline()
                assert line, f"the cluster ended before it said {until!r}"
            for step in walk.steps:
                code, printed = shell.run(step.command)
                while printed and not printed[-1]:
                    printed.pop()
                expected = list(step.expected)
                while expected and not expected[-1].strip():
                    expected.pop()
                if show:
                    print(f"$ {step.command}\n" + "\n".join(printed))
                asks = step.command.startswith("phalanx ")  # whose exit code is an answer
                if not matches(expected, printed) or (code and not asks):
                    want, got = "\n".join(expected), "\n".join(printed)
                    problems.append(
                        f"{name}:{step.line}: {step.command.splitlines()[0]} (exit {code})\n"
                        f"--- the document says\n{want}\n--- it printed\n{got}"
                    )
        finally:
            shell.close()
            cluster.terminate()
            cluster.communicate(timeout=30)
    return problems


if __name__ == "__main__":
    play(Path(sys.argv[1]), show=True)
