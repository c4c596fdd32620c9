"""get and list: consistent reads of the store in whatever form the client asked for.

Nothing here decodes an object unless the form (Table, another version, YAML) or a field selector needs it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from phalanx.base.errors import BadRequest, Expired, Timeout
from phalanx.local.api.context import Context
from phalanx.local.api.index import Selection
from phalanx.local.api.negotiate import Form, negotiate
from phalanx.local.api.options import invalid_options
from phalanx.local.api.problems import not_found
from phalanx.local.api.request import Answer, Request, parse_number
from phalanx.local.api.subresources import scale_of
from phalanx.local.api.table import TableMaker
from phalanx.local.api.view import View, api_version, encode, item_head, object_in, partial, to_yaml, view_of
from phalanx.local.store.contract import Compacted, Entry
from phalanx.model.fieldpath import forbidden, not_supported
from phalanx.model.kinds import FieldError

CHUNK_ITEMS = 128  # per piece of a long list: the loop serves others between pieces
CHUNK_BYTES = 256 << 10
CHUNK_CHECKS = 8192  # comparisons of a selector handled before other tasks of the event loop run
MATCH, NOT_OLDER = "resourceVersionMatch", "NotOlderThan"
MATCHES = ("Exact", NOT_OLDER, "")
TOKEN_SECONDS = 300.0  # a token is good that long: elsewhere, revisions are compacted about as often
FROM_NOW = -1  # revision in a continue token that continues at the latest revision


class Continue(msgspec.Struct, frozen=True):
    """Where the next page starts, and at which revision the first one was read."""

    rv: int
    ns: str
    name: str
    at: float = 0.0  # when the first page was read, seconds; 0: continues at the latest revision

    def token(self) -> str:
        return base64.urlsafe_b64encode(encode(self)).decode().rstrip("=")


def parse_continue(token: str) -> Continue:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return msgspec.json.decode(raw, type=Continue)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest("continue key is not valid: it is not one this server handed out") from None


class Reader:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def handle(self, request: Request) -> Answer:
        form = negotiate(request.accept)
        answer = await self._get(request, form) if request.verb == "get" else await self._list(request, form)
        if form.yaml:
            answer = Answer(answer.code, await to_yaml(answer.whole()), content_type=form.content_type)
        return answer

    def entry(self, request: Request) -> Entry:
        kind = request.kind
        entry = self._ctx.store.get((kind.storage_key, request.namespace, request.name))
        if entry is None:
            raise not_found(kind, request.name)
        return entry

    async def _get(self, request: Request, form: Form) -> Answer:
        """Answer a get in the form that was requested."""
        kind, version = request.kind, request.version
        entry = self.entry(request)
        check_not_newer(parse_revision(request.query.get("resourceVersion", "")), self._ctx.store.revision)
        if request.subresource == "scale":
            return Answer(body=encode(scale_of(kind, object_in(kind, version, entry.value))))
        if kind.convert is not None:
            (entry,) = await self._ctx.conversions.entries(kind, version.name, [entry])
        if form.shape == "table":
            include = request.query.get("includeObject", "")
            maker = TableMaker(kind, version, form.meta_version, include, self._ctx.clock.now())
            return Answer(body=maker.table([entry.value], {"resourceVersion": str(entry.revision)}))
        if form.shape == "metadata":
            return Answer(body=partial(entry.value, form.meta_version))
        return Answer(body=view_of(kind, version)(entry.value))

    async def _list(self, request: Request, form: Form) -> Answer:
        query, kind = request.query, request.kind
        limit = parse_number(query, "limit")
        parse_number(query, "timeoutSeconds")  # without effect here, but refused as in a watch
        token = query.get("continue", "")
        if not token and query.get("resourceVersion") == "0":
            limit = 0  # kube-apiserver answers "any version will do" from its cache, whole; reflectors count on it
        selection = Selection.of(kind, query, request.name)
        entries, revision, after = self._source(request, limit, token, selection)
        began = parse_continue(token).at if token else 0.0
        start = bisect_right(entries, after, key=lambda entry: entry.key[1:]) if after is not None else 0
        rest: Iterator[Entry]
        if not selection.everything:
            # One more than requested shows whether there are more.
            rest = iter(await _chosen(entries, start, selection, limit + 1 if limit else len(entries)))
        else:
            rest = islice(entries, start, None) if start else iter(entries)
        metadata: dict[str, object] = {"resourceVersion": str(revision)}
        if limit:
            page: Sequence[Entry] = list(islice(rest, limit))
            if page and next(rest, None) is not None:
                _, namespace, name = page[-1].key
                metadata["continue"] = Continue(revision, namespace, name, began or self._ctx.clock.now()).token()
                if selection.everything:
                    metadata["remainingItemCount"] = len(entries) - start - limit
        elif start == 0 and selection.everything:
            page = entries
        else:
            page = list(rest)
        if kind.convert is not None and form.shape != "metadata":
            page = await self._ctx.conversions.entries(kind, request.version.name, page)
        return self._render(request, form, page, metadata)

    def _source(
        self, request: Request, limit: int, token: str, selection: Selection
    ) -> tuple[Sequence[Entry], int, tuple[str, str] | None]:
        """Return the entries to list, their revision, and the key to start after."""
        store, resource = self._ctx.store, request.kind.storage_key
        version, match = request.query.get("resourceVersion", ""), request.query.get("resourceVersionMatch", "")
        check_match(version, match, token, request.query.get("sendInitialEvents", ""))
        asked = parse_revision(version)
        if token:
            page = parse_continue(token)
            if version not in ("", "0"):
                raise BadRequest("specifying resource version is not allowed when using continue")
            if page.rv == FROM_NOW:
                return store.list(resource, request.namespace), store.revision, (page.ns, page.name)
            check_not_newer(page.rv, store.revision)
            if self._ctx.clock.now() - page.at > TOKEN_SECONDS:
                raise ExpiredContinue(page)
            try:
                return store.list_at(resource, request.namespace, page.rv), page.rv, (page.ns, page.name)
            except Compacted:
                raise ExpiredContinue(page) from None
        check_not_newer(asked, store.revision)
        exact = match == "Exact" or (asked > 0 and limit > 0 and not match)
        if exact and asked != store.revision:
            try:
                return store.list_at(resource, request.namespace, asked), asked, None
            except Compacted as old:
                raise too_old(asked, old.oldest) from None
        if selection.name and (selection.namespace or request.namespace or not request.kind.namespaced):
            key = (resource, selection.namespace or request.namespace, selection.name)
            found = store.get(key) if not request.namespace or key[1] == request.namespace else None
            return ([found] if found else []), store.revision, None
        namespace = request.namespace or (selection.namespace if request.kind.namespaced else "")
        return store.list(resource, namespace), store.revision, None

    def _render(self, request: Request, form: Form, page: Sequence[Entry], metadata: dict[str, object]) -> Answer:
        kind, version = request.kind, request.version
        if form.shape == "table":
            include = request.query.get("includeObject", "")
            maker = TableMaker(kind, version, form.meta_version, include, self._ctx.clock.now())
            rows = maker.pieces([entry.value for entry in page], metadata, CHUNK_ITEMS)
            return Answer(chunks=rows) if len(page) > CHUNK_ITEMS else Answer(body=b"".join(rows))
        if form.shape == "metadata":
            group_version, list_kind = f"meta.k8s.io/{form.meta_version}", "PartialObjectMetadataList"
            view: View = lambda value: partial(value, form.meta_version)  # noqa: E731
            cut = b""
        else:
            group_version, list_kind = api_version(kind.group, version.name), f"{kind.kind}List"
            view, cut = view_of(kind, version), item_head(kind, version)
        head = b'{"kind":"%s","apiVersion":"%s","metadata":%s,"items":[' % (
            list_kind.encode(),
            group_version.encode(),
            encode(metadata),
        )
        pieces = _pieces(head, page, view, cut)
        if len(page) <= CHUNK_ITEMS and sum(len(entry.value) for entry in page) <= 4 * CHUNK_BYTES:
            return Answer(body=b"".join(pieces))
        return Answer(chunks=pieces)


async def _chosen(entries: Sequence[Entry], start: int, selection: Selection, most: int) -> list[Entry]:
    """Return the entries that match, at most `most`.

    Lists never change, so other requests may be served in between.
    """
    chosen: list[Entry] = []
    step = max(1, CHUNK_CHECKS // selection.cost)
    for begin in range(start, len(entries), step):
        if begin > start:
            await asyncio.sleep(0)
        chosen.extend(filter(selection.matches, islice(entries, begin, begin + step)))
        if len(chosen) >= most:
            break
    return chosen[:most]


def pieces_of(entries: Sequence[Entry], items: int) -> Iterator[Sequence[Entry]]:
    """Split the entries into runs of `items`, fewer if they are large.

    What is on its way to one client stays small.
    """
    start = size = 0
    for at, entry in enumerate(entries):
        size += len(entry.value)
        if size >= CHUNK_BYTES or at - start + 1 == items:
            yield entries[start : at + 1]
            start, size = at + 1, 0
    if start < len(entries):
        yield entries[start:]


def _pieces(head: bytes, page: Sequence[Entry], view: Callable[[bytes], bytes], cut: bytes) -> Iterator[bytes]:
    """Yield the encoded list piece by piece; `cut`: the start of an object that is left out."""
    for piece in pieces_of(page, CHUNK_ITEMS):
        yield _joined(head, [view(entry.value) for entry in piece], cut)
        head = b","
    yield (head if not page else b"") + b"]}\n"


def _joined(head: bytes, values: list[bytes], cut: bytes) -> bytes:
    """Join the head and the items of a list in one step.

    Copying the items, or the whole to put the head before it, takes seven times as long.
    """
    if cut and all(value.startswith(cut) for value in values):
        start = len(cut)
        first = head + b"{" + values[0][start:]
        return b",{".join([first, *(memoryview(value)[start:] for value in islice(values, 1, None))])
    if cut:
        values = [b"{" + value[len(cut) :] if value.startswith(cut) else value for value in values]
    values[0] = head + values[0]
    return b",".join(values)


def parse_revision(text: str) -> int:
    """Parse a resourceVersion; 0 if it is unset or "0". Raises BadRequest."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise BadRequest(f'invalid resource version: "{text}" is not a number')
    return int(text)


