"""Builders of nodes."""

from __future__ import annotations

from typing import Self

from phalanx.model import objects as o
from phalanx.testing.builders.base import Builder


class NodeBuilder(Builder[o.Node]):
    """Without calls: no labels but the hostname, 32 cpu, 256Gi, 110 pods."""

    kind = "Node"
    namespaced = False
    view = o.Node

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.label("kubernetes.io/hostname", name)
        self.cpu("32").mem("256Gi").pods(110)

    def resource(self, name: str, quantity: str | int) -> Self:
        for part in ("capacity", "allocatable"):
            self.status.setdefault(part, {})[name] = str(quantity)
        return self

    def cpu(self, quantity: str | int) -> Self:
        return self.resource("cpu", quantity)

    def mem(self, quantity: str | int) -> Self:
        return self.resource("memory", quantity)

    def pods(self, count: int) -> Self:
        return self.resource("pods", count)

    def gpu(self, count: int, name: str = "nvidia.com/gpu") -> Self:
        return self.resource(name, count)

    def zone(self, zone: str) -> Self:
        return self.label("topology.kubernetes.io/zone", zone)

    def region(self, region: str) -> Self:
        return self.label("topology.kubernetes.io/region", region)

    def taint(self, key: str, value: str = "", effect: str = "NoSchedule") -> Self:
        return self._add("taints", {"key": key, "value": value, "effect": effect})

    def unschedulable(self, unschedulable: bool = True) -> Self:
        return self._spec(unschedulable=unschedulable)

    def image(self, size: int, *names: str) -> Self:
        self.status.setdefault("images", []).append({"names": list(names), "sizeBytes": size})
        return self

    def ready(self, ready: bool = True) -> Self:
        return self.condition("Ready", "True" if ready else "False", "KubeletReady" if ready else "KubeletNotReady")
