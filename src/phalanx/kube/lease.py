"""Leader election with a coordination.k8s.io Lease: at most one of several equal processes acts at a time.

The holder stops before another process may take over: it stops when it could not renew for `renew_deadline`, and other
candidates wait for `duration` since they last saw the lease change. Each uses its own clock, so clock skew is harmless.
Only another holder in the lease ends the leadership earlier; a conflicting write or an unreadable answer is retried.
The lease is released only when no write is under way. Otherwise it expires, and the next leader starts after the last
write of this one has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem, Conflict, Forbidden, NotFound
from phalanx.base.resources import LEASES
from phalanx.base.tasks import begin, end

log = logging.getLogger(__name__)
RIGHTS = " (an administrator sees with `phalanx check-cluster` which rights are missing; deploy/ has them)"

SOON = 0.2  # seconds until a renewal that conflicted with another write is retried

Attempt = Literal["held", "taken", "unknown"]
HELD: Attempt = "held"
TAKEN: Attempt = "taken"  # another holder still renews it
UNKNOWN: Attempt = "unknown"  # conflicting write: read the lease again


class LeaseSettings(msgspec.Struct, frozen=True):
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
        self._seen: tuple[str, str] = ("", "")  # holder and renewTime as last read
        self._seen_at = float("-inf")  # monotonic time when they last changed
        self.leading = False
        self._renewed = float("-inf")  # monotonic time before the last successful write
        self._announced = ""  # problem that was logged last

    def successor(self, client: Client, identity: str) -> Elector:
        """Return a new elector for the same process after it lost the lease.

        It keeps what this elector saw last, so that it waits as long as any other candidate and not longer.
        """
        made = Elector(client, self._settings, identity, self._clock)
        made._seen, made._seen_at = self._seen, self._seen_at
        return made

    async def lead(
        self, work: Callable[[], Coroutine[Any, Any, None]], settled: Callable[[], bool] = lambda: True
    ) -> None:
        """Wait for the lease, run `work` while it is held, release it when work ended. Raises LeaderLost.

        settled: returns True when every write of the work has ended; until then no other process may start.
        """
        await self._acquire()
        log.info("leading as %s", self._identity)
        self.leading = True
        worker = begin("leading", work())
        keeper = asyncio.create_task(self._keep(), name="lease")
        lost = False
        try:
            await asyncio.wait({worker, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if not worker.done():
                lost = True
                await end((worker,))
                cause = None if keeper.cancelled() else keeper.exception()
                raise LeaderLost(f"lease {self._settings.namespace}/{self._settings.name} was lost") from cause
            await worker
        finally:
            self.leading = False
            ended = await end((worker,))
            await end((keeper,))  # last: the lease is kept until the work has ended
            if not lost and ended and settled():
                await self._release()
            elif not lost:
                log.warning("writes are under way: the lease %s is not released and will expire", self._settings.name)

    @property
    def holder(self) -> str:
        """Return the holder of the lease when it was last read; "" if there was none."""
        return self._seen[0]

    @property
    def holds(self) -> bool:
        """Return True if no other process can lead now by this process's clock; a loss may not be noticed yet."""
        return self._clock.monotonic() - self._renewed < self._settings.renew_deadline

    @property
    def overdue(self) -> float:
        """Return the seconds since a leader passed the renew deadline without a renewal; 0 otherwise."""
        if not self.leading:
            return 0.0
        return max(0.0, self._clock.monotonic() - self._renewed - self._settings.renew_deadline)

    async def _acquire(self) -> None:
        self._announced = ""
        while True:
            began = self._clock.monotonic()
            try:
                if await self._try() == HELD:
                    self._renewed = began
                    return
            except (ApiProblem, msgspec.DecodeError) as problem:
                self._report("requesting", problem)
            await asyncio.sleep(self._settings.retry)

    async def _keep(self) -> None:
        """Renew the lease until it is lost."""
        retry = self._settings.retry
        while True:
            await asyncio.sleep(retry)
            retry = self._settings.retry
            began = self._clock.monotonic()  # other candidates count from here or later
            left = self._renewed + self._settings.renew_deadline - began
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    outcome = await self._try()
                if outcome == TAKEN:
                    log.error("%s took the lease %s", self._seen[0] or "another process", self._settings.name)
                    return
                if outcome == HELD:
                    self._renewed, self._announced = began, ""
                else:
                    retry = min(retry, SOON)  # another client wrote the lease; this process is still the holder
            except (ApiProblem, TimeoutError, msgspec.DecodeError) as problem:
                retry /= 4  # retry faster: the deadline comes nearer
                self._report("renewing", problem)
            if self._clock.monotonic() - self._renewed >= self._settings.renew_deadline:
                log.error("the lease %s could not be renewed in time", self._settings.name)
                return

    def _report(self, what: str, problem: Exception) -> None:
        """Warn once per message."""
        text = str(problem) or "timed out"
        level = logging.DEBUG if text == self._announced else logging.WARNING
        self._announced = text
        hint = RIGHTS if isinstance(problem, Forbidden) else ""
        log.log(level, "%s the lease %s: %s; retrying%s", what, self._settings.name, text, hint)

    async def _try(self) -> Attempt:
        """Make one attempt to take or renew the lease."""
        settings = self._settings
        now = rfc3339_micro(self._clock.now())
        try:
            lease = _read(await self._client.get(LEASES, settings.name, settings.namespace))
        except NotFound:
            return await self._create(now)
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        seen = (holder, spec.get("renewTime") or "")
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.monotonic()
        if holder and holder != self._identity:
            expired = self._clock.monotonic() - self._seen_at >= settings.duration
            if not expired:
                return TAKEN
        taken_over = holder != self._identity
        spec = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(settings.duration),
            "renewTime": now,
            "acquireTime": now if taken_over else spec.get("acquireTime", now),
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if taken_over else 0),
        }
        wrote = self._clock.monotonic()
        try:
            await self._client.update(LEASES, settings.name, {**lease, "spec": spec}, settings.namespace)
        except (Conflict, NotFound):
            return UNKNOWN
        self._seen, self._seen_at = (self._identity, now), wrote
        return HELD

    async def _create(self, now: str) -> Attempt:
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
            return UNKNOWN  # another process created it first, or the 404 was wrong
        return HELD

    async def _release(self) -> None:
        """Release the lease at once, so that the next leader need not wait until it expires."""
        settings = self._settings
        try:
            lease = _read(await self._client.get(LEASES, settings.name, settings.namespace))
            spec = lease["spec"]
            if spec.get("holderIdentity") != self._identity:
                return
            spec = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.update(LEASES, settings.name, {**lease, "spec": spec}, settings.namespace)
        except (ApiProblem, msgspec.DecodeError) as problem:
            log.warning("releasing the lease %s: %s", settings.name, problem)


def _read(body: bytes) -> dict[str, Any]:
    lease = msgspec.json.decode(body, type=dict[str, Any])
    return {**lease, "spec": msgspec.convert(lease.get("spec") or {}, dict[str, Any])}