def check_match(version: str, match: str, token: str, initial: str) -> None:
    """Check that resourceVersionMatch fits the other options of a list.

    sendInitialEvents is for watches only.
    """
    errors: list[FieldError] = []
    if match:
        if not version:
            errors.append(forbidden(MATCH, f"{MATCH} is forbidden unless resourceVersion is provided"))
        if token:
            errors.append(forbidden(MATCH, f"{MATCH} is forbidden when continue is provided"))
        if match not in MATCHES:
            errors.append(not_supported(MATCH, match, MATCHES))
        if match == "Exact" and version == "0":
            errors.append(forbidden(MATCH, f'{MATCH} "exact" is forbidden for resourceVersion "0"'))
    if initial:
        errors.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if errors:
        raise invalid_options("ListOptions", errors)


def check_not_newer(asked: int, current: int) -> None:
    if asked > current:
        raise Timeout(
            f"Too large resource version: {asked}, current: {current}",
            causes=[{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            retry_after=1,
        )


def too_old(asked: int, oldest: int) -> Expired:
    return Expired(f"too old resource version: {asked} ({oldest})")


class ExpiredContinue(Expired):
    """Return a 410 with a continue token for the latest revision."""

    def __init__(self, page: Continue) -> None:
        super().__init__(
            "the continue parameter is too old: the revision it was made at is no longer kept. Start the list again "
            "without it, or go on with the token of this answer; the rest may then not fit what was read before."
        )
        self._next = Continue(FROM_NOW, page.ns, page.name).token()

    def status(self) -> dict[str, object]:
        return super().status() | {"metadata": {"continue": self._next}}
