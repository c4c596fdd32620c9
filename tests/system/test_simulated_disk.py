"""What a crash leaves on the simulated disk: all that was acknowledged, whatever was torn, and nothing in half."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from phalanx.local.store import Store
from support.simulation.disk import Disk


def test_commits_cut_short_and_torn_pages_lose_nothing_and_invent_nothing() -> None:
    seen: Counter[str] = Counter()

    async def crash(seed: int) -> None:
        disk = Disk(random.Random(seed))
        try:
            store = Store.open(disk.path, commits=disk.commits)
            for number in range(12):
                await store.put(("pods", "ns", f"p{number}"), lambda revision: b"%d" % revision * 2000)
            late = [
                asyncio.ensure_future(store.put(("pods", "ns", f"late{n}"), lambda revision: b"%d" % revision * 2000))
                for n in range(3)
            ]
            await asyncio.sleep(0)  # submitted, not written
            assert store._commits is not None
            store._commits.kill()  # type: ignore[attr-defined]
            disk.crash()
            for task in late:
                task.cancel()
            again = Store.open(disk.path)
            names = {entry.key[2] for entry in again.list("pods")}
            assert {f"p{number}" for number in range(12)} <= names
            assert len(names) in (12, 15), "a commit is there whole or not at all"
            for entry in again.list("pods"):
                assert entry.value == b"%d" % entry.revision * 2000
            seen["whole, and nobody was told"] += len(names) == 15
            seen.update(disk.torn)
            await again.close()
        finally:
            disk.remove()

    for seed in range(24):
        asyncio.run(crash(seed))
    assert set(seen) == {"short write", "torn tail", "torn page", "whole, and nobody was told"}
    assert all(seen.values()), seen
