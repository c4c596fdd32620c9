"""Tasks that run until they are cancelled: none ends unnoticed, and none outlives its cancellation.

asyncio's TaskGroup overlooks a child that returns or is cancelled elsewhere, and waits for ever for one whose
cancellation got lost on the way (a library that turns it into a timeout). Here both are noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn

log = logging.getLogger(__name__)

ASK_AGAIN = 3.0  # seconds after which a task that was cancelled and still runs is cancelled once more
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before something that failed is begun again; doubles each time
PATIENCE = 12.0  # seconds after which it is left alone, with a line in the log


class EndedEarly(Exception):
    """A task that should run until it is cancelled ended by itself."""


async def run_all(works: Iterable[tuple[str, Coroutine[Any, Any, object]]]) -> NoReturn:
    """Run all of them until cancelled. The first that ends, in whatever way, ends the others and is the error."""
    tasks = [begin(name, work) for name, work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        raise cause_of_end(tasks)
    finally:
        await end(tasks)


def begin(name: str, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
    """Start a task for the work.

    If the task is cancelled before its first step, the coroutine is closed.
    """
    task = asyncio.create_task(contained(name, work), name=name)
    task.add_done_callback(lambda _: work.close())
    return task


async def contained(name: str, work: Coroutine[Any, Any, object]) -> None:
    """Await the work and turn SystemExit and KeyboardInterrupt into EndedEarly.

    asyncio would let them, raised by a plugin, end the event loop.
    """
    try:
        await work
    except (SystemExit, KeyboardInterrupt) as raised:
        raise EndedEarly(f"{name} raised {type(raised).__name__}: {raised}") from raised


async def announced(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run work that the other tasks can do without; log a failure and return."""
    try:
        await work()
    except BaseException as raised:
        if is_own_cancellation(raised):
            raise
        log.exception("%s failed; the rest goes on without it", name)


async def kept(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
    """Run work without end that the other tasks can do without for a while.

    If it ends or fails, the log says why and it is started again after a pause.
    """
    pause = FIRST_PAUSE
    while True:
        try:
            await work()
            log.error("%s ended by itself and is begun again in %.0f s", name, pause)
        except BaseException as raised:
            if is_own_cancellation(raised):
                raise
            log.exception("%s failed and is begun again in %.0f s", name, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def cause_of_end(tasks: Iterable[asyncio.Task[Any]]) -> Exception:
    """Return why the first of several tasks ended that should not have ended."""
    done = [task for task in tasks if task.done()]
    for task in done:
        if not task.cancelled() and (raised := task.exception()) is not None:
            return raised if isinstance(raised, Exception) else EndedEarly(f"{task.get_name()}: {raised!r}")
    for task in done:
        how = "was cancelled by something it waited for" if task.cancelled() else "ended by itself"
        return EndedEarly(f"{task.get_name()} {how}")
    return EndedEarly("nothing ended")


async def end(tasks: Iterable[asyncio.Task[Any]], *, patience: float = PATIENCE) -> bool:
    """Cancel and wait. True when all have ended; tasks that ignore it are cancelled again, then named in the log."""
    tasks = list(tasks)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    interrupted = False
    waiting = [task for task in tasks if not task.done()]  # in order: a simulation replays exactly
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
            task.exception()  # seen
    for task in waiting:
        frames = task.get_stack(limit=1)
        where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "nowhere"
        log.error("%s does not end: it stands at %s", task.get_name(), where)
    if interrupted:
        raise asyncio.CancelledError
    return not waiting


def is_own_cancellation(raised: BaseException) -> bool:
    """Return True if the task that caught this exception is itself being ended.

    Everything else is a failure of what was called, including SystemExit and a cancellation of something awaited: it is
    logged and tried again, and never ends the process.
    """
    if isinstance(raised, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(raised, asyncio.CancelledError) and (task is None or task.cancelling() > 0)
