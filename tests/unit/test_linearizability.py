"""The checker on histories written by hand, the product on histories made by seed, and bugs that must be found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phalanx.local.api.change import Changes
from phalanx.local.api.write import Writer
from phalanx.local.store.contract import Change, Entry
from phalanx.local.store.store import Store
from phalanx.local.store.window import ChangeRun
from support.histories import run_history
from support.linearizability import NEVER, Operation, check_watch, linearizable

HISTORIES = 100
ENOUGH = 400  # histories within which a planted bug must be found


def op(verb: str, called: int, answered: int, result: str = "ok", key: int = 0, **more: Any) -> Operation:
    return Operation(0, verb, key, called=called, answered=answered, result=result, **more)


GOOD = {
    "one after the other": [op("create", 1, 2, value="a", version="1"), op("get", 3, 4, seen="a", version="1")],
    "a read beside a write may see either": [
        op("create", 1, 6, value="a", version="1"),
        op("get", 2, 3, "missing"),
        op("get", 4, 5, seen="a", version="1"),
    ],
    "what was never answered may have happened": [
        op("create", 1, NEVER, "unknown", value="a"),
        op("get", 5, 6, seen="a", version="1"),
        op("update", 7, 8, value="b", expect="1", version="2"),
    ],
    "or not": [op("create", 1, NEVER, "unknown", value="a"), op("get", 5, 6, "missing")],
    "the loser of a race": [
        op("create", 1, 4, value="a", version="1"),
        op("create", 2, 5, "exists", value="b"),
    ],
}
BAD = {
    "a read goes back": [
        op("create", 1, 6, value="a", version="1"),
        op("get", 2, 3, seen="a", version="1"),
        op("get", 4, 5, "missing"),
    ],
    "an acknowledged write is gone": [op("create", 1, 2, value="a", version="1"), op("get", 3, 4, "missing")],
    "two creations of one name": [
        op("create", 1, 4, value="a", version="1"),
        op("create", 2, 5, value="b", version="2"),
    ],
    "an update over a state it did not expect": [
        op("create", 1, 2, value="a", version="1"),
        op("update", 3, 4, value="b", expect="1", version="2"),
        op("update", 5, 6, value="c", expect="1", version="3"),
    ],
    "refused for nothing": [op("create", 1, 2, "exists", value="a")],
    "what surely failed is seen": [op("create", 1, 2, "failed", value="a"), op("get", 3, 4, seen="a", version="1")],
    "it happened after its answer could have been used": [
        op("create", 1, NEVER, "unknown", value="a"),
        op("get", 3, 4, seen="a", version="1"),
        op("get", 5, 6, "missing"),
    ],
    "a list of a state that never was": [
        op("create", 1, 2, value="a", version="1"),
        op("create", 3, 4, key=1, value="b", version="2"),
        op("list", 5, 6, listed={1: ("b", "2")}),
    ],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_what_can_be_explained_is_accepted(history: list[Operation]) -> None:
    assert linearizable(history, 2)


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_what_cannot_be_explained_is_found(history: list[Operation]) -> None:
    assert not linearizable(history, 2)


def test_a_watch_with_a_gap_a_repetition_or_a_step_back_is_found() -> None:
    write = op("create", 1, 2, value="a", version="1")
    assert check_watch([("ADDED", 0, ("a", "1"))], [write]) == ""
    assert "nothing was told" in check_watch([], [write])
    assert "after" in check_watch([("ADDED", 0, ("a", "1")), ("MODIFIED", 0, ("a", "1"))], [write])
    assert "was not there" in check_watch([("MODIFIED", 0, ("a", "1"))], [write])


def test_every_history_of_the_store_and_its_handlers_can_be_explained() -> None:
    operations = 0
    for seed in range(HISTORIES):
        problem, count = run_history(seed)
        assert not problem, problem
        operations += count
    assert operations > 20 * HISTORIES


def found(plant: Callable[[pytest.MonkeyPatch], None]) -> int:
    """The first seed whose history cannot be explained with the bug in place."""
    with pytest.MonkeyPatch.context() as patched:
        plant(patched)
        for seed in range(ENOUGH):
            if run_history(seed)[0]:
                return seed
    pytest.fail("the bug was not found")


def refusals_before_the_disk(patched: pytest.MonkeyPatch) -> None:
    """As it was: AlreadyExists for a creation that no client can read yet."""
    patched.setattr(Writer, "handle", Writer._handle)


def reads_before_the_disk(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Store, "get", Store.latest)


def expectations_ignored(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Changes, "check_preconditions", lambda *_: None)


def acknowledged_before_the_disk(patched: pytest.MonkeyPatch) -> None:
    submit = Store._submit

    def hasty(self: Store, change: Change) -> asyncio.Future[Entry]:
        submit(self, change)
        done: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        done.set_result(change.entry)
        return done

    patched.setattr(Store, "_submit", hasty)


def a_change_withheld_from_watchers(patched: pytest.MonkeyPatch) -> None:
    next_after = ChangeRun.next_after

    def lossy(self: ChangeRun, revision: int, changes: int, size: int) -> Sequence[Change]:
        batch = next_after(self, revision, changes, size)
        return batch[1:] if len(batch) > 2 else batch

    patched.setattr(ChangeRun, "next_after", lossy)


def lists_of_yesterday(patched: pytest.MonkeyPatch) -> None:
    fresh = Store.list
    kept: dict[Any, Any] = {}

    def stale(self: Store, resource: str, namespace: str = "") -> Sequence[Entry]:
        before = kept.get((id(self), resource))
        kept[(id(self), resource)] = now = fresh(self, resource, namespace)
        return now if before is None else before

    patched.setattr(Store, "list", stale)


@pytest.mark.parametrize(
    "plant",
    [
        refusals_before_the_disk,
        reads_before_the_disk,
        expectations_ignored,
        acknowledged_before_the_disk,
        a_change_withheld_from_watchers,
        lists_of_yesterday,
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    assert found(plant) < ENOUGH
