"""Parts of a process that start and stop together, and the reporting of their failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from phalanx.base.tasks import EndedEarly, end, run_contained

log = logging.getLogger(__name__)

FIRST_RESTART, LONGEST_RESTART = 0.5, 30.0  # seconds before a failed part is created again; doubled each time
STEADY = 60.0  # after this uptime the delay starts again at the minimum


def root_cause(problem: BaseException) -> BaseException:
    """Return the exception that ended a task group, without the enclosing groups."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


class Component(Protocol):
    """A part of the control plane that runs in this process."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Start the part; return when it works (caches filled, socket open)."""
        ...

    async def stop(self) -> None:
        """Stop the part; also safe if `start` failed."""
        ...

    @property
    def failed(self) -> asyncio.Future[None] | None:
        """Return a future that ends with the exception of a failed part; None: it cannot fail."""
        ...


class Loop:
    """A component with one endless coroutine, such as a controller's `run`."""

    def __init__(
        self,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        *,
        ready: Callable[[], Awaitable[object]] | None = None,
        stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._name, self._run, self._ready, self._stop = name, run, ready, stop
        self._task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] | None = None
        self._stopping = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def failed(self) -> asyncio.Future[None] | None:
        return self._failed

    async def start(self) -> None:
        self._failed = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._work(), name=self._name)
        if self._ready is None:
            return
        ready = asyncio.ensure_future(self._ready())
        await asyncio.wait((ready, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            self._failed.result()
        await ready

    async def _work(self) -> None:
        """Run the part and report how it ended."""
        assert self._failed is not None
        problem: BaseException
        try:
            await run_contained(self._name, self._run())
            if self._stopping:
                return
            problem = EndedEarly(f"{self._name} ended by itself")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopping or (task is not None and task.cancelling()):
                raise
            problem = EndedEarly(f"{self._name} was cancelled by something it waited for")
            log.error("%s", problem)
        except BaseException as raised:
            log.exception("%s died", self._name)
            problem = root_cause(raised)
        if not self._failed.done():
            self._failed.set_exception(problem)

    async def stop(self) -> None:
        self._stopping = True
        if self._stop is not None:
            await self._stop()
        if self._task is not None:
            await end((self._task,))
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # mark as retrieved
        self._task = None


class Supervised:
    """A part that is created again when it fails: its error is logged and counted, and other parts continue.

    It is created again because its state after an error is unknown. A failure of the first start is not handled: it is
    a wrong setting.
    """

    failed = None

    def __init__(self, make: Callable[[], Component], on_change: Callable[[], None] = lambda: None) -> None:
        self.name = "a part"  # replaced by the part's name
        self.failure = ""  # the failure, until the part works again
        self.restarts = 0
        self._make, self._on_change = make, on_change
        self._part: Component | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._part = self._make()
        self.name = self._part.name
        await self._part.start()
        self._watch = asyncio.create_task(self._restart_for_ever(), name=f"supervision of {self.name}")

    async def stop(self) -> None:
        if self._watch is not None:
            await end((self._watch,))
        if self._part is not None:
            await self._part.stop()

    async def _restart_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        delay = FIRST_RESTART
        while True:
            assert self._part is not None
            since = loop.time()
            died = self._part.failed
            if died is None:
                return
            await asyncio.wait((died,))
            if loop.time() - since > STEADY:
                delay = FIRST_RESTART
            while True:
                self.restarts += 1
                self.failure = f"{type(cause := died.exception()).__name__}: {cause}"
                log.error("%s failed (%s) and is started again in %.1f s", self.name, self.failure, delay)
                self._on_change()
                await self._stop_part()
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_RESTART)
                try:
                    self._part = self._make()
                    await self._part.start()
                    break
                except Exception as problem:
                    died = loop.create_future()
                    died.set_exception(root_cause(problem))
            self.failure = ""
            self._on_change()

    async def _stop_part(self) -> None:
        part, self._part = self._part, None
        try:
            if part is not None:
                await part.stop()
        except Exception:
            log.exception("%s did not stop cleanly", self.name)


class ComponentGroup:
    """Components that start one after the other and stop in reverse order."""

    def __init__(self, components: list[Component] | None = None) -> None:
        self._components = components or []
        self._started: list[Component] = []

    def add(self, component: Component) -> None:
        self._components.append(component)

    async def start(self) -> None:
        try:
            for component in self._components:
                self._started.append(component)
                await component.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        while self._started:
            component = self._started.pop()
            try:
                await component.stop()
            except Exception:
                # Other components still have to stop: the store is the last one and must be closed.
                log.exception("%s did not stop cleanly", component.name)

    async def until_failure(self, *others: asyncio.Future[None] | None) -> None:
        """Raise the exception of a failed component; otherwise never return."""
        found = (*others, *(component.failed for component in self._started))
        futures = [future for future in found if future is not None]
        if not futures:
            await asyncio.Event().wait()
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
