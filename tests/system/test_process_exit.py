"""A process ends when a signal requests it, and with its cause when a part of it ends unexpectedly."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import asyncio, os, sys, time
from phalanx.kube.lease import LeaderLost
from phalanx.serve import process
from phalanx.serve.component import Loop

process.LAST_RESORT = 0.5
process.configure_logging("info")

class Part:
    def __init__(self, work): self._loop = Loop("part", work)
    async def start(self): await self._loop.start()
    async def until_failure(self): await asyncio.shield(self._loop.failed)
    async def stop(self): await self._loop.stop()

async def well():
    await asyncio.Event().wait()

async def deaf():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def stuck():
    while True:
        await asyncio.sleep(0.01)
        say("stuck")
        time.sleep(60)

async def exits():
    await asyncio.sleep(0.01)
    raise SystemExit(0)

async def returns():
    await asyncio.sleep(0.01)

async def cancelled():
    await asyncio.sleep(0.01)
    raise asyncio.CancelledError

async def dies():
    await asyncio.sleep(0.01)
    raise RuntimeError("File descriptor 12 is used by transport")

class Elected:  # loses the lease twice, then leads
    lives = 0
    async def start(self):
        Elected.lives += 1
        say(f"life {Elected.lives}")
    async def until_failure(self):
        if Elected.lives < 3:
            raise LeaderLost("lease ns/name was lost")
        await well()
    async def stop(self): say("stopped")
    def new_standby(self): return Elected()

class State:  # a cycle, as the objects of a cluster are
    def __init__(self): self.myself = self
    def __del__(self, write=os.write): write(1, b"freed")

async def holds():
    await asyncio.sleep(0.01)
    State()
    await well()

def say(text): print(text, flush=True)
if sys.argv[1] == "elected":
    sys.exit(process.run(Elected(), lambda: "ready", say))
sys.exit(process.run(Part(globals()[sys.argv[1]]), lambda: "ready", say, serving=sys.argv[2] == "serving"))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def rest(process: subprocess.Popen[str]) -> str:
    """All it says until its end. Not communicate(): that forgets what readline() read ahead."""
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    process.wait(20)
    return said


@pytest.mark.parametrize("kind", ["serving", "calling"])
@pytest.mark.parametrize(("work", "code"), [("well", 0), ("deaf", 1), ("stuck", 1)])
def test_a_signal_ends_a_process_though_a_part_is_deaf_or_the_loop_stands_still(
    work: str, code: int, kind: str
) -> None:
    process = start(work, kind)
    if work == "stuck":
        assert process.stdout is not None
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    said = rest(process)
    assert process.returncode == code, said
    assert ("Timeout" in said and "most recent call first" in said) == bool(code), said


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        ("exits", "part raised SystemExit: 0"),
        ("returns", "part ended by itself"),
        ("cancelled", "part was cancelled"),
        ("dies", "File descriptor 12 is used by transport"),
    ],
)
def test_a_part_that_ends_by_itself_ends_the_process_with_its_cause(work: str, cause: str) -> None:
    process = start(work, "calling")
    said = rest(process)
    assert process.returncode == 1
    assert f"error: a part of the control plane failed: {cause}" in said and "Traceback" in said


def test_a_process_that_loses_its_lease_stands_by_again_and_still_ends_when_asked() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "elected", "calling"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(6)]
    assert lines == ["life 1", "ready", "stopped", "life 2", "stopped", "life 3"], "ready is said once"
    process.send_signal(signal.SIGTERM)
    assert rest(process) == "stopped\n" and process.returncode == 0


def test_a_process_that_stopped_does_not_free_its_objects_one_by_one() -> None:
    process = start("holds", "serving")
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert rest(process) == "" and process.returncode == 0


def test_a_message_that_quotes_much_of_what_users_wrote_is_cut() -> None:
    script = """
import logging
from phalanx.serve import process
process.configure_logging("info")
logging.getLogger("work").warning("Job %s: %s", "w", "[" * 100_000)
try:
    raise ValueError("y" * 10_000)
except ValueError:
    logging.getLogger("work").exception("failed")
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    first, *rest_of_it = said.splitlines()
    assert first.endswith("[… (100007 characters)") and 2_000 < len(first) < 2_200
    assert rest_of_it[-1] == f"ValueError: {'y' * 10_000}", "a traceback is whole"
