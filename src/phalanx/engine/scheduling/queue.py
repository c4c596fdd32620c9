"""The queue of roots: active, backoff, waiting for an event, gated.

Roots that failed for the same reason of the same shape share a bucket. A bucket sleeps until a change that can
matter; then only its first root becomes active. If that one succeeds the next follows, if it fails all stay: one
evaluation per shape, however many pods wait. The queue never looks at nodes itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from phalanx.engine.framework import ClusterChange, Wake
from phalanx.engine.scheduling.roots import (
    ACTIVE,
    ATTEMPT,
    BACKOFF,
    GATED,
    NOWHERE,
    SEARCH,
    WAITING,
    Place,
    Root,
)
from phalanx.engine.state.sieve import Requests, Sieve

SortKey = Callable[[int, float, int], tuple[Any, ...]]
# Changes of one row; a bucket may ask to hear of them only if the row has room for what it needs.
ROW_WAKES = Wake.NODE | Wake.POD_GONE | Wake.NOMINATION
_ROW_BITS = int(ROW_WAKES)  # plain ints: flag arithmetic is slow

Worth = Callable[["Bucket", ClusterChange], bool]
_FEW = 64  # entries that mean nothing any more are no reason to look at all
_MANY_OWED = 16  # changes; whom so much concerns is not asked
_MANY_ASKED = 1_000  # buckets in one step


def by_priority(priority: int, asked: float, order: int) -> tuple[Any, ...]:
    return (-priority, asked, order)


class Bucket:
    """Roots that wait for the same thing."""

    __slots__ = (
        "armed",
        "asleep",
        "deadline",
        "heap",
        "key",
        "left",
        "message",
        "needs",
        "owed",
        "untold",
        "waits_for",
        "wakes",
        "worth",
    )

    def __init__(self, key: Hashable, wakes: Wake, worth: Worth | None, message: str, waits_for: Any) -> None:
        self.key = key
        self.wakes = wakes  # kinds of change that are looked at at all
        self.worth = worth  # finer question; None: every change of those kinds
        self.message = message  # what people were told
        self.waits_for = waits_for  # whatever `worth` needs
        self.needs: Requests | None = None  # also roused by changes of a row with room for this
        self.heap: list[tuple[tuple[Any, ...], int, Root]] = []
        self.left = 0  # entries of roots that have left since, at most
        self.asleep = True
        self.deadline = 0.0  # woken then even without an event
        self.armed = False  # has an entry among the deadlines
        self.owed: dict[tuple[int, int], ClusterChange] = {}  # (row, kind): it has yet to be asked about these
        self.untold: list[Root] = []  # stood by while one like them was tried, and know nothing yet

    def first(self) -> Root | None:
        while self.heap:
            entry = self.heap[0]
            root = entry[2]
            if root.entry is entry and root.place is WAITING:
                return root
            heapq.heappop(self.heap)
            self.left -= 1
        return None

    def leave(self) -> None:
        """One of its roots has left, and its entry stays: not for ever, should the first root wait for ever."""
        self.left += 1
        if self.left > _FEW and self.left * 2 > len(self.heap):
            self.heap = [entry for entry in self.heap if entry[2].entry is entry]
            heapq.heapify(self.heap)
            self.left = 0


class Queue:
    def __init__(
        self,
        sieve: Sieve[Bucket],
        sort_key: SortKey = by_priority,
        *,
        readmit: Callable[[Root], None] | None = None,
        gatekeepers: Mapping[str, Wake] = MappingProxyType({}),
        initial_backoff: float = 1.0,
        max_backoff: float = 10.0,
        flush_after: float = 300.0,
    ) -> None:
        self._sieve = sieve
        self._sort_key = sort_key
        self.initial_backoff = initial_backoff
        self.max_backoff = max_backoff
        self.flush_after = flush_after
        self.roots: dict[str, Root] = {}  # every root that has pending pods
        self._active: list[tuple[tuple[Any, ...], int, Root]] = []
        self._backoff: list[tuple[float, int, Root]] = []
        self._searching: dict[str, Root] = {}  # the one that goes on next first
        self._buckets: dict[Hashable, Bucket] = {}
        self._asleep: dict[int, dict[Hashable, Bucket]] = {bit: {} for bit in _bits(Wake.ANY)}
        self._deadlines: list[tuple[float, int, Bucket]] = []
        self._owed: list[tuple[tuple[Any, ...], int, Bucket]] = []  # buckets to be asked, who would be first in front
        self._asked = 0  # of those, since the last `flush`
        self._ticket = 0
        # PreEnqueue plugins that want to be asked again after some kinds of change, and who asks them.
        self._gatekeepers = dict(gatekeepers)
        self._readmit = readmit or self.activate
        self.heard: Callable[[ClusterChange], None] = lambda change: None  # told while roots are put aside

    # ---- moving roots

    def activate(self, root: Root) -> None:
        """Into the active queue, from wherever it is."""
        self._leave(root)
        self._into_active(root)

    def back_off(self, root: Root, now: float) -> None:
        """After an error: wait, twice as long each time."""
        self._leave(root)
        root.errors += 1
        delay = min(self.initial_backoff * 2.0 ** min(root.errors - 1, 30), self.max_backoff)
        root.expiry = now + delay
        root.place = BACKOFF
        self.roots[root.key] = root
        root.entry = (root.expiry, self._next(), root)
        heapq.heappush(self._backoff, root.entry)

    def gate(self, root: Root, plugin: str, message: str) -> None:
        self._leave(root)
        root.place = GATED
        root.gate = (plugin, message)
        self.roots[root.key] = root

    def wait(
        self,
        root: Root,
        key: Hashable,
        wakes: Wake,
        worth: Worth | None,
        now: float,
        *,
        message: str = "",
        waits_for: Any = None,
        needs: Requests | None = None,
    ) -> Bucket:
        """After a rejection: sleep in the bucket `key` until a change that is worth it: one of the kinds in `wakes`,
        or, if `needs` is given, any change of a row that has room for it."""
        self._leave(root)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key, wakes, worth, message, waits_for)
        else:
            self._unindex(bucket)
            bucket.wakes, bucket.worth, bucket.message, bucket.waits_for = wakes, worth, message, waits_for
        bucket.needs = needs
        self._index(bucket)
        bucket.asleep = True
        bucket.deadline = now + self.flush_after
        self._arm(bucket)
        self._into_bucket(root, bucket)
        return bucket

    def sleeping(self, key: Hashable) -> Bucket | None:
        """The bucket `key`, if it is asleep: a root that would land there need not be tried."""
        bucket = self._buckets.get(key)
        return bucket if bucket is not None and bucket.asleep else None

    def join(self, root: Root, bucket: Bucket) -> None:
        """Let a root sleep with its twins without having been tried."""
        self._leave(root)
        self._into_bucket(root, bucket)

    def put_aside(self, root: Root, scout_of: Bucket | None) -> None:
        """Its attempt is not finished: the others first. `scout_of`: those who wait for what becomes of it."""
        self._leave(root)
        root.place = SEARCH
        root.bucket = scout_of
        self.roots[root.key] = root
        self._searching[root.key] = root

    def above(self, priority: int) -> bool:
        """Somebody of a higher priority can be tried."""
        return self._has_active() and self._active[0][2].priority > priority

    def put_aside_first(self) -> Root | None:
        """The root put aside whose turn it is."""
        return next(iter(self._searching.values()), None)

    def go_on(self, root: Root) -> None:
        """Take out a root that was put aside. The caller must then move it somewhere, and call `attempted`."""
        del self._searching[root.key]
        root.place = ATTEMPT

    def stand_by(self, root: Root, scout: Root, key: Hashable) -> None:
        """Sleep until it is known what becomes of a root like this one, which was put aside."""
        self._leave(root)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key, Wake.NOTHING, None, "", None)
            bucket.asleep = False
        scout.bucket = bucket
        bucket.untold.append(root)
        self._into_bucket(root, bucket)

    def remove(self, root: Root) -> None:
        """Out of the queue: bound, assumed or gone."""
        self._leave(root)
        root.place = NOWHERE
        self.roots.pop(root.key, None)

    def pop(self) -> Root | None:
        """The next root to attempt. The caller must then move it somewhere, and call `attempted`."""
        if self._owed and not self._ask():
            return None
        while self._active:
            entry = heapq.heappop(self._active)
            root = entry[2]
            if root.entry is entry and root.place is ACTIVE:
                root.entry = None
                root.place = ATTEMPT
                root.attempts += 1
                return root
        return None

    def attempted(self, root: Root, came_from: Bucket | None) -> None:
        """After an attempt of a root that was woken from a bucket: unless it went back to sleep there, its twins may
        go on."""
        if came_from is not None and not came_from.asleep:
            self._follow(came_from)

    # ---- time and events

    def flush(self, now: float) -> None:
        """Move roots whose backoff is over, and wake buckets nobody woke for long."""
        self._asked = 0
        while self._backoff and self._backoff[0][0] <= now:
            entry = heapq.heappop(self._backoff)
            root = entry[2]
            if root.entry is entry and root.place is BACKOFF:
                if root.gate[0]:
                    self._readmit(root)  # it failed at the gate: ask there again
                else:
                    self._into_active(root)
        while self._deadlines and self._deadlines[0][0] <= now:
            bucket = heapq.heappop(self._deadlines)[2]
            bucket.armed = False
            if not bucket.asleep:
                continue
            if bucket.deadline <= now:
                self._rouse(bucket)
            else:
                self._arm(bucket)

    def next_time(self) -> float | None:
        """When `flush` will have something to do."""
        while self._backoff and self._backoff[0][2].entry is not self._backoff[0]:
            heapq.heappop(self._backoff)
        while self._deadlines and not self._deadlines[0][2].asleep:
            heapq.heappop(self._deadlines)[2].armed = False
        times = [heap[0][0] for heap in (self._backoff, self._deadlines) if heap]
        return min(times) if times else None

    def listens(self, kind: Wake) -> bool:
        """Whether a change of that kind, which is not one of a row, can concern anybody."""
        awake = not self._searching and not self._asleep[int(kind)]
        return not awake or any(wakes & kind for wakes in self._gatekeepers.values())

    def wake(self, change: ClusterChange) -> None:
        """Something happened: rouse every sleeping bucket to which it can matter."""
        if self._searching:
            self.heard(change)
        kind = int(change.kind)
        sleeping = self._asleep[kind]
        if sleeping:
            roused = [b for b in sleeping.values() if b.worth is None or b.worth(b, change)]
            for bucket in roused:
                self._rouse(bucket)
        if change.row >= 0 and kind & _ROW_BITS:
            passing = self._sieve.passing(change.row)
            if len(passing) > _FEW:
                self._owe(passing, change)
            else:
                for bucket in passing:
                    if bucket.asleep and (bucket.worth is None or bucket.worth(bucket, change)):
                        self._rouse(bucket)
        if self._gatekeepers:
            names = [name for name, wakes in self._gatekeepers.items() if wakes & change.kind]
            for root in [r for r in self.roots.values() if r.place is GATED and r.gate[0] in names]:
                self._readmit(root)

    def _owe(self, buckets: Iterable[Bucket], change: ClusterChange) -> None:
        """Many could have the room, few will get it: each is asked when its turn comes, about the row as it is then."""
        for bucket in buckets:
            first = bucket.first() if bucket.asleep else None
            if first is None:
                continue
            if not bucket.owed:
                heapq.heappush(self._owed, (self._entry(first)[0], self._ticket, bucket))
            bucket.owed[change.row, int(change.kind)] = change
            if len(bucket.owed) > _MANY_OWED:
                self._rouse(bucket)

    def _ask(self) -> bool:
        """Ask those who would come before the first active root. False: enough were asked for now."""
        while self._owed:
            key, _, bucket = self._owed[0]
            if self._has_active() and self._active[0][0] < key:
                return True
            if self._asked >= _MANY_ASKED:
                return False
            heapq.heappop(self._owed)
            owed, bucket.owed = bucket.owed, {}
            if owed and bucket.asleep:
                self._asked += 1
                if bucket.worth is None or any(bucket.worth(bucket, change) for change in owed.values()):
                    self._rouse(bucket)
        return True

    def missed(self, bucket: Bucket, changes: Iterable[ClusterChange] | None) -> None:
        """What happened while the root that has just gone to sleep was being tried; None: too much to look at."""
        if changes is None:
            self._rouse(bucket)
            return
        for change in changes:
            asks = change.kind & bucket.wakes or (bucket.needs is not None and change.kind & ROW_WAKES)
            if asks and (bucket.worth is None or bucket.worth(bucket, change)):
                self._rouse(bucket)
                return

    def rouse(self, bucket: Bucket) -> None:
        """Wake a sleeping bucket, whatever it waits for."""
        self._rouse(bucket)

    def requested(self) -> set[int]:
        """Ids of the resources that sleepers wait for."""
        return self._sieve.requested()

    def has_active(self) -> bool:
        """Somebody can be tried at once, or asked."""
        return bool(self._searching or self._owed) or self._has_active()

    def _has_active(self) -> bool:
        while self._active:
            entry = self._active[0]
            if entry[2].entry is entry and entry[2].place is ACTIVE:
                return True
            heapq.heappop(self._active)
        return False

    def places(self) -> Iterator[tuple[Root, Place]]:
        """For validation: every root as found in the structures themselves."""
        for entry in self._active:
            if entry[2].entry is entry:
                yield entry[2], ACTIVE
        for timed in self._backoff:
            if timed[2].entry is timed:
                yield timed[2], BACKOFF
        for root in self._searching.values():
            yield root, SEARCH
        for bucket in self._buckets.values():
            for entry in bucket.heap:
                if entry[2].entry is entry:
                    yield entry[2], WAITING
        for root in self.roots.values():
            if root.place is GATED:
                yield root, GATED

    def validate(self) -> None:
        """Whoever sleeps in a bucket that is awake has somebody before it that is being tried."""
        scouts = {id(r.bucket) for r in self.roots.values() if r.place in (ACTIVE, SEARCH)}
        for bucket in self._buckets.values():
            assert bucket.asleep or bucket.first() is None or id(bucket) in scouts, f"nobody leads {bucket.key}"

    # ---- inside

    def _arm(self, bucket: Bucket) -> None:
        if not bucket.armed:
            bucket.armed = True
            heapq.heappush(self._deadlines, (bucket.deadline, self._next(), bucket))

    def _next(self) -> int:
        self._ticket += 1
        return self._ticket

    def _entry(self, root: Root) -> tuple[tuple[Any, ...], int, Root]:
        return (self._sort_key(root.priority, root.asked, root.order), self._next(), root)

    def _into_active(self, root: Root) -> None:
        root.place = ACTIVE
        root.gate = ("", "")
        self.roots[root.key] = root
        root.entry = self._entry(root)
        heapq.heappush(self._active, root.entry)

    def _into_bucket(self, root: Root, bucket: Bucket) -> None:
        root.place = WAITING
        root.bucket = bucket
        self.roots[root.key] = root
        root.entry = self._entry(root)
        heapq.heappush(bucket.heap, root.entry)

    def _leave(self, root: Root) -> None:
        """Out of its present place. If it was the scout of an awake bucket, the next twin takes over."""
        scout_of = root.bucket if root.place in (ACTIVE, SEARCH) else None
        root.entry = None
        if root.place is SEARCH:
            self._searching.pop(root.key, None)
        if root.place is WAITING and root.bucket is not None:
            root.bucket.leave()
            if root.bucket.first() is None:
                self._drop(root.bucket)
        root.bucket = None
        root.place = NOWHERE
        if scout_of is not None and not scout_of.asleep:
            self._follow(scout_of)

    def _rouse(self, bucket: Bucket) -> None:
        self._unindex(bucket)
        bucket.owed = {}
        bucket.asleep = False
        self._follow(bucket)

    def _follow(self, bucket: Bucket) -> None:
        """The first root of an awake bucket becomes active and remembers where it came from."""
        root = bucket.first()
        if root is None:
            self._drop(bucket)
            return
        heapq.heappop(bucket.heap)
        self._into_active(root)
        root.bucket = bucket

    def _drop(self, bucket: Bucket) -> None:
        self._unindex(bucket)
        bucket.asleep = False
        if self._buckets.get(bucket.key) is bucket:
            del self._buckets[bucket.key]
        if len(self._deadlines) > 2 * len(self._buckets) + _FEW:
            for _, _, each in self._deadlines:
                each.armed = each.asleep
            self._deadlines = [entry for entry in self._deadlines if entry[2].asleep]
            heapq.heapify(self._deadlines)

    def _index(self, bucket: Bucket) -> None:
        for bit in _bits(bucket.wakes):
            self._asleep[bit][bucket.key] = bucket
        if bucket.needs is not None:
            self._sieve.add(bucket, bucket.needs)

    def _unindex(self, bucket: Bucket) -> None:
        for bit in _bits(bucket.wakes):
            self._asleep[bit].pop(bucket.key, None)
        self._sieve.remove(bucket)


@cache
def _bits(wakes: Wake) -> tuple[int, ...]:
    return tuple(int(bit) for bit in Wake.__members__.values() if _single(int(bit)) and bit & wakes)


def _single(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
