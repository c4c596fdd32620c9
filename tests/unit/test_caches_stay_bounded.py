"""Caches about objects that come and go stay bounded: a cluster that runs for long does not grow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.controllers.runtime.cache import WriteGuard
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.pods import BURST, PodEvents
from phalanx.engine.decisions import SetPodCondition
from phalanx.kube.recorder import SERIES_END, ObjectRef, Recorder
from phalanx.kube.status import StatusWriter
from phalanx.testing import Cluster
from phalanx.testing.builders import pod
from support.virtual_time import VirtualClock, VirtualLoop, run

PODS = Resource("", "v1", "pods", "Pod")


class Server(Client):
    async def call(self, call: Call) -> bytes:
        return b"{}"

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return
        yield


def remembered(part: Any) -> int:
    """Return the number of entries in the tables of a part."""
    return sum(len(value) for value in vars(part).values() if isinstance(value, dict))


def test_events_of_objects_that_are_gone_are_forgotten_when_a_repeat_would_be_news() -> None:
    async def main(loop: VirtualLoop) -> None:
        recorder = Recorder(Server(), "sched", "sched-1", VirtualClock(loop), random.Random(1))
        for number in range(5_000):
            recorder.record(ObjectRef("v1", "Pod", "a", f"p{number}", str(number)), "Normal", "Scheduled", "B", "text")
            await asyncio.sleep(1)
        assert SERIES_END - 5 < remembered(recorder) <= SERIES_END + 1

    run(main)


def test_a_repeated_event_stays_one_series_while_others_are_forgotten() -> None:
    async def main(loop: VirtualLoop) -> None:
        recorder = Recorder(Server(), "sched", "sched-1", VirtualClock(loop), random.Random(1))
        about = ObjectRef("v1", "Pod", "a", "stays", "1")
        for number in range(2_000):
            recorder.record(about, "Warning", "FailedScheduling", "Scheduling", "no room")
            recorder.record(ObjectRef("v1", "Pod", "a", f"p{number}", str(number)), "Normal", "Scheduled", "B", "text")
            await asyncio.sleep(1)
        counts = [series.count for series in recorder._series.values() if series.count > 1]
        assert counts == [2_000]

    run(main)


def test_names_that_may_be_written_at_any_rate_again_are_forgotten() -> None:
    async def main(loop: VirtualLoop) -> None:
        guard = WriteGuard(Server())
        for number in range(3_000):
            await guard.create(PODS, {"metadata": {"name": f"pod-{number}"}}, "default")
            await asyncio.sleep(0.5)
        assert remembered(guard) <= 32

    run(main)


def test_owners_that_may_have_all_their_events_again_are_forgotten() -> None:
    async def main(loop: VirtualLoop) -> None:
        pod_events = PodEvents(Events(Server(), VirtualClock(loop)), VirtualClock(loop), "job")
        for number in range(3_000):
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": f"o{number}", "controller": True}
            pod_events.created(
                {"metadata": {"name": "p", "namespace": "a", "uid": str(number), "ownerReferences": [owner]}}
            )
            await asyncio.sleep(10)
        assert remembered(pod_events) <= 31  # one event is made good in 300 s
        busy = {"apiVersion": "batch/v1", "kind": "Job", "name": "busy", "uid": "busy", "controller": True}
        written = pod_events._events._queue.qsize()
        for number in range(2 * BURST):
            pod_events.created(
                {"metadata": {"name": "p", "namespace": "a", "uid": f"b{number}", "ownerReferences": [busy]}}
            )
        assert pod_events._events._queue.qsize() - written == BURST

    run(main)


def test_transition_times_of_deleted_objects_are_forgotten_and_those_of_others_stay() -> None:
    async def main(loop: VirtualLoop) -> None:
        writer = StatusWriter(Server(), lambda outcome: None, VirtualClock(loop), random.Random(1), writers=1)

        def waits(name: str, uid: str, message: str) -> str:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            facts = {"id": 0, "namespace": "a", "name": name, "uid": uid}
            writer.submit(SetPodCondition(**facts, **condition))
            return str(writer._requested[uid].conditions["PodScheduled"]["lastTransitionTime"])

        first = waits("stays", "1", "no room")
        for number in range(1_000):
            waits(f"pod-{number}", f"p{number}", "no room")
            writer.gone("Pod", "a", f"pod-{number}")
            await asyncio.sleep(1)
        assert len(writer._since) == 1
        assert waits("stays", "1", "no room on 3 nodes") == first
        assert waits("stays", "2", "no room on 3 nodes") > first  # created again

    run(main)


def test_pods_of_jobs_that_differ_only_in_their_owner_share_one_remembered_spec() -> None:
    run = Cluster()
    for number in range(50):
        run.see(pod(f"p-{number}").cpu("1").owner("Job", f"j-{number}", uid=f"u{number}"))
    run.step(1.0)
    assert len(run.engine.shapes._quick) == 1
