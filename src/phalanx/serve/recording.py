"""A scheduler's life as a file: every event in, every decision out, and the proof that the same events give the same.

One JSON object per line: a head with version, settings and gates, then `{"in": event}`, `{"step": [now, limit]}` and
`{"out": decision}` in the order in which they happened.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from phalanx import __version__
from phalanx.base.errors import Problem
from phalanx.engine import decisions, events
from phalanx.engine.engine import Engine

FORMAT = 1


class ReplayProblem(Problem):
    """The recording cannot be replayed, or the engine decided otherwise than recorded."""


class RecordedEngine:
    """An engine whose every input and output is written down. Same face as Engine for those who feed and step it."""

    def __init__(self, engine: Engine, path: Path, head: dict[str, Any]) -> None:
        self.engine = engine
        self._file: io.BufferedWriter = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._write(b'{"head":' + msgspec.json.encode({"format": FORMAT, "version": __version__, **head}) + b"}")

    def apply(self, event: events.Event) -> None:
        self._write(b'{"in":' + events.encode(event) + b"}")
        self.engine.apply(event)

    def step(self, now: float, limit: int) -> list[decisions.Decision]:
        self._write(b'{"step":' + msgspec.json.encode([now, limit]) + b"}")
        out = self.engine.step(now, limit)
        for decision in out:
            self._write(b'{"out":' + decisions.encode(decision) + b"}")
        if out:
            self._file.flush()
        return out

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.write(b"\n")

    def close(self) -> None:
        self._file.close()


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


def _lines(path: Path) -> Iterator[tuple[int, _Line]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, _LINE.decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return  # the recorder was killed in the middle of its last line
                raise ReplayProblem(f"{path}:{number}: {error}") from error


def replay(path: Path, engine: Engine) -> dict[str, int]:
    """Feed the recording to a fresh engine; raises ReplayProblem at the first decision that differs."""
    counts = {"events": 0, "steps": 0, "decisions": 0}
    produced: list[bytes] = []
    for number, line in _lines(path):
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
