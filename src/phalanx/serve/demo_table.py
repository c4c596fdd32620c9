"""Rows of the live table of `phalanx up --demo`: groups, members, nodes and pending reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from phalanx.base import resources as r
from phalanx.base.client import Client
from phalanx.controllers.runtime.controller import Cache, Caches
from phalanx.engine.scheduling.lifecycle.pod_status import UNSCHEDULABLE
from phalanx.model.kinds import Json
from phalanx.model.printing.groups import HEALTHY, status_word

GOOD = ("Running", "Completed")  # states without a reason


class DemoRow(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    kind: str
    policy: str
    placed: int
    running: int
    pods: int
    where: str
    status: str
    message: str


class DemoTable:
    """Watches groups and pods; calls `show` after changes, at most every `interval` seconds."""

    def __init__(
        self,
        client: Client,
        show: Callable[[list[DemoRow]], None],
        *,
        headline: Callable[[str], str] = lambda key: "",
        interval: float = 0.25,
    ) -> None:
        """`headline`: returns why a group ("podgroup/ns/name") is pending, as a sentence; "": use its conditions."""
        self._caches = Caches(client)
        self._pods = self._caches.of(r.PODS)
        self._nodes = self._caches.of(r.NODES)
        self._groups = self._caches.of(r.POD_GROUPS, optional=True)
        self._composites = self._caches.of(r.COMPOSITE_POD_GROUPS, optional=True)
        self._pods.index("group", _group_of)
        self._changed = asyncio.Event()
        for cache in (self._pods, self._groups, self._composites):
            cache.on_change(lambda key, new, old: self._changed.set())
        self._show, self._headline, self._interval = show, headline, interval
        self.ready = asyncio.Event()

    async def run(self) -> None:
        await self._caches.run(self._follow)

    async def _follow(self) -> None:
        self.ready.set()
        while True:
            self._show(self.rows())
            self._changed.clear()
            await asyncio.sleep(self._interval)
            await self._changed.wait()

    def rows(self) -> list[DemoRow]:
        rows = [self._row(group, "CompositePodGroup") for group in self._composites]
        rows += [self._row(group, "PodGroup") for group in self._groups]
        return sorted(rows, key=lambda row: (row.namespace, row.name, row.kind))

    def _row(self, group: Json, kind: str) -> DemoRow:
        meta, spec = group["metadata"], group["spec"]
        pods = self._members(meta["namespace"], meta["name"], kind)
        placed = [pod for pod in pods if pod["spec"].get("nodeName")]
        running = sum((pod.get("status") or {}).get("phase") == "Running" for pod in pods)
        status, message = _state(group)
        gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
        if status == "Waiting" and kind == "PodGroup" and 0 < (gang.get("minCount") or 0) <= len(placed):
            status, message = "Running", ""  # the condition is written after all pods have nodes
        if status not in GOOD:
            message = self._headline(f"{kind.lower()}/{meta['namespace']}/{meta['name']}") or message
        return DemoRow(
            meta["namespace"],
            meta["name"],
            kind,
            _policy(spec),
            len(placed),
            running,
            len(pods),
            self._where(spec, placed),
            status,
            message,
        )

    def _members(self, namespace: str, name: str, kind: str) -> list[Json]:
        if kind == "PodGroup":
            return self._pods.by_index("group", f"{namespace}/{name}")
        found: list[Json] = []
        for cache, below in ((self._groups, "PodGroup"), (self._composites, "CompositePodGroup")):
            for child in _children(cache, namespace, name):
                found += self._members(namespace, child, below)
        return found

    def _where(self, spec: Json, placed: list[Json]) -> str:
        """Return the domain of a topology constraint, or the number of used nodes."""
        if not placed:
            return ""
        topology = (spec.get("schedulingConstraints") or {}).get("topology") or ()
        nodes = {pod["spec"]["nodeName"] for pod in placed}
        if not topology:
            return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
        key = topology[0]["key"]
        found = [self._nodes.get("", name) for name in nodes]
        return ", ".join(sorted({(node["metadata"].get("labels") or {}).get(key, "?") for node in found if node}))


def _children(cache: Cache, namespace: str, parent: str) -> list[str]:
    return [
        child["metadata"]["name"]
        for child in cache
        if child["metadata"]["namespace"] == namespace and child["spec"].get("parentCompositePodGroupName") == parent
    ]


def _group_of(pod: Json) -> list[str]:
    name = ((pod.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName")
    return [f"{pod['metadata']['namespace']}/{name}"] if name else []


def _policy(spec: Json) -> str:
    gang = (spec.get("schedulingPolicy") or {}).get("gang")
    if gang is None:
        return "Basic"
    return f"Gang {gang.get('minCount') or gang.get('minGroupCount')}"


def _state(group: Json) -> tuple[str, str]:
    """Return the state in one word, and the reason: why the group is pending, or which members it lost.

    A group that its condition calls Unschedulable has the sentence of `headline` instead, or its pods are placed now.
    """
    word, messages = status_word(group), dict[str, str]()
    for condition in (group.get("status") or {}).get("conditions") or ():
        kind = "start" if condition["type"].endswith("InitiallyScheduled") else condition["type"]
        if kind != "start" or condition.get("reason") != UNSCHEDULABLE:
            messages[kind] = str(condition.get("message") or "")
    return word, messages.get("start") or ("" if word in GOOD else messages.get(HEALTHY, ""))
