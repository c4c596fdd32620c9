"""Find a place for pods that do not exist yet: the attempt of a what-if, without preemption. Nothing of it remains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.engine.events import PlaceRequested
from phalanx.engine.explain.trial import TrialAttempt
from phalanx.engine.explain.whatif import AskedUnits, Question, TrialState
from phalanx.engine.scheduling.attempt.answers import Placed, Refused
from phalanx.engine.scheduling.commit.admitted_places import Place

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler


def find_place(scheduler: Scheduler, request: PlaceRequested) -> tuple[Place, str]:
    """Return a node for every pod of the request; no place and the reason if not all of them fit now."""
    question = Question(pods=request.pods, pod_groups=request.pod_groups, composites=request.composites)
    pods = {f"?{pod.metadata.namespace}/{pod.metadata.name}": pod for pod in request.pods}
    with TrialState(scheduler) as trial, TrialAttempt(scheduler) as trial_attempt:
        asked = AskedUnits(scheduler, trial, trial_attempt, relax=False, when=False)
        asked.put(question)
        place = []
        for root in asked.roots():
            target = asked.target(root)
            answer = target if isinstance(target, Refused) else trial_attempt.attempt(target)
            if not isinstance(answer, Placed):
                return (), answer.text if isinstance(answer, Refused) else answer.refused.text
            if len(answer.assignment) < len(root.records):
                return (), f"only {len(answer.assignment)} of {len(root.records)} pods would get a node"
            place += [(pods[record.key], scheduler.columns.names[row]) for record, row in answer.assignment]
        return place, "" if place else "; ".join(asked.notes) or "it has no pods"
