"""Turns of several Phalanx schedulers on the same nodes: only the holder of the placement lease places pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.base.clock import Clock
from phalanx.base.informer import Informer
from phalanx.kube.placement_lease import PlacementLease

TURN = 0.5  # seconds that a scheduler with work keeps the lease while others wait
LINGER = 0.05  # the same without work: more pods often arrive
CATCH_UP = 1.0  # seconds between two checks of the lease while an informer is behind
ENDING = ("pods", "resourceclaims", "persistentvolumes", "persistentvolumeclaims")  # resources written by a placement


class Turns:
    def __init__(
        self,
        lease: PlacementLease,
        clock: Clock,
        informers: Callable[[], list[Informer[object]]],
        written: Mapping[str, int],
    ) -> None:
        """written: highest revision of our own writes, by plural."""
        self.lease = lease
        self._clock = clock
        self._informers = informers
        self._written = written
        self._since = clock.monotonic()
        self.handed_over = 0

    async def begin(self) -> bool:
        """Return True if this scheduler may place pods now; False after a short wait."""
        if self.lease.fresh:
            return True
        held = self.lease.holds
        if not await self.lease.acquire():
            return False
        if not held:
            await self._catch_up()
            self._since = self._clock.monotonic()
        return self.lease.holds

    async def _catch_up(self) -> None:
        """Wait until the informers show the writes of earlier holders."""
        through = self.lease.through
        for informer in self._informers():
            revision = through.get(informer.resource.plural, 0)
            while self.lease.holds and informer.reached < revision:
                await informer.wait_for(revision, CATCH_UP)

    def over(self, *, idle: bool) -> bool:
        """Return True if another scheduler gets its turn."""
        return self.lease.contended and self._clock.monotonic() - self._since >= (LINGER if idle else TURN)

    async def end(self, *, again: bool) -> None:
        """Release the lease after all binds are acknowledged and seen. again: there are more pods to place."""
        reach = {each.resource.plural: each.newest for each in self._informers() if each.resource.plural in ENDING}
        for plural in ENDING:
            reach[plural] = max(reach.get(plural, 0), self._written.get(plural, 0))
        while not await self.lease.hand_over(reach, again=again):
            pass
        self.handed_over += 1
