"""Leader election with a coordination.k8s.io Lease: at most one of several equal processes acts at a time.

The holder gives up *before* others may take over: it stops when it could not renew for `renew_deadline`, others wait
for `duration` since they last saw the lease change (by their own clock, so clock skew between machines is harmless).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem, Conflict, NotFound

log = logging.getLogger(__name__)

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    name: str
    namespace: str = "kube-system"
    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class LeaderLost(Exception):
    """The lease could not be kept; the process must stop acting at once."""


class Elector:
    def __init__(self, client: Client, settings: LeaseSettings, identity: str, clock: Clock) -> None:
        self._client, self._settings, self._identity, self._clock = client, settings, identity, clock
        self._seen: tuple[str, str] = ("", "")  # (holder, renewTime) as last read
        self._seen_at = float("-inf")  # our monotonic time when that last changed
        self.leading = False

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run `work` while it is held, release it when work ends. Raises LeaderLost."""
        await self._acquire()
        log.info("leading as %s", self._identity)
        self.leading = True
        worker = asyncio.ensure_future(work())
        keeper = asyncio.ensure_future(self._keep())
        try:
            done, _ = await asyncio.wait({worker, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if keeper in done and worker not in done:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)
                raise LeaderLost(f"lease {self._settings.namespace}/{self._settings.name} was lost")
            await worker
        finally:
            self.leading = False
            for task in (worker, keeper):
                task.cancel()
            await asyncio.gather(worker, keeper, return_exceptions=True)
            await self._release()

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try():
                    return
            except ApiProblem as problem:
                log.warning("asking for the lease %s: %s", self._settings.name, problem)
            await asyncio.sleep(self._settings.retry)

    async def _keep(self) -> None:
        """Returns when the lease is lost."""
        last = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._settings.retry)
            left = last + self._settings.renew_deadline - self._clock.monotonic()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    if not await self._try():
                        log.error("another process took the lease %s", self._settings.name)
                        return
                last = self._clock.monotonic()
            except (ApiProblem, TimeoutError) as problem:
                log.warning("renewing the lease %s: %s", self._settings.name, problem or "timed out")
            if self._clock.monotonic() - last >= self._settings.renew_deadline:
                return

    async def _try(self) -> bool:
        """One attempt to take or renew; True when we hold it."""
        settings = self._settings
        now = rfc3339_micro(self._clock.now())
        try:
            lease = msgspec.json.decode(await self._client.get(LEASES, settings.name, settings.namespace))
        except NotFound:
            return await self._create(now)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        seen = (holder, spec.get("renewTime") or "")
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.monotonic()
        if holder and holder != self._identity:
            expired = self._clock.monotonic() - self._seen_at >= settings.duration
            if not expired:
                return False
        taken_over = holder != self._identity
        spec = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(settings.duration),
            "renewTime": now,
            "acquireTime": now if taken_over else spec.get("acquireTime", now),
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if taken_over else 0),
        }
        try:
            await self._client.update(LEASES, settings.name, {**lease, "spec": spec}, settings.namespace)
        except Conflict:
            return False
        return True

    async def _create(self, now: str) -> bool:
        settings = self._settings
        lease: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": settings.name, "namespace": settings.namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": round(settings.duration),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        try:
            await self._client.create(LEASES, lease, settings.namespace)
        except AlreadyExists:
            return False
        return True

    async def _release(self) -> None:
        """Hand over at once instead of letting the next one wait for the lease to run out."""
        settings = self._settings
        try:
            lease = msgspec.json.decode(await self._client.get(LEASES, settings.name, settings.namespace))
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") != self._identity:
                return
            spec = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.update(LEASES, settings.name, {**lease, "spec": spec}, settings.namespace)
        except ApiProblem as problem:
            log.warning("releasing the lease %s: %s", settings.name, problem)
