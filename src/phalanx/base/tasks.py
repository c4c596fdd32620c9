"""Run tasks until they are cancelled; notice tasks that end early and tasks that ignore their cancellation.

asyncio's TaskGroup ignores a child that returns or is cancelled elsewhere, and waits without limit for a child that
lost its cancellation (in a library that turns it into a timeout).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn

log = logging.getLogger(__name__)

ASK_AGAIN = 3.0  # seconds after which a cancelled task that still runs is cancelled again
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a failed task is started again; doubles each time
PATIENCE = 12.0  # seconds after which a task that does not end is logged and left running


class EndedEarly(Exception):
    """A task that should run until it is cancelled ended by itself."""


async def run_all(works: Iterable[tuple[str, Coroutine[Any, Any, object]]]) -> NoReturn:
    """Run all until cancelled. The first task that ends, in any way, cancels the others; its cause is raised."""
    tasks = [begin(name, work) for name, work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        raise cause_of_end(tasks)
    finally:
        await end(tasks)


def begin(name: str, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
    """Start a task; if it is cancelled before its first step, close the coroutine."""
    task = asyncio.create_task(run_contained(name, work), name=name)
    task.add_done_callback(lambda _: work.close())
    return task


async def run_contained(name: str, work: Coroutine[Any, Any, object]) -> None:
    """Await the work and turn SystemExit and KeyboardInterrupt into EndedEarly.

    A plugin may raise them, and asyncio would then end the event loop.
    """
    try:
        await work
    except (SystemExit, KeyboardInterrupt) as raised:
        raise EndedEarly(f"{name} raised {type(raised).__name__}: {raised}") from raised


async def run_optional(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run work that is not essential for the other tasks; log a failure and return."""
    try:
        await work()
    except BaseException as raised:
        if is_own_cancellation(raised):
            raise
        log.exception("%s failed; the other parts continue without it", name)


async def run_restarting(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
    """Run work until cancelled; if it ends or fails, log why and start it again after a pause."""
    pause = FIRST_PAUSE
    while True:
        try:
            await work()
            log.error("%s ended by itself and is started again in %.0f s", name, pause)
        except BaseException as raised:
            if is_own_cancellation(raised):
                raise
            log.exception("%s failed and is started again in %.0f s", name, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def cause_of_end(tasks: Iterable[asyncio.Task[Any]]) -> Exception:
    """Return the failure of the first task that raised, else of the first that ended."""
    done = [task for task in tasks if task.done()]
    for task in done:
        if not task.cancelled() and (raised := task.exception()) is not None:
            return raised if isinstance(raised, Exception) else EndedEarly(f"{task.get_name()}: {raised!r}")
    for task in done:
        how = "was cancelled by something it waited for" if task.cancelled() else "ended by itself"
        return EndedEarly(f"{task.get_name()} {how}")
    return EndedEarly("no task ended")


async def end(tasks: Iterable[asyncio.Task[Any]], *, patience: float = PATIENCE) -> bool:
    """Cancel tasks and wait; return True if all ended.

    A task that ignores its cancellation is cancelled again, and after `patience` seconds named in the log.
    """
    tasks = list(tasks)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    interrupted = False
    waiting = [task for task in tasks if not task.done()]  # keeps the order, so that a simulation replays exactly
    while waiting and loop.time() < deadline:
        for task in waiting:
            task.cancel()
        try:
            await asyncio.wait(waiting, timeout=min(ASK_AGAIN, max(0.01, deadline - loop.time())))
        except asyncio.CancelledError:
            interrupted = True  # cancelled while waiting: cancel again and wait for all tasks
        waiting = [task for task in waiting if not task.done()]
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it
    for task in waiting:
        frames = task.get_stack(limit=1)
        where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "nowhere"
        log.error("%s does not end: it waits at %s", task.get_name(), where)
    if interrupted:
        raise asyncio.CancelledError
    return not waiting


def is_own_cancellation(raised: BaseException) -> bool:
    """Return True if the task that caught this exception is itself being cancelled.

    Everything else is a failure of the called code, including SystemExit and the cancellation of an awaited task.
    """
    if isinstance(raised, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(raised, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
