"""Events about pods, as kubelets write them: for pods that ask for it, and for images that cannot be pulled.

Not for every pod: tens of thousands of them would double the writes, and most of it is never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

from phalanx.base import resources as r
from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import ApiProblem
from phalanx.local.nodes.references import Need
from phalanx.local.nodes.views import EVENTS, KubeletPod

COMPONENT = "kubelet"


class KubeletEvents:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock

    async def started(self, pod: KubeletPod, node: str) -> None:
        if pod.metadata.annotations.get(EVENTS, "").lower() not in ("true", "1", "yes"):
            return
        for container in pod.spec.containers:
            await self._notify(pod, node, "Pulled", f'Container image "{container.image}" already present on machine')
            await self._notify(pod, node, "Created", f"Created container: {container.name}")
            await self._notify(pod, node, "Started", f"Started container {container.name}")

    async def not_pulled(self, pod: KubeletPod, node: str, images: list[str]) -> None:
        for image in images:
            await self._notify(
                pod, node, "Failed", f'Failed to pull image "{image}": an annotation says that it is missing', "Warning"
            )

    async def not_configured(self, pod: KubeletPod, node: str, lacking: Mapping[Need, str]) -> None:
        for need, text in lacking.items():
            if need.volume:
                message = f'MountVolume.SetUp failed for volume "{need.volume}" : {text}'
                await self._notify(pod, node, "FailedMount", message, "Warning")
            else:
                await self._notify(pod, node, "Failed", f"Error: {text}", "Warning")

    async def _notify(self, pod: KubeletPod, node: str, reason: str, message: str, type_: str = "Normal") -> None:
        meta, now = pod.metadata, self._clock.now()
        when, mark = rfc3339(now), crc32(f"{reason} {message}".encode())
        about = {"kind": "Pod", "apiVersion": "v1", "name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        body: dict[str, Any] = {
            "metadata": {"name": f"{meta.name}.{int(now * 1e6):x}{mark:08x}", "namespace": meta.namespace},
            "involvedObject": about,
            "type": type_,
            "reason": reason,
            "message": message,
            "source": {"component": COMPONENT, "host": node},
            "reportingComponent": COMPONENT,
            "reportingInstance": node,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        with suppress(ApiProblem):  # a namespace that goes, a name that is taken: no reason to hold up a pod
            await self._client.create(r.EVENTS, body, meta.namespace)
