"""Parts start in order, stop the other way round, and are missed when they die."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.base.errors import ConfigProblem
from phalanx.base.tasks import EndedEarly
from phalanx.serve import component as module
from phalanx.serve.component import ComponentGroup, Loop, Supervised


class Recorded:
    failed = None

    def __init__(self, name: str, journal: list[str], problem: Exception | None = None) -> None:
        self.name, self._journal, self._problem = name, journal, problem

    async def start(self) -> None:
        self._journal.append(f"start {self.name}")
        if self._problem is not None:
            raise self._problem

    async def stop(self) -> None:
        self._journal.append(f"stop {self.name}")
        if self.name == "rude":
            raise RuntimeError("will not stop")


def test_parts_stop_in_the_order_opposite_to_their_start() -> None:
    journal: list[str] = []

    async def live() -> None:
        group = ComponentGroup([Recorded(name, journal) for name in ("a", "rude", "c")])
        await group.start()
        await group.stop()

    asyncio.run(live())
    assert journal == ["start a", "start rude", "start c", "stop c", "stop rude", "stop a"]


def test_what_had_started_stops_when_a_later_part_cannot() -> None:
    journal: list[str] = []

    async def live() -> None:
        wrong = ConfigProblem("--x", "is wrong")
        await ComponentGroup([Recorded("a", journal), Recorded("b", journal, wrong), Recorded("c", journal)]).start()

    with pytest.raises(ConfigProblem):
        asyncio.run(live())
    assert journal == ["start a", "start b", "stop b", "stop a"]


async def _dies() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise())


async def _raise() -> None:
    raise ValueError("the reason")


async def _ends() -> None:
    return


@pytest.mark.parametrize(("run", "said"), [(_dies, "the reason"), (_ends, "ended by itself")])
def test_a_part_that_dies_is_noticed_with_its_reason(run, said: str) -> None:
    async def live() -> None:
        group = ComponentGroup([Loop("part", run)])
        await group.start()
        try:
            await group.until_failure()
        finally:
            await group.stop()

    with pytest.raises((ValueError, EndedEarly), match=said):
        asyncio.run(asyncio.wait_for(live(), 60))


def test_a_part_that_dies_before_it_is_ready_fails_the_start() -> None:
    async def live() -> None:
        await ComponentGroup([Loop("part", _dies, ready=asyncio.Event().wait)]).start()

    with pytest.raises(ValueError, match="the reason"):
        asyncio.run(asyncio.wait_for(live(), 60))


def test_a_supervised_part_that_dies_is_made_again_and_says_what_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RESTART", 0.001)
    lives: list[Loop] = []
    troubles: list[str] = []

    async def live() -> None:
        well = asyncio.Event()

        async def run() -> None:
            if len(lives) < 3:
                raise ValueError(f"defect {len(lives)}")
            well.set()
            await asyncio.Event().wait()

        def make() -> Loop:
            lives.append(Loop("part", run))
            return lives[-1]

        part = Supervised(make, lambda: troubles.append(part.failure))
        group = ComponentGroup([part])
        await group.start()
        async with asyncio.timeout(60):
            await well.wait()
        assert part.restarts == 2 and part.failed is None
        await group.stop()

    asyncio.run(live())
    assert troubles == ["ValueError: defect 1", "", "ValueError: defect 2", ""]


def test_a_supervised_part_that_cannot_start_at_all_is_an_error() -> None:
    async def live() -> None:
        await Supervised(lambda: Loop("part", _dies, ready=asyncio.Event().wait)).start()

    with pytest.raises(ValueError, match="the reason"):
        asyncio.run(asyncio.wait_for(live(), 60))
