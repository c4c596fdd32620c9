"""Answer queries in a fork of the process, from its present state, while the event loop continues.

A fork is a cheap snapshot of all state. The child never uses a socket, a file or the event loop: it closes inherited
ones, computes, writes its answer to a pipe and exits without clean-up. One query runs at a time, few wait, and each has
a time limit of `seconds`, after which it fails.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from typing import NoReturn

import msgspec

from phalanx.base.errors import ApiProblem, InternalError, Timeout, TooManyRequests, problem_from_status

log = logging.getLogger(__name__)

MOST_WAITING = 16
SECONDS = 60.0
_GOOD, _BAD = b"+", b"-"


class ForkedQueries:
    def __init__(self, *, seconds: float = SECONDS, waiting: int = MOST_WAITING) -> None:
        self._seconds, self._most = seconds, waiting
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self.child = 0  # process ID of the running child

    async def answer(self, compute: Callable[[], bytes]) -> bytes:
        """Return the result of `compute`, computed in a fork. Raises ApiProblem as `compute` does, or Timeout after the
        limit."""
        if self._waiting >= self._most:
            raise TooManyRequests("too many queries are waiting; ask again later", retry_after=1)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._fork(compute)
        finally:
            self._waiting -= 1

    async def _fork(self, compute: Callable[[], bytes]) -> bytes:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            _child(compute, theirs, self._seconds)
        os.close(theirs)
        self.child = child
        try:
            async with asyncio.timeout(self._seconds):
                answer = await _read(ours)
        except TimeoutError:
            raise Timeout(f"the query is too large: no answer within {self._seconds:.0f} s; ask about less") from None
        finally:
            os.close(ours)
            self.child = 0
            os.kill(child, signal.SIGKILL)  # its answer is no longer needed
            os.waitpid(child, 0)  # noqa: ASYNC222 - returns at once after SIGKILL
        if answer[:1] == _GOOD:
            return answer[1:]
        if answer[:1] == _BAD:
            raise problem_from_status(msgspec.json.decode(answer[1:]))
        raise InternalError("the process that computed the answer ended without one; see the log")


async def _read(pipe: int) -> bytes:
    """Return everything written to the pipe until it is closed."""
    loop = asyncio.get_running_loop()
    os.set_blocking(pipe, False)
    ended: asyncio.Future[None] = loop.create_future()
    parts: list[bytes] = []

    def ready() -> None:
        try:
            part = os.read(pipe, 1 << 20)
        except BlockingIOError:
            return
        if part:
            parts.append(part)
        elif not ended.done():
            ended.set_result(None)

    loop.add_reader(pipe, ready)
    try:
        await ended
    finally:
        loop.remove_reader(pipe)
    return b"".join(parts)


def _child(compute: Callable[[], bytes], pipe: int, seconds: float) -> NoReturn:
    """Run in the child: never returns, and never runs the parent's clean-up."""
    try:
        gc.disable()  # a collection would copy all pages
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(seconds) + 5)  # ends the child if the parent is gone
        # Inherited connections must be closed: their clients wait for that.
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        os.nice(10)
        try:
            answer = _GOOD + compute()
        except ApiProblem as problem:
            answer = _BAD + msgspec.json.encode(problem.status())
        except MemoryError:
            answer = _BAD + msgspec.json.encode(InternalError("the query needs too much memory").status())
        except BaseException as error:
            log.exception("computing the answer to a query")
            text = f"{type(error).__name__} while computing the answer; see the log"
            answer = _BAD + msgspec.json.encode(InternalError(text).status())
        view = memoryview(answer)
        while view:
            view = view[os.write(pipe, view) :]
    finally:
        os._exit(0)
