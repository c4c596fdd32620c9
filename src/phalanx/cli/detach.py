"""`phalanx up --detach`: the same process as without it, in the background; the caller returns when it is ready."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from phalanx.base.errors import ConfigProblem
from phalanx.cli.progress import Progress

TAIL = 15  # lines of the log that are shown when the start failed


def detached(start: Callable[[], int], log: Path, patience: float, hint: str) -> int:
    """Run `start` in a process of its own; the exit code of the start. Call before any thread or event loop exists."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # the ready line of an earlier life is not ours
    child = os.fork()
    if child == 0:
        os.setsid()
        _to_log(log)
        code = 1
        try:
            code = start()
        except ConfigProblem as problem:
            click.echo(f"error: {problem}", err=True)
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    shown = Progress("starting")
    shown.start()
    try:
        return _wait(child, log, patience, hint)
    finally:
        shown.stop()


def _wait(child: int, log: Path, patience: float, hint: str) -> int:
    end = time.monotonic() + patience
    while (line := _line(log, "ready ")) is None:
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
    """Standard output and error become the log, which starts anew; there is no input."""
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
