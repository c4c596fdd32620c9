"""watch: the changes of a resource as a stream of lines, encoded once for all clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from phalanx.base.clock import Clock
from phalanx.base.errors import ApiProblem, Expired
from phalanx.base.well_known import PROTOBUF
from phalanx.local.api.context import Context
from phalanx.local.api.conversion import Shared
from phalanx.local.api.index import Selection
from phalanx.local.api.negotiate import Form, negotiate
from phalanx.local.api.options import invalid_options
from phalanx.local.api.protobuf_answers import frame, frames
from phalanx.local.api.read import MATCH, NOT_OLDER, check_not_newer, parse_revision, pieces_of, too_old
from phalanx.local.api.request import Answer, Request, parse_number, query_flag
from phalanx.local.api.table import TableMaker, check_include
from phalanx.local.api.view import api_version, encode, partial, revision_of, same, view_of, with_revision
from phalanx.local.store.contract import Change, Compacted, Entry, SlowWatcher, Watcher
from phalanx.local.store.watchers import BATCH_CHANGES
from phalanx.model.fieldpath import forbidden, not_supported
from phalanx.model.kinds import FieldError

BOOKMARK_EVERY = 30.0  # seconds; informers resume from the last bookmark
LONGEST = 3600.0  # seconds a watch may last when the client does not say
SHARED_BYTES = 16 << 20  # encoded events kept for watchers that come to the same change a little later
INITIAL_BATCH = 256
PIECE_BYTES = 64 << 10  # of the initial state sent at once
_FRAMES = f"{PROTOBUF};stream=watch"


class Options(msgspec.Struct):
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
    errors: list[FieldError] = []
    if initial and match != NOT_OLDER:
        errors.append(forbidden(MATCH, f"sendInitialEvents requires setting {MATCH} to {NOT_OLDER}"))
    if match:
        if not initial:
            errors.append(forbidden(MATCH, f"{MATCH} is forbidden for watch unless sendInitialEvents is provided"))
        if match != NOT_OLDER:
            errors.append(not_supported(MATCH, match, (NOT_OLDER,)))
        if query.get("continue"):
            errors.append(forbidden(MATCH, f"{MATCH} is forbidden when continue is provided"))
    if errors:
        raise invalid_options("ListOptions", errors)
    check_not_newer(asked, current)
    send_initial = query_flag(query, "sendInitialEvents")
    if send_initial or (not initial and asked == 0):
        since = None
    else:
        since = asked if asked else current
    parse_number(query, "limit")  # without effect here, but refused as in a list
    seconds = float(parse_number(query, "timeoutSeconds")) or LONGEST
    return Options(since, bookmarks, send_initial and bookmarks, min(seconds, LONGEST))


_EVENTS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
_HEADS = {event: b'{"type":"%s","object":' % event.encode() for event in _EVENTS}


def line(event: str, obj: bytes) -> bytes:
    return b"%b%b}\n" % (_HEADS[event], obj)


def error_line(problem: ApiProblem) -> bytes:
    return line("ERROR", encode(problem.status()))


class Present(msgspec.Struct):
    """The state that comes before the changes."""

    entries: Sequence[Entry]


class WatchMark(msgspec.Struct):
    """All changes up to this revision were sent."""

    revision: int
    initial_end: bool = False


Step = Present | WatchMark | Sequence[Change]
Steps = AsyncGenerator[Step, None]


class WatchHandler:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lines = Shared(SHARED_BYTES)
        self._batches = Shared(SHARED_BYTES)

    async def handle(self, request: Request) -> Answer:
        form = negotiate(request.accept)
        follow = _Follow(self._ctx, self._lines, self._batches, request, form)
        try:
            steps = self._steps(request, follow.options)
        except Expired as problem:
            # Kubernetes answers 200 with an ERROR event here; clients look at the event.
            if form.protobuf:
                return Answer(stream=_only(frame(request, "ERROR", encode(problem.status()))), content_type=_FRAMES)
            return Answer(stream=_only(error_line(problem)))
        if form.protobuf:
            return Answer(stream=frames(request, follow.pairs(steps)), content_type=_FRAMES)
        return Answer(stream=follow.lines(steps))

    def events(self, request: Request) -> AsyncGenerator[list[tuple[str, bytes]], None]:
        """Watch for a part of this process: yield batches of (type, encoded object). Raises Expired."""
        follow = _Follow(self._ctx, self._lines, self._batches, request, Form())
        return follow.pairs(self._steps(request, follow.options))

    def _steps(self, request: Request, options: Options) -> Steps:
        store, resource, namespace = self._ctx.store, request.kind.storage_key, request.namespace
        present: Sequence[Entry] = ()
        since = options.since
        if since is None:
            # No await between the two: nothing can change in between.
            present, since = store.list(resource, namespace), store.revision
        try:
            watcher = store.watch(resource, namespace, since)
        except Compacted as old:
            raise too_old(since, old.oldest) from None
        return _follow_store(watcher, present, since, options, self._ctx.clock)


async def _only(text: bytes) -> AsyncGenerator[bytes, None]:
    yield text


async def _follow_store(
    watcher: Watcher, present: Sequence[Entry], since: int, options: Options, clock: Clock
) -> Steps:
    try:
        for piece in pieces_of(present, INITIAL_BATCH):
            yield Present(piece)
        present = ()
        if options.initial_end:
            yield WatchMark(since, True)
        end = clock.monotonic() + options.seconds
        announced = since
        while (left := end - clock.monotonic()) > 0:
            try:
                batch = await watcher.within(min(left, BOOKMARK_EVERY) if options.bookmarks else left)
            except (StopAsyncIteration, SlowWatcher):
                return
            if not batch:
                if options.bookmarks and watcher.progress > announced:
                    announced = watcher.progress
                    yield WatchMark(announced)
                continue
            announced = batch[-1].revision
            yield batch
            if len(batch) >= BATCH_CHANGES:
                await asyncio.sleep(0)  # more changes follow; if none of them matches, other clients would wait
    finally:
        watcher.close()


class _Follow:
    """One client's watch: turns steps into what the client asked for."""

    def __init__(self, ctx: Context, lines: Shared, batches: Shared, request: Request, form: Form) -> None:
        self._ctx, self._lines, self._batches, self._request, self._form = ctx, lines, batches, request, form
        self.options = options_of(request, ctx.store.revision)
        self._selection = Selection.of(request.kind, request.query, request.name)
        kind, version = request.kind, request.version
        self._view = view_of(kind, version)
        self._include = request.query.get("includeObject", "") if form.shape == "table" else ""
        self._form_key = (kind.key, version.name, form.shape, form.meta_version, self._include)
        self._headers_sent = form.shape != "table"
        if form.shape == "table":
            check_include(self._include)  # reported at once, not in the middle of the stream

    async def pairs(self, steps: Steps) -> AsyncGenerator[list[tuple[str, bytes]], None]:
        async with aclosing(steps):
            async for step in steps:
                if self._request.version.name != self._request.kind.storage_version:  # see Api.present
                    step = await self._converted(step)
                if isinstance(step, WatchMark):
                    found = [("BOOKMARK", self._bookmark(step))]
                else:
                    found = [(event, self._object(value)) for event, value in self._seen(step)]
                if found:
                    yield found

    async def lines(self, steps: Steps) -> AsyncGenerator[bytes, None]:
        async with aclosing(steps):
            async for step in steps:
                try:
                    step = await self._converted(step)
                except ApiProblem as problem:  # of a conversion webhook: nothing that comes after it could be shown
                    yield error_line(problem)
                    return
                if isinstance(step, WatchMark):
                    text = line("BOOKMARK", self._bookmark(step))
                elif isinstance(step, Present):
                    for text in self._present(step):
                        yield text
                    continue
                else:
                    text = self._batch(step)
                if text:
                    yield text

    def _present(self, step: Present) -> Iterator[bytes]:
        """Yield the lines of the initial state in pieces of limited size.

        A client that reads slowly holds one piece. Large objects are not copied: many clients may wait with the same.
        """
        lines: list[bytes] = []
        size = 0
        for event, value in self._seen(step):
            shown = self._object(value)
            size += len(shown)
            if len(shown) > PIECE_BYTES:
                yield b"".join([*lines, _HEADS[event]])
                yield shown
                lines, size = [b"}\n"], 0
                continue
            lines.append(line(event, shown))
            if size > PIECE_BYTES:
                yield b"".join(lines)
                lines, size = [], 0
        if lines:
            yield b"".join(lines)

    async def _converted(self, step: Step) -> Step:
        kind, version = self._request.kind, self._request.version.name
        if kind.convert is None or isinstance(step, WatchMark) or self._form.shape == "metadata":
            return step
        if isinstance(step, Present):
            return replace(step, entries=await self._ctx.conversions.entries(kind, version, step.entries))
        return await self._ctx.conversions.changes(kind, version, step)

    def _seen(self, step: Present | Sequence[Change]) -> Iterator[tuple[str, bytes]]:
        """Return the events and stored values that this client may see."""
        if isinstance(step, Present):
            return (("ADDED", entry.value) for entry in step.entries if self._selection.matches(entry))
        return (pair for pair in map(self._change, step) if pair[0])

    def _batch(self, batch: Sequence[Change]) -> bytes:
        if not (self._selection.everything and self._headers_sent):
            return b"".join([self._line(change) for change in batch])
        # The store hands the same batch to every watcher of a scope: they share the joined text.
        key = (self._form_key, self._request.namespace, batch[0].revision, batch[-1].revision, len(batch))
        text = self._batches.get(key)
        if text is None:
            text = self._batches.keep(key, b"".join([self._line(change) for change in batch]))
        return text

    def _change(self, change: Change) -> tuple[str, bytes]:
        """Return the event that a change is for this client (empty: none) and the stored value to show."""
        if self._selection.everything:
            event = "DELETED" if change.deleted else "ADDED" if change.previous is None else "MODIFIED"
            return event, change.entry.value
        matches = self._selection.matches
        before = change.previous is not None and matches(change.previous)
        now = not change.deleted and matches(change.entry)
        if now:
            return ("MODIFIED" if before else "ADDED"), change.entry.value
        if not before:
            return "", b""
        if change.deleted:
            return "DELETED", change.entry.value
        # Left the selection: the client gets the last state it could see, at this revision.
        assert change.previous is not None
        return "DELETED", with_revision(change.previous.value, change.revision)

    def _line(self, change: Change) -> bytes:
        event, value = self._change(change)
        if not event:
            return b""
        if self._form.shape == "object" and self._view is same:
            return line(event, value)  # nothing to encode: putting it together costs less than finding it
        if not self._headers_sent:
            return line(event, self._object(value))
        key = (self._form_key, change.revision, event)  # one encoding per change, shared by all watchers
        known = self._lines.get(key)
        if known is None:
            known = self._lines.keep(key, line(event, self._object(value)))
        return known

    def _object(self, value: bytes) -> bytes:
        form, request = self._form, self._request
        if form.shape == "object":
            return self._view(value)
        if form.shape == "metadata":
            return partial(value, form.meta_version)
        maker = TableMaker(request.kind, request.version, form.meta_version, self._include, self._ctx.clock.now())
        headers, self._headers_sent = not self._headers_sent, True
        return maker.table([value], {"resourceVersion": revision_of(value)}, headers=headers)

    def _bookmark(self, mark: WatchMark) -> bytes:
        kind, version = self._request.kind, self._request.version
        metadata: dict[str, object] = {"resourceVersion": str(mark.revision), "creationTimestamp": None}
        if mark.initial_end:
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
                obj = {
                    "kind": "Table",
                    "apiVersion": meta,
                    "metadata": {"resourceVersion": str(mark.revision)},
                    "columnDefinitions": None,
                    "rows": [row],
                }
        return encode(obj)
