"""Answer a question in a fork of the process, from the state of this moment, while the event loop goes on deciding.

A fork is a snapshot of everything for the price of its page tables. The child never touches a socket, a file or the
event loop: it closes what it inherited, computes, writes its answer into a pipe and ends without any clean-up. One at
a time, few wait, and none has longer than `seconds`: a question that is too large is an error, never a stall.
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


class Aside:
    def __init__(self, *, seconds: float = SECONDS, waiting: int = MOST_WAITING) -> None:
        self._seconds, self._most = seconds, waiting
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self.child = 0  # the process that thinks now

    async def answer(self, think: Callable[[], bytes]) -> bytes:
        """Return what `think` returns, computed in a forked process.

        Raises the ApiProblem that `think` raises, and Timeout if it takes too long.
        """
        if self._waiting >= self._most:
            raise TooManyRequests("too many questions are waiting to be answered; ask again later", retry_after=1)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._fork(think)
        finally:
            self._waiting -= 1

    async def _fork(self, think: Callable[[], bytes]) -> bytes:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            _child(think, theirs, self._seconds)
        os.close(theirs)
        self.child = child
        try:
            async with asyncio.timeout(self._seconds):
                said = await _read(ours)
        except TimeoutError:
            raise Timeout(
                f"the question is too large: no answer within {self._seconds:.0f} s; ask about less"
            ) from None
        finally:
            os.close(ours)
            self.child = 0
            os.kill(child, signal.SIGKILL)  # its answer is no longer needed
            os.waitpid(child, 0)  # noqa: ASYNC222 - it was killed: this returns at once
        if said[:1] == _GOOD:
            return said[1:]
        if said[:1] == _BAD:
            raise problem_from_status(msgspec.json.decode(said[1:]))
        raise InternalError("the process that thought about the question ended without an answer; see the log")


async def _read(pipe: int) -> bytes:
    """Everything until the other side closes."""
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


def _child(think: Callable[[], bytes], pipe: int, seconds: float) -> NoReturn:
    """Never returns, and never lets the parent's clean-up run a second time."""
    try:
        gc.disable()  # looking through everything would copy it
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(seconds) + 5)  # should the parent be gone
        # Connections that the parent closes must close: their other end waits for that.
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        os.nice(10)
        try:
            said = _GOOD + think()
        except ApiProblem as problem:
            said = _BAD + msgspec.json.encode(problem.status())
        except MemoryError:
            said = _BAD + msgspec.json.encode(InternalError("the question is too large for the memory").status())
        except BaseException as error:
            log.exception("thinking about a question")
            text = f"{type(error).__name__} while thinking about the question; see the log"
            said = _BAD + msgspec.json.encode(InternalError(text).status())
        view = memoryview(said)
        while view:
            view = view[os.write(pipe, view) :]
    finally:
        os._exit(0)
