"""Leader election of a process, if it takes part in one."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.kube.lease import Elector, LeaseSettings


class Leadership:
    def __init__(self, lease: LeaseSettings | None, clock: Clock, before: Leadership | None = None) -> None:
        """`lease`: None: the process always leads. `before`: that of an earlier instance, which lost the lease."""
        self.lease = lease
        self._clock = clock
        self._before = before._elector if before is not None else None
        self._elector: Elector | None = None

    async def run(
        self,
        client: Client,
        work: Callable[[], Coroutine[Any, Any, None]],
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        """Do the work while leading. `settled`: returns True when every write of it has ended."""
        if self.lease is None:
            await work()
            return
        identity = f"{socket.gethostname()}_{random.SystemRandom().getrandbits(64):016x}"
        before = self._before
        made = before.successor(client, identity) if before is not None else None
        self._elector = made or Elector(client, self.lease, identity, self._clock)
        await self._elector.lead(work, settled)

    @property
    def elected(self) -> bool:
        """Return True if the process holds the lease."""
        return self._elector is not None and self._elector.leading

    @property
    def leads(self) -> bool:
        return self.lease is None or self.elected

    @property
    def may_act(self) -> bool:
        """Return False if another process may lead by now."""
        return self._elector is None or self._elector.holds

    @property
    def leader(self) -> str | None:
        """Return the host name (pod name) of the leader; None if it is this process, "" if none is known."""
        if self.leads:
            return None
        return self._elector.holder.rpartition("_")[0] if self._elector is not None else ""

    @property
    def overdue(self) -> float:
        """Return the seconds since a leader passed the renew deadline without a renewal; 0 otherwise."""
        return self._elector.overdue if self._elector is not None else 0.0
