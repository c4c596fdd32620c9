"""Many stories for the price of few: a seed is a tree of them, and what its branches share runs once.

Where they part the process is copied with the whole cluster in it (fork), once for every branch but the last: that one,
the trunk, runs in the process itself, as if there were no others. Whatever it leaves is met by the next tree, and
every branch can run again alone, without copies, to the byte.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from support.lifecycle.crashes import Crash
from support.lifecycle.events import Happenings
from support.lifecycle.kinds import kinds
from support.lifecycle.run import Broken
from support.lifecycle.sequences import TRUNK, Story, Tree, notify, on_a_cluster
from support.simulated_cluster import SimulatedCluster

ON_ONE_CLUSTER = 25  # trees; then a fresh one


class Note(msgspec.Struct, frozen=True):
    """What became of a branch."""

    branch: int | None  # None: of none, it broke before
    ended: bool = False
    broken: str = ""


class Notes:
    """Copies write them, the process that was copied reads them: one at a time, since it waits for each copy."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed with the process)

    def write(self, note: Note) -> None:
        self._file.write(msgspec.json.encode(note) + b"\n")

    def take(self) -> list[Note]:
        self._file.seek(0)
        notes = [msgspec.json.decode(line, type=Note) for line in self._file.read().splitlines()]
        self._file.seek(0)
        self._file.truncate()
        return notes


async def in_a_copy(notify: Callable[[], Awaitable[None]]) -> None:
    """Of this process, which waits until it has ended."""
    loop = asyncio.get_running_loop()
    copy = os.fork()
    if copy == 0:
        status = 1
        try:
            asyncio._set_running_loop(loop)  # asyncio knows by the process whose it is
            await notify()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(copy, 0)  # noqa: ASYNC222 (nothing else may happen meanwhile)
    if status:
        raise Broken(f"a copy of the process ended with {os.waitstatus_to_exitcode(status)}")


async def tell_tree(tree: Tree, notes: Notes, cluster: SimulatedCluster, crash: Crash) -> None:
    """On a cluster where others ran before. Raises Broken where the trunk is."""
    story = Story(tree, tree.like(), ())
    try:
        with story.complaints():
            life = await story.begin(cluster, crash)
            for step in tree.shared():
                await story.happens(life, step)
            for branch in range(TRUNK):
                await in_a_copy(partial(_tell_copied, story, branch, life, notes))
            await _tell_branch(story, TRUNK, life, notes)
            await story.leave(life)
    except Broken as how:
        notes.write(Note(story.branch, broken=str(how)))
        raise


async def _tell_copied(story: Story, branch: int, life: Happenings, notes: Notes) -> None:
    try:
        with story.complaints():
            await _tell_branch(story, branch, life, notes)
    except Broken as how:
        notes.write(Note(story.branch, broken=str(how)))


async def _tell_branch(story: Story, branch: int, life: Happenings, notes: Notes) -> None:
    story.branch, ends = branch, story.tree.ends(branch)
    await story.happens(life, story.tree.branches()[branch])
    if ends:
        await story.end(life)
    notes.write(Note(branch, ends))


# ---- many trees


class Outcome(NamedTuple):
    branches: list[tuple[Tree, Note]]  # none of them broken
    broken: list[str]


def trees_of(kind: str, seeds: Sequence[int]) -> list[Tree]:
    """The variants of the kind take turns."""
    names = kinds()[kind]
    return [Tree(names[seed % len(names)], seed) for seed in seeds]


def tell_all(trees: Sequence[Tree]) -> Outcome:
    announced = Outcome([], [])
    for where in dict.fromkeys(tree.where for tree in trees):
        left = [tree for tree in trees if tree.where == where]
        while left:
            left = left[_tell_some(left[:ON_ONE_CLUSTER], announced) :]
    return announced


def _tell_some(trees: Sequence[Tree], announced: Outcome) -> int:
    """On one cluster; how many. The first whose trunk breaks is the last."""
    notes = Notes()
    found: list[list[Note]] = []

    async def on(cluster: SimulatedCluster, crash: Crash) -> None:
        for tree in trees:
            try:
                await tell_tree(tree, notes, cluster, crash)
            finally:
                found.append(notes.take())

    try:
        on_a_cluster(trees[0], on)
    except Broken:
        pass  # noted
    except Exception as error:
        announced.broken.append(f"a cluster of {trees[0].name} {trees[0].seed} to {trees[-1].seed}: {error!r}")
    for number, noted in enumerate(found):
        announced.branches.extend((trees[number], note) for note in noted if not note.broken)
        announced.broken.extend(
            shortest(trees[: number + 1], note.branch, note.broken) for note in noted if note.broken
        )
    return max(1, len(found))


def shortest(trees: Sequence[Tree], branch: int | None, how: str) -> str:
    """The shortest story found that breaks as this branch of the last tree: alone, or after as few others as can be."""
    story = trees[-1].story(branch)
    alone = _breaks([story])
    if alone is None:
        before = 1
        while before < len(trees):
            earlier = trees[-1 - before : -1]
            after = _breaks([*(tree.story() for tree in earlier), trees[-1].story(branch)])
            if after is not None:
                return f"after {', '.join(f'{tree.name} {tree.seed}' for tree in earlier)} on the same cluster: {after}"
            before *= 2
        return f"after {', '.join(f'{tree.name} {tree.seed}' for tree in trees[:-1])} on the same cluster: {how}"
    steps, index = list(story.steps), 0
    while index < len(steps):
        fewer = [*steps[:index], *steps[index + 1 :]]
        less = _breaks([Story(story.tree, story.like, fewer, branch)])
        if less is None:
            index += 1
        else:
            steps, alone = fewer, less
    return alone


def _breaks(reasons_by_state: Sequence[Story]) -> str | None:
    try:
        notify(reasons_by_state)
    except Broken as how:
        return str(how)
    return None
