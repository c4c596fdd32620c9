"""Run components as a process: event loop, signals, the ready line, exit codes.

A process ends on a signal, in bounded time, or when a task ends unexpectedly, with the cause in the log and a non-zero
exit code. It does not end on a lost lease: the work is created again as a standby, because restarts have increasing
backoffs and the API server will return.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from phalanx.base.errors import ConfigProblem
from phalanx.base.tasks import cause_of_end, run_optional
from phalanx.kube.lease import LeaderLost

LIBRARIES = (
    "uvicorn.error",
    "uvicorn.access",
    "asyncio",
    "aiohttp.server",
    "aiohttp.access",
    "aiohttp.web",
    "phalanx.api",
)
RECORDS_PER_MINUTE = 5  # records per message
MOST_MESSAGES = 256  # distinct messages counted
ADVICE = "No supported WebSocket library"  # prefix of a library's advice that does not apply here


class LimitedMessages(logging.Filter):
    """Limits log records per message (text without arguments). One filter per logger."""

    def __init__(self) -> None:
        super().__init__()
        self._minute = -1
        self._seen: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith(ADVICE):
            return False
        minute = int(record.created // 60)
        if minute != self._minute:
            self._minute = minute
            self._left_out = {
                key: count - RECORDS_PER_MINUTE for key, count in self._seen.items() if count > RECORDS_PER_MINUTE
            }
            self._seen = {}
        key = text if text in self._seen or len(self._seen) < MOST_MESSAGES else ""
        count = self._seen[key] = self._seen.get(key, 0) + 1
        if count > RECORDS_PER_MINUTE:
            return False
        if left_out := self._left_out.pop(key, 0):
            record.msg = f"{text} ({left_out} more of these were left out)"
        return True


def limit_libraries() -> None:
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if not any(isinstance(each, LimitedMessages) for each in logger.filters):
            logger.addFilter(LimitedMessages())


log = logging.getLogger(__name__)
MOST_CHARACTERS = 2_000  # limit of a log message

USAGE = 2  # exit code of errors that the user can fix
CRASH = 1
LAST_RESORT = 30.0  # seconds from the signal to the forced end, like Kubernetes' default grace period


class Runnable(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def until_failure(self) -> None:
        """Raise the exception of a failed part."""
        ...


@runtime_checkable
class Elected(Runnable, Protocol):
    """A runnable that acts only while it holds a lease."""

    def new_standby(self) -> Elected:
        """Return a new instance with only the lease's state; called after stop."""
        ...


def run_loop(main: Coroutine[Any, Any, int], *, serving: bool) -> int:
    """Run a coroutine to its exit code: with uvloop for an API server, else with asyncio's loop.

    A client under uvloop aborts in libuv if the server disappears during TLS (uvloop #653; `kube.client` refuses to
    start there). See docs/reliability.md.
    """
    if not serving:
        return asyncio.run(main)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return int(uvloop.run(main))


Then = Callable[[], Coroutine[Any, Any, None]]


def run(
    what: Runnable,
    ready: Callable[[], str],
    say: Callable[[str], None],
    then: Then | None = None,
    *,
    serving: bool = False,
) -> int:
    """Start, print the ready line, wait for a signal or a failure, stop; return the exit code.

    For the main function of a process: signal handlers stay installed, and the exit timer runs until the end. `then`
    runs once the process is ready. serving: this process has an API server and no client of another one.
    """
    try:
        return run_loop(_run(what, ready, say, then), serving=serving)
    finally:
        # All is stopped and written. Freeing the objects of a large cluster one by one would take seconds.
        gc.freeze()


class _EndTimer:
    """Handles signals even if the event loop is blocked, and ends the process if stopping takes too long."""

    def __init__(self) -> None:
        self.announced = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._soon = False
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not loop.add_signal_handler: its handlers need a running loop.
            signal.signal(number, lambda *_: self._on_signal())

    def _on_signal(self) -> None:
        self.soon()
        self._loop.call_soon_threadsafe(self.announced.set)

    def soon(self) -> None:
        """End the process after LAST_RESORT seconds: it prints its stacks and exits with code 1.

        faulthandler's C thread keeps the time: it needs neither the event loop nor the interpreter's lock.
        """
        if not self._soon and sys.__stderr__ is not None:
            self._soon = True
            faulthandler.dump_traceback_later(LAST_RESORT, exit=True, file=sys.__stderr__)

    def not_yet(self) -> None:
        """Cancel `soon`: stopping succeeded and the process continues."""
        if self._soon and not self.announced.is_set():
            self._soon = False
            faulthandler.cancel_dump_traceback_later()


async def _run(what: Runnable, ready: Callable[[], str], say: Callable[[str], None], then: Then | None) -> int:
    """Run until a signal or an end of its own, and then what is to follow."""
    ending = _EndTimer()
    # Objects of a cluster live long and have no cycles: garbage collection would take a third of a write and find
    # nothing.
    gc.set_threshold(100_000, 50, 100)
    while True:
        try:
            return await _run_once(what, ending, ready, say, then)
        except LeaderLost as lost:
            if not isinstance(what, Elected):
                raise
            log.error("%s: standing by to lead again", lost)
            what = what.new_standby()
            ready, then = (lambda: ""), None  # the ready line is printed once
            gc.unfreeze()
            ending.not_yet()


async def _run_once(
    what: Runnable, ending: _EndTimer, ready: Callable[[], str], say: Callable[[str], None], then: Then | None
) -> int:
    """Run from start to stop; return the exit code. Raises LeaderLost if a standby can follow."""
    starting = asyncio.create_task(what.start(), name="start")
    stopping = asyncio.ensure_future(ending.announced.wait())
    concurrent: list[asyncio.Future[None]] = []
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return 0
        await starting
        gc.collect()
        gc.freeze()
        if line := ready():
            say(line)
        if then is not None:
            concurrent.append(asyncio.ensure_future(run_optional("beside the control plane", then)))
        failing = asyncio.create_task(what.until_failure(), name="the control plane")
        await asyncio.wait((failing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            cause = cause_of_end((failing,))
            if isinstance(cause, LeaderLost) and isinstance(what, Elected):
                raise cause
            log.error("a part of the control plane failed", exc_info=cause)
            say(f"error: a part of the control plane failed: {cause}; see the log")
            return CRASH
        failing.cancel()
        return 0
    except ConfigProblem as problem:
        say(f"error: {problem}")
        return USAGE
    except LeaderLost:
        raise
    except Exception as problem:
        log.exception("starting failed")
        say(f"error: {type(problem).__name__}: {problem}; see the log")
        return CRASH
    finally:
        ending.soon()
        stopping.cancel()
        for task in concurrent:
            task.cancel()
        await asyncio.gather(*concurrent, return_exceptions=True)
        await what.stop()


class BoundedLines(logging.Formatter):
    """Truncates long messages: users' texts must not fill the log. Tracebacks are kept."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if len(record.message) > MOST_CHARACTERS:
            record.message = f"{record.message[:MOST_CHARACTERS]}… ({len(record.message)} characters)"
        return super().formatMessage(record)


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(BoundedLines("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    limit_libraries()
