"""Periodic controllers of the leading scheduler: ProvisioningRequests, and admission checks of Kueue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.base.errors import ApiProblem, NotFound
from phalanx.base.tasks import end, run_restarting
from phalanx.controllers.cluster_mode.kueue import PlacementCheck
from phalanx.controllers.cluster_mode.provisioning_requests import ProvisioningRequests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """A controller that lists its objects periodically instead of watching them."""

    name: str
    look: Callable[[], Awaitable[None]]
    seconds: float  # between two runs
    install: str  # remedy if the server does not know its kinds

    async def run(self) -> None:
        """Run periodically. Missing kinds are logged once."""
        missing = False
        while True:
            try:
                await self.look()
                missing = False
            except NotFound:
                if not missing:
                    log.warning("no %s: the server does not know their kinds; %s", self.name, self.install)
                missing = True
            except ApiProblem as problem:
                log.warning("%s: %s; trying again", self.name, problem)
            await asyncio.sleep(self.seconds)


async def with_duties(decide: Callable[[], Coroutine[Any, Any, None]], duties: Sequence[Duty]) -> None:
    """Run `decide` to its end, and the duties as long as that."""
    others = [asyncio.create_task(run_restarting(duty.name, duty.run), name=duty.name) for duty in duties]
    try:
        await decide()
    finally:
        await end(others)


def provisioning(requests: ProvisioningRequests) -> Duty:
    return Duty("ProvisioningRequests", requests.look, 5.0, "install the definition of autoscaling.x-k8s.io")


def admission_checks(check: PlacementCheck) -> Duty:
    return Duty("admission checks", check.look, 2.0, "install Kueue")
