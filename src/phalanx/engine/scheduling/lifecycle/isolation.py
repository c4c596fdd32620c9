"""Isolate objects and units whose handling raises an exception, so that the engine continues.

Objects come from users, and no list of checks is complete. An object whose event raises is treated as deleted (a pod on
a node keeps its room). A unit whose attempt raises is retried after a backoff. Both are reported once per version of
the problem, with a condition where the kind has one, an event, a metric and a log line.
"""

from __future__ import annotations

import traceback
from collections import Counter, deque
from typing import ClassVar

import msgspec

from phalanx.base.well_known import SCHEDULER_ERROR
from phalanx.engine import decisions as d
from phalanx.engine import events
from phalanx.engine.framework import Emit
from phalanx.engine.groups.conditions import TYPE_OF
from phalanx.engine.state.objects import KINDS
from phalanx.model.objects import Pod
from phalanx.model.objects.meta import ObjectMeta
from phalanx.model.objects.pod import Container, PodSpec, PodStatus

FRAMES = 6  # frames of a traceback in a log line: a RecursionError has a thousand
MAX_TEXT = 300  # characters of an exception's text in a message

ObjectKey = tuple[str, str, str]  # kind, namespace ("" where there is none), name


class SetAside(msgspec.Struct, frozen=True):
    """An object that is ignored because handling it raised."""

    uid: str
    message: str


class Isolation:
    strict: ClassVar[bool] = False  # tests: raise exceptions instead of isolating them

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.objects: dict[ObjectKey, SetAside] = {}
        self.total: Counter[str] = Counter()  # exceptions by kind of the object or unit
        self.unlogged: deque[str] = deque(maxlen=100)  # for the process that writes the log

    def note(self, kind: str, what: str, problem: BaseException) -> str:
        """Count and log an exception; return its text for conditions and events."""
        self.total[kind] += 1
        frames = "".join(traceback.format_exception(problem, limit=-FRAMES))
        self.unlogged.append(f"{kind} {what} is set aside:\n{frames}")
        text = str(problem)
        return f"{type(problem).__name__}: {text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + '…'}"

    def set_aside(self, key: ObjectKey, uid: str, generation: int, problem: BaseException) -> None:
        """Report an object whose event raised."""
        kind, namespace, name = key
        found = self.note(kind, f"{namespace}/{name}" if namespace else name, problem)
        message = f"the scheduler cannot handle this object and ignores it: {found}"
        if self.objects.get(key) == SetAside(uid, message):
            return  # another event of an object already reported
        self.objects[key] = SetAside(uid, message)
        if kind == "Pod":
            self._emit(
                d.SetPodCondition,
                namespace=namespace,
                name=name,
                uid=uid,
                reason=SCHEDULER_ERROR,
                message=message,
                observed_generation=generation,
            )
        elif kind in TYPE_OF:
            self._emit(
                d.SetGroupCondition,
                namespace=namespace,
                name=name,
                uid=uid,
                kind=kind,
                type=TYPE_OF[kind],
                reason=SCHEDULER_ERROR,
                message=message,
                observed_generation=generation,
            )
        self._emit(
            d.RecordEvent,
            namespace=namespace,
            name=name,
            uid=uid,
            kind=kind,
            type="Warning",
            reason="FailedScheduling" if kind == "Pod" else "ObjectSetAside",
            action="Scheduling",
            message=message[: d.MAX_EVENT_MESSAGE],
        )

    def handled(self, key: ObjectKey) -> None:
        """Clear the fault of an object that has a valid version or is gone."""
        self.objects.pop(key, None)


def room_only(pod: Pod) -> Pod:
    """Return a copy of a pod that only uses room on its node."""
    meta, spec = pod.metadata, pod.spec
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            priority=spec.priority,
            containers=_sizes(spec.containers),
            init_containers=_sizes(spec.init_containers or []),
            overhead=spec.overhead,
            resources=spec.resources,
        ),
        status=PodStatus(phase=pod.status.phase),
    )


def _sizes(containers: list[Container]) -> list[Container]:
    return [
        Container(name=each.name, resources=each.resources, restart_policy=each.restart_policy) for each in containers
    ]


def object_of(event: events.Event) -> ObjectKey | None:
    """Return the key of the object that an event is about, or None if it is not about a single object."""
    if isinstance(event, events.Outcome | events.TimePassed | events.PlaceRequested | events.PlaceReleased):
        return None
    if isinstance(event, events.Gone):
        return (event.kind, event.namespace, event.name)
    obj = event.object
    kind = KINDS.get(type(obj)) or type(obj).__name__
    return (kind, obj.metadata.namespace, obj.metadata.name)
