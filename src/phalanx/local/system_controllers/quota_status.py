"""Write the status of ResourceQuotas: soon after a change of usage, and fully recounted from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from phalanx.base.client import Client
from phalanx.base.errors import ApiProblem
from phalanx.base.resources import RESOURCE_QUOTAS
from phalanx.local.api.quotas import Quotas

log = logging.getLogger(__name__)
RECOUNT = 300.0  # seconds between full recounts, as in kube-controller-manager
COLLECT_SECONDS = 0.05  # seconds for which changes are collected into one write


class QuotaStatus:
    """`run` until cancelled."""

    def __init__(self, quotas: Quotas, client: Client) -> None:
        self._quotas, self._client = quotas, client

    async def run(self) -> None:
        self._quotas.forget()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECOUNT):
                    await self._quotas.woken.wait()
            if not self._quotas.woken.is_set():
                self._quotas.forget()
            await asyncio.sleep(COLLECT_SECONDS)
            self._quotas.woken.clear()
            dirty, self._quotas.dirty = self._quotas.dirty, set()
            for namespace in sorted(dirty):
                await self._write_statuses(namespace)

    async def _write_statuses(self, namespace: str) -> None:
        for name, status in list(self._quotas.statuses(namespace)):
            try:
                current = msgspec.json.decode(await self._client.get(RESOURCE_QUOTAS, name, namespace))
                if current.get("status") != status:
                    body = {**current, "status": status}
                    await self._client.update(RESOURCE_QUOTAS, name, body, namespace, subresource="status")
            except ApiProblem as problem:
                if problem.code not in (404, 409):
                    log.warning("the status of ResourceQuota %s/%s was not written: %s", namespace, name, problem)
                elif problem.code == 409:
                    self._quotas.dirty.add(namespace)
                    self._quotas.woken.set()
