"""kill -9 in the middle of a write storm: what was acknowledged is there, nothing is half there."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx.local.store import Store, WindowBounds

STORM = """
import asyncio, os, sys, zlib
from phalanx.local.store import Store, WindowBounds

async def writer(store, me):
    round = 0
    while True:
        round += 1
        key = ("pods", "ns", f"{me}-{round % 5}")
        payload = f"{me}:{round}:".encode() * 200
        build = lambda revision: b"%d %d " % (revision, zlib.crc32(payload)) + payload
        if round % 7 == 0 and store.latest(key):
            entry, verb = await store.delete(key, build), "-"
        else:
            entry, verb = await store.put(key, build), "+"
        os.write(1, f"{verb} {key[2]} {entry.revision}\\n".encode())

async def main():
    store = Store.open(sys.argv[1], window=WindowBounds(changes=200))
    os.write(1, b"go\\n")
    await asyncio.gather(*(writer(store, me) for me in range(16)))

asyncio.run(main())
"""
ROUNDS = 50


def storm(path: Path, lines_to_read: int) -> list[str]:
    """Run a storm, kill it after some acknowledgements, return every whole line it managed to print."""
    process = subprocess.Popen([sys.executable, "-c", STORM, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = b""
    deadline = time.monotonic() + 60
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while output.count(b"\n") < lines_to_read and process.poll() is None:
            assert selector.select(max(0.0, deadline - time.monotonic())), "the storm went silent"
            output += process.stdout.read() or b""
    process.send_signal(signal.SIGKILL)
    process.wait()
    output += process.stdout.read() or b""
    process.stdout.close()
    assert output.startswith(b"go\n"), output
    return output.decode().split("\n")[1:-1]


async def check(path: Path, acknowledged: dict[str, tuple[str, int]], floor: int) -> int:
    """Every acknowledged write is there, or something newer on the same key; nothing is half there."""
    import zlib

    store = Store.open(path, window=WindowBounds(changes=200))
    revisions = {verb_revision[1] for verb_revision in acknowledged.values()} | {floor}
    assert store.revision >= max(revisions)
    for name, (verb, revision) in acknowledged.items():
        entry = store.get(("pods", "ns", name))
        changes = [] if store.oldest > revision else list_changes(store, revision)
        if entry is None:
            assert verb == "-" or any(c.deleted and c.entry.key[2] == name for c in changes), (name, verb, revision)
        else:
            assert entry.revision >= revision, (name, verb, revision)
            assert entry.revision > revision or verb == "+"
    for entry in store.list("pods"):
        revision_text, checksum, payload = entry.value.split(b" ", 2)
        assert int(revision_text) == entry.revision and int(checksum) == zlib.crc32(payload)
    top = store.revision
    await store.close()
    return top


def list_changes(store: Store, since: int) -> list[Any]:
    return store._window.after("pods", "ns", since)


@pytest.mark.slow
def test_every_acknowledged_write_survives_kill_nine(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    rng = random.Random(20)
    acknowledged: dict[str, tuple[str, int]] = {}
    top = 0
    for _ in range(ROUNDS):
        lines = storm(path, rng.randrange(1, 300))
        for line in lines:
            verb, name, revision = line.split()
            assert int(revision) > top, "a revision was used again after the crash"
            if int(revision) > acknowledged.get(name, ("", 0))[1]:
                acknowledged[name] = (verb, int(revision))
        top = asyncio.run(check(path, acknowledged, top))
    assert len(acknowledged) > 50
