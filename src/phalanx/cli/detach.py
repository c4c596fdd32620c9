"""`phalanx up --detach`: the same process as without it, in the background; the caller returns when it is ready."""

from __future__ import annotations

import os
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from phalanx.base.errors import ConfigProblem
from phalanx.cli.progress import Progress

Notify = Callable[[int, int], None]
TAIL = 15  # lines of the log that are shown when the start failed


_COUNT = struct.Struct("qq")  # done, total: less than a pipe writes in one piece


def detached(start: Callable[[Notify], int], log: Path, patience: float, hint: str) -> int:
    """Run `start` in a background process, and return its exit code. Call before any thread or event loop exists.

    `start` gets a function that reports (done, total), which this process shows while it waits.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # the ready line of an earlier process is not ours
    counts, counted = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(counts)
        os.setsid()
        _to_log(log)
        code = 1

        def notify(done: int, total: int) -> None:
            with suppress(BlockingIOError, BrokenPipeError):  # the reader is gone; the output was for a terminal only
                os.write(counted, _COUNT.pack(done, total))

        try:
            code = start(notify)
        except ConfigProblem as problem:
            click.echo(f"error: {problem}", err=True)
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(counted)
    shown = Progress("starting", "nodes")
    shown.start()
    try:
        return _wait(child, log, patience, hint, lambda: _announced(counts, shown))
    finally:
        shown.stop()
        os.close(counts)


def _announced(counts: int, shown: Progress) -> None:
    """Show the newest count that has come through the pipe."""
    with suppress(BlockingIOError):
        found = os.read(counts, _COUNT.size * 4096)
        if found:
            shown.notify(*_COUNT.unpack(found[-_COUNT.size :]))


def _wait(child: int, log: Path, patience: float, hint: str, look: Callable[[], None]) -> int:
    end = time.monotonic() + patience
    while (line := _line(log, "ready ")) is None:
        look()
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            click.echo("\n".join(log.read_text(errors="replace").splitlines()[-TAIL:]), err=True)
            click.echo(f"error: the cluster did not start; its log is {log}", err=True)
            return os.waitstatus_to_exitcode(status) or 1
        if time.monotonic() > end:
            click.echo(
                f"error: not ready after {patience:.0f} s; it goes on starting, its log is {log}. {hint}", err=True
            )
            return 1
        time.sleep(0.02)
    click.echo(line)
    if (link := _line(log, "dashboard ")) is not None:
        click.echo(link)
    click.echo(f"runs in the background; its log is {log}. {hint}", err=True)
    return 0


def _to_log(log: Path) -> None:
    """Redirect standard output and error to a new log file; close the input."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _line(log: Path, start: str) -> str | None:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    return next((line for line in lines if line.startswith(start)), None)
