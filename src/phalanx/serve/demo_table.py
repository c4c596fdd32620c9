"""Rows of the live table of `phalanx up --demo`: the groups as the scheduler sees them, and why they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from phalanx.base.well_known import UNSCHEDULABLE
from phalanx.model.kinds import Json
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.queries.queue_view import GROUP_KINDS

GOOD = ("Running", "Completed")  # states without a reason
MOST_NODES = 64  # of a group whose domains are named


class DemoRow(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    kind: str
    policy: str
    placed: int
    pods: int
    where: str
    status: str
    message: str


class DemoTable:
    """Shows the rows after steps of the scheduler, at most every `interval` seconds."""

    def __init__(self, reader: Callable[[], EngineReader], interval: float = 0.25) -> None:
        """`reader`: returns that of the present scheduler."""
        self._reader, self._interval = reader, interval
        self._changed = asyncio.Event()

    def touch(self, *_: object) -> None:
        """Note that the scheduler has made a step."""
        self._changed.set()

    async def run(self, show: Callable[[list[DemoRow]], None]) -> None:
        while True:
            self._changed.clear()
            show(rows_of(self._reader()))
            await asyncio.sleep(self._interval)
            await self._changed.wait()


def rows_of(reader: EngineReader) -> list[DemoRow]:
    rows = [_row(reader, text, group) for text, group in reader.groups().items()]
    return sorted(rows, key=lambda row: (row.namespace, row.name, row.kind))


def _row(reader: EngineReader, text: str, group: Json) -> DemoRow:
    kind, namespace, name = text.split("/", 2)
    status, (placed, pods) = group["reason"], group["pods"]
    message = ""
    if status not in GOOD:
        message = reader.headline(text) or _pending(reader.conditions(text)) or reader.health(text)
    policy = f"Gang {group['min']}" if group["gang"] else "Basic"
    where = _where(reader, text, group["topology"]) if placed else ""
    return DemoRow(namespace, name, GROUP_KINDS[kind], policy, placed, pods, where, status, message)


def _where(reader: EngineReader, text: str, topology: str) -> str:
    """Return the domains of a topology constraint, or the number of used nodes."""
    nodes = sorted({member["node"] for member in reader.members(text) or () if member["node"]})
    if not topology:
        return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    found = [reader.node(name) for name in nodes[:MOST_NODES]]
    return ", ".join(sorted({node["labels"].get(topology, "?") for node in found if node is not None}))


def _pending(conditions: list[Json]) -> str:
    """Return the message of its conditions that says why the group is pending; "" if there is none.

    A group that a condition calls Unschedulable has a headline instead, or its pods are placed now.
    """
    start = (each for each in conditions if each["type"].endswith("InitiallyScheduled"))
    return next((each["message"] for each in start if each["reason"] != UNSCHEDULABLE), "")
