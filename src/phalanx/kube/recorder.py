"""Write events.k8s.io events in the background. Repeats become a series; if there are too many, the oldest are dropped.

An event is identified by (object, reason, action, note, type). The first is created; repeats within SERIES_END are
counted and written as a series at most once per SERIES_INTERVAL. Recording never waits; dropped events are counted and
logged. While the process has more urgent writes (`busy`), events wait for a limited time and up to a limited number.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import ApiProblem, NotFound
from phalanx.base.ids import generate_suffix
from phalanx.base.resources import EVENTS_V1
from phalanx.base.retry import retrying
from phalanx.base.tasks import run_all

log = logging.getLogger(__name__)

MAX_NOTE = 1024
QUEUE = 20_000
HELD = QUEUE // 2  # events that wait for more urgent writes; with more, events are written beside them
LONGEST_HELD = 30.0  # seconds that an event waits for more urgent writes
LOOK_AGAIN = 0.1  # seconds between two looks whether they are done
SERIES_INTERVAL = 30.0  # seconds between two writes of one series
SERIES_END = 360.0  # seconds after which a repeat is a new event
REMEMBERED = 20_000
REPEAT_EVERY = 60.0  # seconds between two log lines about dropped events


class ObjectRef(msgspec.Struct, frozen=True):
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    def json(self) -> dict[str, str]:
        pairs = (
            ("apiVersion", self.api_version),
            ("kind", self.kind),
            ("namespace", self.namespace),
            ("name", self.name),
            ("uid", self.uid),
        )
        return {key: value for key, value in pairs if value}


class _Series(msgspec.Struct):
    name: str
    namespace: str
    count: int
    last: float
    written: float


class Recorder:
    def __init__(
        self,
        client: Client,
        controller: str,
        instance: str,
        clock: Clock,
        rng: random.Random,
        *,
        writers: int = 4,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """busy: returns True while other writes of this process should come first."""
        self._client, self._controller, self._instance = client, controller, instance
        self._clock, self._rng = clock, rng
        self._writers, self._busy = writers, busy
        # Kind of the write, its arguments, and the time until which it waits for more urgent writes.
        self._queue: asyncio.Queue[tuple[str, Any, float]] = asyncio.Queue(QUEUE)
        self._series: OrderedDict[tuple[Any, ...], _Series] = OrderedDict()
        self.dropped = 0
        self._announced = (float("-inf"), 0)  # time of the last log line about dropped events, and their number then

    def record(
        self,
        regarding: ObjectRef,
        type_: str,
        reason: str,
        action: str,
        note: str,
        *,
        related: ObjectRef | None = None,
    ) -> None:
        """Record an event. Never waits, never raises."""
        now = self._clock.now()
        note = note if len(note) <= MAX_NOTE else note[: MAX_NOTE - 3] + "..."
        key = (regarding, related, type_, reason, action, note)
        series = self._series.get(key)
        if series is not None and now - series.last < SERIES_END:
            series.count += 1
            series.last = now
            self._series.move_to_end(key)
            if now - series.written >= SERIES_INTERVAL:
                series.written = now
                self._enqueue("series", (series.namespace, series.name, series.count, now))
            return
        namespace = regarding.namespace or "default"
        name = f"{regarding.name[:200]}.{generate_suffix(self._rng, 12)}"
        self._series[key] = _Series(name, namespace, 1, now, now)
        self._series.move_to_end(key)
        while len(self._series) > REMEMBERED or now - next(iter(self._series.values())).last >= SERIES_END:
            self._series.popitem(last=False)
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": rfc3339_micro(now),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": action,
            "reason": reason,
            "regarding": regarding.json(),
            "note": note,
            "type": type_,
        }
        if related is not None:
            body["related"] = related.json()
        self._enqueue("create", (namespace, msgspec.json.encode(body)))  # encoded: many may wait

    def _enqueue(self, kind: str, item: Any) -> None:
        if self._queue.full():
            self._queue.get_nowait()
            self._queue.task_done()
            self._count_dropped(f"{QUEUE:,} were waiting to be written")
        self._queue.put_nowait((kind, item, self._clock.monotonic() + LONGEST_HELD))

    def _count_dropped(self, why: str) -> None:
        self.dropped += 1
        now, (last, announced) = self._clock.monotonic(), self._announced
        if now - last >= REPEAT_EVERY:
            self._announced = (now, self.dropped)
            fresh = self.dropped - announced
            log.warning("events dropped: %d, %d in all (%s); nothing else is lost", fresh, self.dropped, why)

    async def run(self) -> None:
        await run_all((f"event writer {number}", self._write_events()) for number in range(self._writers))

    async def flush(self) -> None:
        """Wait until everything recorded so far is written or dropped."""
        await self._queue.join()

    async def _write_events(self) -> None:
        while True:
            kind, item, until = await self._queue.get()
            try:
                await self._let_others_go_first(until)
                if kind == "create":
                    await self._create(*item)
                else:
                    await self._update_series(*item)
            except ApiProblem as problem:
                # Losing one event is better than blocking all others behind it.
                self._count_dropped(str(problem))
            except Exception:
                self.dropped += 1
                log.exception("event not written")
            finally:
                self._queue.task_done()

    async def _let_others_go_first(self, until: float) -> None:
        while self._busy() and self._queue.qsize() < HELD and self._clock.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN)

    async def _create(self, namespace: str, body: bytes) -> None:
        await retrying(lambda: self._client.create(EVENTS_V1, body, namespace), self._rng, attempts=3, idempotent=True)

    async def _update_series(self, namespace: str, name: str, count: int, last: float) -> None:
        patch = {"series": {"count": count, "lastObservedTime": rfc3339_micro(last)}}
        try:
            await self._client.patch(EVENTS_V1, name, patch, namespace)
        except NotFound:
            log.debug("event %s/%s is gone; its series ends", namespace, name)
