"""Tasks that run until asked to end: one that ends early is noticed with its cause, a deaf one is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from phalanx.base import tasks as module
from phalanx.base.tasks import EndedEarly, end, run_all, run_optional, run_restarting
from support.waiting import eventually_async


async def _forever() -> None:
    await asyncio.Event().wait()


async def _returns() -> None:
    return


async def _raises() -> None:
    raise ValueError("the reason")


async def _exits() -> None:
    raise SystemExit(3)


async def _awaits_what_is_cancelled() -> None:
    other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


@pytest.mark.parametrize(
    ("work", "kind", "said"),
    [
        (_returns, EndedEarly, "ill ended by itself"),
        (_raises, ValueError, "the reason"),
        (_exits, EndedEarly, "ill raised SystemExit: 3"),
        (_awaits_what_is_cancelled, EndedEarly, "ill was cancelled"),
    ],
)
def test_a_task_that_ends_ends_the_others_and_is_the_error(
    work: Callable[[], Coroutine[Any, Any, None]], kind: type[Exception], said: str
) -> None:
    ended = []

    async def well() -> None:
        try:
            await _forever()
        finally:
            ended.append(True)

    async def main() -> None:
        async with asyncio.timeout(10):
            await run_all((("well", well()), ("ill", work())))

    with pytest.raises(kind, match=said):
        asyncio.run(main())
    assert ended == [True]


def test_a_task_whose_cancellation_got_lost_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.01)
    swallowed = 0

    async def deaf() -> None:
        nonlocal swallowed
        while True:
            try:
                await _forever()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    async def main() -> None:
        task = asyncio.create_task(run_all((("deaf", deaf()),)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await end((task,))

    asyncio.run(main())
    assert swallowed == 3


def test_a_task_that_never_ends_is_named_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN", 0.01)
    over = False

    async def stone() -> None:
        while not over:
            try:
                await _forever()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        nonlocal over
        task = asyncio.create_task(stone(), name="stone")
        await asyncio.sleep(0)
        assert not await end((task,), patience=0.05)
        over = True
        assert await end((task,))

    asyncio.run(main())
    assert "stone does not end: it waits at" in caplog.text and "test_tasks.py" in caplog.text


@pytest.mark.parametrize("work", [_returns, _raises, _exits, _awaits_what_is_cancelled])
def test_what_others_do_without_for_a_while_is_begun_again_and_ends_when_asked(
    work: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    begun = 0

    async def ill() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            await work()
        else:
            await _forever()

    async def main() -> None:
        task = asyncio.create_task(run_restarting("the dashboard", ill))
        await eventually_async(lambda: begun == 3, "it is started again")
        assert await end((task,)) and task.cancelled()

    asyncio.run(main())
    assert caplog.text.count("the dashboard") == 2 and "started again" in caplog.text


@pytest.mark.parametrize("work", [_raises, _exits, _awaits_what_is_cancelled])
def test_what_others_do_without_fails_and_the_log_says_of_what(
    work: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_optional("the demo", work))
    assert "the demo failed; the other parts continue without it" in caplog.text and "Traceback" in caplog.text
