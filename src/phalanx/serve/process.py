"""Run components as a process: event loop, signals, the line that says `ready`, exit codes."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from phalanx.base.errors import ConfigProblem

log = logging.getLogger(__name__)

USAGE = 2  # exit code of everything the user can put right
CRASH = 1


class Runnable(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def until_failure(self) -> None:
        """Raises what a part died of."""
        ...


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """uvloop where there is one; asyncio's own loop elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return int(uvloop.run(main))


Then = Callable[[], Coroutine[Any, Any, None]]


def run(what: Runnable, ready: Callable[[], str], say: Callable[[str], None], then: Then | None = None) -> int:
    """Start, say ready, wait for a signal or a failure, stop. The exit code. `then` runs beside it once ready."""
    return run_loop(_run(what, ready, say, then))


async def _run(what: Runnable, ready: Callable[[], str], say: Callable[[str], None], then: Then | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # A cluster's objects live long and form no cycles: looking for garbage among them all the time costs a third of
    # a write and finds nothing.
    gc.set_threshold(100_000, 50, 100)
    starting = asyncio.ensure_future(what.start())
    stopping = asyncio.ensure_future(stop.wait())
    beside: list[asyncio.Future[None]] = []
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return 0
        await starting
        gc.collect()
        gc.freeze()
        say(ready())
        if then is not None:
            beside.append(asyncio.ensure_future(then()))
        failing = asyncio.ensure_future(what.until_failure())
        await asyncio.wait((failing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            say(f"error: a part of the control plane failed: {failing.exception()}; see the log")
            return CRASH
        failing.cancel()
        return 0
    except ConfigProblem as problem:
        say(f"error: {problem}")
        return USAGE
    finally:
        stopping.cancel()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await what.stop()


def configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname).1s %(name)s: %(message)s"
    )
