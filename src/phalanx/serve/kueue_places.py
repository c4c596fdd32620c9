"""Places for workloads of Kueue: requests become engine events, answers are engine decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from phalanx.base.errors import ApiProblem
from phalanx.controllers.cluster_mode.kueue import FoundPlace, WantedPlace
from phalanx.engine import decisions as d
from phalanx.engine.events import PlaceReleased, PlaceRequested
from phalanx.model.gates import Gates
from phalanx.serve.queries.manifests import Manifests
from phalanx.serve.scheduler import SchedulerService

ANSWER_SECONDS = 30.0  # the engine answers in its next step


class EnginePlaces:
    def __init__(
        self, service: SchedulerService, gates: Gates, classes: Callable[[], Awaitable[list[dict[str, Any]]]]
    ) -> None:
        """`classes`: returns the priority classes of the cluster."""
        self._service = service
        self._gates = gates
        self._classes = classes
        self._waiting: dict[str, asyncio.Future[FoundPlace]] = {}
        self._lost: list[tuple[str, str]] = []
        self.scheduler_names: Sequence[str] = tuple(service.engine.profiles)
        service.on_decisions.append(self._decided)

    @property
    def ready(self) -> bool:
        return self._service.synced

    async def reserve(self, wanted: WantedPlace) -> FoundPlace:
        try:
            manifests = Manifests(self._gates, await self._classes(), tuple(self.scheduler_names))
            manifests.read(wanted.manifests, wanted.namespace)
        except ApiProblem as problem:
            return FoundPlace(placed=False, message=str(problem))
        question = manifests.question
        answer: asyncio.Future[FoundPlace] = asyncio.get_running_loop().create_future()
        self._waiting[wanted.key] = answer
        self._service.apply(
            PlaceRequested(
                wanted.namespace,
                wanted.name,
                wanted.uid,
                wanted.until,
                question.pods,
                question.pod_groups,
                question.composites,
                wanted.owner_uids,
                wanted.owners,
            )
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            return FoundPlace(placed=False, message="the scheduler has not answered yet")
        finally:
            self._waiting.pop(wanted.key, None)

    def release(self, namespace: str, name: str) -> None:
        self._service.apply(PlaceReleased(namespace, name))

    def held(self, namespace: str, name: str) -> bool:
        return f"{namespace}/{name}" in self._service.engine.places.held

    def lost(self) -> Iterable[tuple[str, str]]:
        lost, self._lost = self._lost, []
        return lost

    def _decided(self, made: list[d.Decision]) -> None:
        for decision in made:
            if isinstance(decision, d.PlaceAnswered):
                key = f"{decision.namespace}/{decision.name}"
                waiting = self._waiting.get(key)
                if waiting is not None and not waiting.done():
                    waiting.set_result(FoundPlace(decision.placed, decision.message, decision.nodes))
                elif not decision.placed:
                    self._lost.append((key, decision.message))
