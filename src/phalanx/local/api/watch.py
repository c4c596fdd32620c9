"""watch: the changes of a resource as a stream of lines, encoded once however many clients look on."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from phalanx.base.errors import ApiProblem
from phalanx.local.api.context import Context
from phalanx.local.api.negotiate import Form, negotiate
from phalanx.local.api.read import (
    check_not_newer,
    invalid_options,
    parse_number,
    parse_revision,
    too_old,
)
from phalanx.local.api.request import Answer, Request, query_flag
from phalanx.local.api.selection import Selection
from phalanx.local.api.table import TableMaker
from phalanx.local.api.view import api_version, encode, partial, view_of, with_revision
from phalanx.local.store.contract import Change, Compacted, Entry, SlowWatcher, Watcher

BOOKMARK_EVERY = 30.0  # seconds; informers resume from the last bookmark
LONGEST = 3600.0  # seconds a watch may last when the client does not say
SHARED_LINES = 8192  # encoded events kept for watchers that come to the same change a little later
SHARED_BATCHES = 16
INITIAL_BATCH = 256


@dataclass(slots=True)
class Options:
    since: int | None  # None: send the present state first
    bookmarks: bool
    initial_end: bool  # mark the end of the initial events with a bookmark
    seconds: float


def options_of(request: Request, current: int) -> Options:
    query = request.query
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    asked = parse_revision(version)
    initial = query.get("sendInitialEvents", "")
    bookmarks = query_flag(query, "allowWatchBookmarks")
    if initial:
        if match != "NotOlderThan":
            raise invalid_options(
                "resourceVersionMatch", 'Forbidden: sendInitialEvents requires resourceVersionMatch "NotOlderThan"'
            )
        if not bookmarks and query_flag(query, "sendInitialEvents"):
            raise invalid_options("allowWatchBookmarks", "Forbidden: sendInitialEvents requires allowWatchBookmarks")
    elif match:
        raise invalid_options(
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )
    check_not_newer(asked, current)
    send_initial = query_flag(query, "sendInitialEvents")
    if send_initial or (not initial and asked == 0):
        since = None
    else:
        since = asked if asked else current
    seconds = float(parse_number(query, "timeoutSeconds")) or LONGEST
    return Options(since, bookmarks, send_initial and bookmarks, min(seconds, LONGEST))


class Lines:
    """Encodes events. Lines of equal (change, type, form) are shared between watchers."""

    def __init__(self) -> None:
        self._shared: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._batches: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> bytes | None:
        return self._shared.get(key)

    def keep(self, key: tuple[object, ...], line: bytes) -> bytes:
        self._shared[key] = line
        if len(self._shared) > SHARED_LINES:
            self._shared.popitem(last=False)
        return line

    def batch(self, key: tuple[object, ...]) -> bytes | None:
        return self._batches.get(key)

    def keep_batch(self, key: tuple[object, ...], text: bytes) -> bytes:
        self._batches[key] = text
        if len(self._batches) > SHARED_BATCHES:
            self._batches.popitem(last=False)
        return text


_EVENTS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
_HEADS = {event: b'{"type":"%s","object":' % event.encode() for event in _EVENTS}


def line(event: str, obj: bytes) -> bytes:
    return b"%b%b}\n" % (_HEADS[event], obj)


def error_line(problem: ApiProblem) -> bytes:
    return line("ERROR", encode(problem.status()))


class WatchHandler:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lines = Lines()

    async def handle(self, request: Request) -> Answer:
        form = negotiate(request.accept)
        options = options_of(request, self._ctx.store.revision)
        selection = Selection.of(request.kind, request.query, request.name)
        namespace = request.namespace
        store, resource = self._ctx.store, request.kind.storage_key
        present: Sequence[Entry] = ()
        since = options.since
        if since is None:
            # No await between the two: nothing can change in between.
            present, since = store.list(resource, namespace), store.revision
        try:
            watcher = store.watch(resource, namespace, since)
        except Compacted as old:
            # Kubernetes answers 200 with an ERROR event here; clients look at the event.
            return Answer(stream=_only(error_line(too_old(since, old.oldest))))
        follow = _Follow(self._ctx, self._lines, request, form, selection, options)
        return Answer(stream=follow.run(watcher, present, since))


async def _only(text: bytes) -> AsyncIterator[bytes]:
    yield text


class _Follow:
    """One client's watch."""

    def __init__(
        self, ctx: Context, lines: Lines, request: Request, form: Form, selection: Selection, options: Options
    ) -> None:
        self._ctx, self._lines, self._request, self._form = ctx, lines, request, form
        self._selection, self._options = selection, options
        kind, version = request.kind, request.version
        self._view = view_of(kind, version)
        include = request.query.get("includeObject", "") if form.shape == "table" else ""
        self._form_key = (kind.storage_key, version.name, form.shape, form.meta_version, include)
        self._include = include
        self._headers_sent = form.shape != "table"
        if form.shape == "table":
            TableMaker(kind, version, form.meta_version, include, 0.0)  # an unknown includeObject is told at once

    async def run(self, watcher: Watcher, present: Sequence[Entry], since: int) -> AsyncIterator[bytes]:
        try:
            for start in range(0, len(present), INITIAL_BATCH):
                batch = present[start : start + INITIAL_BATCH]
                text = b"".join([line("ADDED", self._object(e.value)) for e in batch if self._selection.matches(e)])
                if text:
                    yield text
            if self._options.initial_end:
                yield self._bookmark(since, initial_end=True)
            async for text in self._changes(watcher, since):
                yield text
        finally:
            watcher.close()

    async def _changes(self, watcher: Watcher, since: int) -> AsyncIterator[bytes]:
        clock = self._ctx.clock
        end = clock.monotonic() + self._options.seconds
        told = since
        batches = aiter(watcher)
        while True:
            left = end - clock.monotonic()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(min(left, BOOKMARK_EVERY) if self._options.bookmarks else left):
                    batch = await anext(batches)
            except TimeoutError:
                if self._options.bookmarks and watcher.progress > told:
                    told = watcher.progress
                    yield self._bookmark(told)
                continue
            except (StopAsyncIteration, SlowWatcher):
                return
            text = self._encode(batch)
            if text:
                told = batch[-1].revision
                yield text

    def _encode(self, batch: Sequence[Change]) -> bytes:
        if self._selection.everything and self._headers_sent:
            # The store hands the same batch to every watcher of a scope: they share the joined text too.
            key = (self._form_key, self._request.namespace, batch[0].revision, batch[-1].revision, len(batch))
            text = self._lines.batch(key)
            if text is None:
                text = self._lines.keep_batch(key, b"".join([self._whole(change) for change in batch]))
            return text
        if self._selection.everything:
            return b"".join([self._whole(change) for change in batch])
        return b"".join(filter(None, map(self._selected, batch)))

    def _whole(self, change: Change) -> bytes:
        event = "DELETED" if change.deleted else "ADDED" if change.previous is None else "MODIFIED"
        return self._line(event, change)

    def _selected(self, change: Change) -> bytes | None:
        matches = self._selection.matches
        before = change.previous is not None and matches(change.previous)
        now = not change.deleted and matches(change.entry)
        if now:
            return self._line("MODIFIED" if before else "ADDED", change)
        if not before:
            return None
        if change.deleted:
            return self._line("DELETED", change)
        # Left the selection: the client gets the last state it could see, at this revision.
        key = (self._form_key, change.revision, "LEFT")
        known = self._lines.get(key)
        if known is None:
            assert change.previous is not None
            value = with_revision(change.previous.value, change.revision)
            known = self._lines.keep(key, line("DELETED", self._object(value)))
        return known

    def _line(self, event: str, change: Change) -> bytes:
        if self._form.shape == "table" and not self._headers_sent:
            return line(event, self._object(change.entry.value))
        key = (self._form_key, change.revision, event)
        known = self._lines.get(key)
        if known is None:
            known = self._lines.keep(key, line(event, self._object(change.entry.value)))
        return known

    def _object(self, value: bytes) -> bytes:
        form, request = self._form, self._request
        if form.shape == "object":
            return self._view(value)
        if form.shape == "metadata":
            return partial(value, form.meta_version)
        maker = TableMaker(request.kind, request.version, form.meta_version, self._include, self._ctx.clock.now())
        headers, self._headers_sent = not self._headers_sent, True
        return maker.table([value], {}, headers=headers)

    def _bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        kind, version = self._request.kind, self._request.version
        metadata: dict[str, object] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: dict[str, object] = {
            "kind": kind.kind,
            "apiVersion": api_version(kind.group, version.name),
            "metadata": metadata,
        }
        if self._form.shape != "object":
            meta = f"meta.k8s.io/{self._form.meta_version}"
            obj = {"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": metadata}
            if self._form.shape == "table":
                row = {"cells": [], "object": obj}
                obj = {"kind": "Table", "apiVersion": meta, "metadata": {}, "columnDefinitions": None, "rows": [row]}
        return line("BOOKMARK", encode(obj))
