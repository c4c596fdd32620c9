"""What the simulated kubelet knows of its nodes and of the pods that it runs."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from phalanx.local.nodes.node_capacity import NodeUsage
from phalanx.local.nodes.views import KubeletNode

PodName = tuple[str, str]  # (namespace, name) of a pod


class SimulatedNode(msgspec.Struct):
    view: KubeletNode
    ledger: NodeUsage
    pods: dict[PodName, None] = field(default_factory=dict)
    offers: dict[str, Any] = field(default_factory=dict)  # allocatable to be written; None takes a resource away

    @property
    def name(self) -> str:
        return self.view.metadata.name

    @property
    def failed(self) -> bool:
        return self.view.must_fail


class KnownPod(msgspec.Struct):
    """A pod as last heard of; decoded only while something is done about it."""

    uid: str
    node: str
    phase: str
    body: bytes


class RunningPod(msgspec.Struct):
    """A pod that was admitted. Times are seconds of the clock."""

    uid: str
    node: SimulatedNode
    pod_started: float
    started: float  # of the current run of its containers
    restarts: int = 0
    up: bool = False  # Running was written
    held: bool = False  # and that its containers are not ready
    barrier: bool = False  # an agent keeps its worker waiting (restarts in place)
    waits: tuple[int, list[str]] | None = None  # for these images, with which generation: as written
    back_at: float | None = None  # waiting to restart until then
    last_exit: int = 0
    stopped: float | None = None  # since when it is stopping
    stop_at: float = 0.0
    stop_code: int = 0
    grace: int | None = None  # of the deletion that stops it
    deferred: bool = False  # asks for more than its node has left
    over: bool = False  # a final phase was written
    deleted: bool = False
