"""A loop whose time jumps: hours cost nothing, order is by time, and waiting for ever is an error, not a hang."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.base.clock import MonotonicTime
from support.virtual_time import START, EndlessTurns, NothingScheduled, VirtualClock, VirtualLoop, run


def test_a_day_of_sleep_is_over_at_once() -> None:
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(86400)
        return loop.time()

    assert run(main) == pytest.approx(86400)


def test_timers_fire_in_the_order_of_their_times_and_at_their_times() -> None:
    async def main(loop: VirtualLoop) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, round(loop.time(), 3)))

        await asyncio.gather(nap("c", 3), nap("a", 0.001), nap("b", 2.5), nap("also b", 2.5))
        return seen

    assert run(main) == [("a", 0.001), ("b", 2.5), ("also b", 2.5), ("c", 3)]


def test_what_is_ready_runs_before_time_moves() -> None:
    async def main(loop: VirtualLoop) -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return loop.time()

    assert run(main) == 0.0


def test_work_without_end_at_one_moment_is_an_error_and_what_is_left_is_ended() -> None:
    ended: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        async def restless() -> None:
            try:
                while True:
                    await asyncio.sleep(0)
            finally:
                ended.append("restless")

        await asyncio.create_task(restless())

    with pytest.raises(EndlessTurns, match="no end of work at 0.000 s"):
        run(main)
    assert ended == ["restless"]


def test_timeouts_count_virtual_seconds() -> None:
    async def main(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return loop.time()

    assert run(main) == pytest.approx(30)


def test_a_wait_that_cannot_end_names_the_waiting_task() -> None:
    async def main(loop: VirtualLoop) -> None:
        asyncio.create_task(asyncio.Event().wait(), name="the informer")  # noqa: RUF006 - it is meant to wait for ever
        await asyncio.Event().wait()

    with pytest.raises(NothingScheduled, match="the informer"):
        run(main)


def test_work_for_another_thread_is_done_on_the_spot() -> None:
    async def main(loop: VirtualLoop) -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 42)

    assert run(main) == 42


def test_the_clock_follows_the_loop_and_can_be_wrong() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock, late = VirtualClock(loop), VirtualClock(loop, skew=-60)
        await asyncio.sleep(10)
        assert clock.now() == pytest.approx(START + 10)
        assert late.now() == pytest.approx(START - 50)
        onward = MonotonicTime(late)
        before = onward.now()
        late.skew -= 3600
        await asyncio.sleep(1)
        assert onward.now() == pytest.approx(before + 1), "a clock that is set back stops no task"
        assert late.monotonic() == pytest.approx(11)

    run(main)


def test_a_machine_that_slept_finds_everything_late() -> None:
    async def main(loop: VirtualLoop) -> float:
        sleeping = asyncio.create_task(asyncio.sleep(5))
        await asyncio.sleep(1)
        loop.jump(100)
        await sleeping
        return loop.time()

    assert run(main) == pytest.approx(101)


def test_what_is_left_running_ends_with_the_loop() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("background")

    async def main(loop: VirtualLoop) -> None:
        asyncio.create_task(background())  # noqa: RUF006 - left behind on purpose
        await asyncio.sleep(1)

    run(main)
    assert ended == ["background"]
