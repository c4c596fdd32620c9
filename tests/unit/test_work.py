"""The work queue: nothing is forgotten, nothing runs twice at once, failures come back later and later."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from phalanx.base import work as module
from phalanx.base.errors import Conflict, Forbidden
from phalanx.base.work import WorkQueue
from support.virtual_time import VirtualLoop, run


def play(work: Callable[[str], Awaitable[None]], scenario: Callable[[WorkQueue[str]], Awaitable[None]]) -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test")
        running = asyncio.create_task(queue.run(work, workers=3))
        async with asyncio.timeout(60):
            await scenario(queue)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_a_key_added_while_it_is_worked_on_comes_up_again_and_never_twice_at_once() -> None:
    done: Counter[str] = Counter()
    going: set[str] = set()
    gate, begun, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(key: str) -> None:
        assert key not in going
        going.add(key)
        begun.set()
        await gate.wait()
        going.discard(key)
        done[key] += 1
        if done[key] == 2:
            again.set()

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await begun.wait()
        for _ in range(5):
            queue.add("a")
        assert len(queue) == 2  # under way, and once more
        gate.set()
        await again.wait()
        assert done == {"a": 2} and len(queue) == 0

    play(work, scenario)


def test_a_waiting_key_waits_once_and_the_earlier_time_wins() -> None:
    order: list[str] = []
    finished = asyncio.Event()

    async def work(key: str) -> None:
        order.append(key)
        if key == "last":
            finished.set()

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add_after("a", 60)
        queue.add_after("a", 0.01)
        queue.add_after("a", 60)
        queue.add_after("last", 0.1)
        queue.add("b")
        queue.add("b")
        await finished.wait()
        assert order == ["b", "a", "last"]

    play(work, scenario)


@pytest.mark.parametrize(
    "problem",
    [
        Conflict("changed"),
        ValueError("a defect"),
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        BaseExceptionGroup("x", [SystemExit()]),
    ],
)
def test_any_error_of_a_reconcile_is_retried_and_neither_delays_others_nor_ends_the_controller(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY", 0.001)
    tries: Counter[str] = Counter()
    finished = asyncio.Event()

    async def work(key: str) -> None:
        tries[key] += 1
        if key == "ill" and tries[key] < 4:
            raise problem
        if key == "ill":
            finished.set()

    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("ill")
        queue.add("well")
        await finished.wait()
        assert tries == {"ill": 4, "well": 1}
        assert not queue._failing, "success forgets failures"
        assert queue.failed == 3

    play(work, scenario)


def test_a_very_short_delay_under_uvloop_is_a_delay_like_any_other() -> None:
    """uvloop's call_later gives back a handle without `when` below half a millisecond."""
    uvloop = pytest.importorskip("uvloop")
    done = asyncio.Event()

    async def work(key: str) -> None:
        done.set()

    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test")
        running = asyncio.create_task(queue.run(work, workers=1))
        queue.add_after("a", 0.0001)
        queue.add_after("a", 0.0002)
        queue.add_after("a", 60)
        async with asyncio.timeout(60):
            await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    uvloop.run(main())


def test_cancelling_the_queue_ends_it_though_work_is_under_way() -> None:
    begun = asyncio.Event()

    async def work(key: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test")
        running = asyncio.create_task(queue.run(work, workers=2))
        queue.add("a")
        await begun.wait()
        running.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()

    asyncio.run(main())


def test_a_burst_of_news_about_what_must_wait_does_not_make_it_wait_longer() -> None:
    """A set whose group is not there yet hears of every pod that comes and goes meanwhile."""

    async def main(loop: VirtualLoop) -> float:
        queue: WorkQueue[str] = WorkQueue("test")
        possible, done = False, asyncio.Event()

        async def work(key: str) -> None:
            if not possible:
                raise Conflict("not yet")
            done.set()

        running = asyncio.create_task(queue.run(work, workers=1))
        for _ in range(100):
            queue.add("a")
            await asyncio.sleep(0.001)
        possible = True
        await done.wait()
        running.cancel()
        return loop.time()

    assert run(main) < 0.3, "waited 0.1 s: the next try is due within twice of that"


def test_news_about_what_keeps_failing_is_looked_at_about_once_a_second() -> None:
    """Simulation, seed 940008: a LeaderWorkerSet was gone and its informer had not heard of it; everything that was
    made for it was collected at once, and each of these deletions was a reason to make it again."""
    tries: list[float] = []

    async def main(loop: VirtualLoop) -> None:
        queue: WorkQueue[str] = WorkQueue("test")

        async def work(key: str) -> None:
            tries.append(loop.time())
            loop.call_later(0.001, queue.add, key)  # what it did comes back as news
            if tries[-1] < 60:
                raise Conflict("its owner is gone")

        queue.add("a")
        running = asyncio.create_task(queue.run(work, workers=1))
        await asyncio.sleep(70)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main)
    assert 30 < sum(when < 60 for when in tries) < 80
    assert any(60 <= when <= 61.1 for when in tries), "news is not left for the end of a long delay"


def test_a_worker_hired_at_the_very_end_leaves_nothing_unawaited(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """News that comes when the queue was asked to end, and has not ended yet, hires a worker that never begins."""
    gc.collect()  # what other tests left behind
    recwarn.clear()
    begun: list[str] = []

    async def work(key: str) -> None:
        begun.append(key)

    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test")
        running = asyncio.create_task(queue.run(work, workers=3))
        await asyncio.sleep(0)
        running.cancel()
        queue.add("a")
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    gc.collect()
    assert not begun and [str(warning.message) for warning in recwarn] == []


def test_work_in_a_namespace_that_is_being_deleted_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        queue: WorkQueue[str] = WorkQueue("jobs")
        causes: dict[str, list[dict[str, str]]] = {"ending": [{"reason": "NamespaceTerminating"}], "refused": []}

        async def work(key: str) -> None:
            raise Forbidden("pods is forbidden", causes=causes[key])

        for key in causes:
            queue.add(key)
        working = asyncio.create_task(queue.run(work, 2))
        await asyncio.sleep(10)
        working.cancel()

    with caplog.at_level(logging.WARNING):
        run(main)
    assert [record.getMessage() for record in caplog.records] == ["jobs: refused: pods is forbidden; retrying"]
