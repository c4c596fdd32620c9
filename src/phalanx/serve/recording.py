"""Record all events and decisions of a scheduler in a file, and replay them: equal events give equal decisions.

One JSON object per line: a head with version, settings, gates and the work of a search slice, then `{"in": event}`,
`{"step": [now, limit]}` and `{"out": decision}` in order. A recording contains whole objects, so only its owner may
read it. It never overwrites a file. A full disk ends the recording, not the scheduler.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from phalanx import __version__
from phalanx.base.errors import ConfigProblem, Problem
from phalanx.engine import decisions, events
from phalanx.engine.engine import Engine

log = logging.getLogger(__name__)

FORMAT = 1


class ReplayProblem(Problem):
    """The recording cannot be replayed, or a decision differs."""


class RecordedEngine:
    """An engine with recorded inputs and outputs. Has the methods of Engine that services use."""

    def __init__(self, engine: Engine, path: Path, head: dict[str, Any]) -> None:
        """Raises ConfigProblem if the file exists or cannot be created."""
        self.engine = engine
        self.ended = ""  # why recording stopped
        self._path = path
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigProblem("--record", f"{path} is there already: name another file, or move it away") from None
        except OSError as problem:
            raise ConfigProblem("--record", f"cannot write {path}: {problem.strerror}") from None
        self._file: io.BufferedWriter | None = os.fdopen(made, "wb")
        about = {"format": FORMAT, "version": __version__, "slice": engine.settings.search_slice, **head}
        self._write(b'{"head":' + msgspec.json.encode(about) + b"}")

    def apply(self, event: events.Event) -> None:
        self._write(b'{"in":' + events.encode(event) + b"}")
        self.engine.apply(event)

    def step(self, now: float, limit: int) -> list[decisions.Decision]:
        """Record the step and its decisions."""
        self._write(b'{"step":' + msgspec.json.encode([now, limit]) + b"}")
        out = self.engine.step(now, limit)
        for decision in out:
            self._write(b'{"out":' + decisions.encode(decision) + b"}")
        if out:
            self._flush()
        return out

    def _write(self, line: bytes) -> None:
        """Append a line; a disk that is full ends the recording, not the scheduler."""
        if self._file is not None:
            try:
                self._file.write(line)
                self._file.write(b"\n")
            except OSError as problem:
                self._give_up(problem)

    def _flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as problem:
                self._give_up(problem)

    def _give_up(self, problem: OSError) -> None:
        self.ended = problem.strerror or str(problem)
        log.error("recording into %s ends here: %s; scheduling continues", self._path, self.ended)
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as problem:
                self.ended = self.ended or problem.strerror or str(problem)


def next_recording(path: Path) -> Path:
    """Return the file for a restarted scheduler: numbered after the first, never overwritten."""
    number = 2
    while (found := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return found


class _Line(msgspec.Struct, rename={"event": "in"}):
    head: dict[str, Any] | None = None
    event: msgspec.Raw = msgspec.Raw(b"")
    step: tuple[float, int] | None = None
    out: msgspec.Raw = msgspec.Raw(b"")


_LINE = msgspec.json.Decoder(_Line)


def read_head(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        line = file.readline()
    try:
        head = _LINE.decode(line).head
    except msgspec.DecodeError as error:
        raise ReplayProblem(f"{path} is not a recording: {error}") from error
    if head is None or head.get("format") != FORMAT:
        raise ReplayProblem(f"{path} is not a recording of format {FORMAT}")
    return head


Notify = Callable[[int, int], None]  # done, total
_REPORT_EVERY = 1000  # lines


def _lines(path: Path, notify: Notify) -> Iterator[tuple[int, _Line]]:
    with open(path, "rb") as file:
        total, done = os.fstat(file.fileno()).st_size, 0
        for number, line in enumerate(file, 1):
            done += len(line)
            if number % _REPORT_EVERY == 0:
                notify(done, total)
            try:
                yield number, _LINE.decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return  # the recorder was killed while it wrote this line
                raise ReplayProblem(f"{path}:{number}: {error}") from error


def replay(path: Path, engine: Engine, notify: Notify = lambda done, total: None) -> dict[str, int]:
    """Replay a recording in a new engine; raises ReplayProblem at the first different decision.

    `notify`: called from time to time with the bytes read.
    """
    counts = {"events": 0, "steps": 0, "decisions": 0}
    produced: list[bytes] = []
    for number, line in _lines(path, notify):
        if line.head is not None:
            continue
        if line.out:
            recorded = bytes(line.out)
            made = produced.pop(0) if produced else b"nothing"
            if made != recorded:
                raise ReplayProblem(
                    f"{path}:{number}: decision {counts['decisions'] + 1} differs\n"
                    f"  recorded: {recorded.decode()}\n  replayed: {made.decode()}"
                )
            counts["decisions"] += 1
            continue
        if produced:
            raise ReplayProblem(f"{path}:{number}: the engine decided more than was recorded: {produced[0].decode()}")
        if line.step is not None:
            produced = [decisions.encode(decision) for decision in engine.step(*line.step)]
            counts["steps"] += 1
        elif line.event:
            engine.apply(events.decode(bytes(line.event)))
            counts["events"] += 1
    return counts
