"""Conversion of custom resources between versions by their definition's webhook.

Only kinds whose definition says `strategy: Webhook` come here. Values of the store go through this before anything
looks at them in another version than they are stored in; everything behind it is as for any other kind. Names and
identity of objects never come from the webhook: of the metadata only labels and annotations are its business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from phalanx.base.errors import InternalError
from phalanx.base.ids import new_uid
from phalanx.local.api.view import api_version, decode, encode
from phalanx.local.api.webhook_calls import CallFailed, WebhookCallers, response_of, target_of
from phalanx.local.store.contract import Change, Entry, StoreProtocol
from phalanx.model.kinds import Json, Kind


class Shared:
    """Encoded text that several watchers need within a short time. Bounded in bytes, oldest out first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._texts: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> bytes | None:
        return self._texts.get(key)

    def keep(self, key: tuple[object, ...], text: bytes) -> bytes:
        """Remember a converted text; the oldest ones go if they are too large together."""
        self._texts[key] = text
        self._size += len(text)
        while self._size > self._limit:
            _, dropped = self._texts.popitem(last=False)
            self._size -= len(dropped)
        return text


TIMEOUT = 30  # seconds, as in kube-apiserver
AT_ONCE = 500  # objects in one question
KEPT_BYTES = 16 << 20
_SPOKEN = ("v1", "v1beta1")


class Conversions:
    def __init__(self, store: StoreProtocol, rng: Any) -> None:
        self._store, self._rng = store, rng
        self._callers = WebhookCallers[str]()  # by kind
        self._kept = Shared(KEPT_BYTES)  # one conversion for several readers and watchers

    def close(self) -> None:
        self._callers.close()

    def forget(self, kind: str) -> None:
        """Close the caller of a kind whose definition is gone."""
        self._callers.forget(kind)

    async def entries(self, kind: Kind, version: str, entries: Sequence[Entry]) -> list[Entry]:
        """Convert the values of entries to a version. Raises ApiProblem."""
        values = await self.values(kind, version, [entry.value for entry in entries])
        return [entry._replace(value=value) for entry, value in zip(entries, values, strict=True)]

    async def changes(self, kind: Kind, version: str, changes: Sequence[Change]) -> list[Change]:
        now = await self.entries(kind, version, [change.entry for change in changes])
        before = iter(await self.entries(kind, version, [c.previous for c in changes if c.previous is not None]))
        return [
            change._replace(entry=entry, previous=next(before) if change.previous is not None else None)
            for change, entry in zip(changes, now, strict=True)
        ]

    async def values(self, kind: Kind, version: str, values: Sequence[bytes]) -> list[bytes]:
        found = list(values)
        asked: list[tuple[int, tuple[object, ...], Json]] = []
        wanted = api_version(kind.group, version)
        for at, value in enumerate(values):
            obj: Json = decode(value)
            if obj.get("apiVersion") == wanted:
                continue
            metadata = obj["metadata"]
            key: tuple[object, ...] = (
                kind.key,
                str(kind.convert),
                wanted,
                metadata.get("uid"),
                metadata.get("resourceVersion"),
            )
            known = self._kept.get(key) if metadata.get("resourceVersion") else None
            if known is None:
                asked.append((at, key, obj))
            else:
                found[at] = known
        for start in range(0, len(asked), AT_ONCE):
            piece = asked[start : start + AT_ONCE]
            answers = await self._call_webhook(kind, wanted, [obj for _, _, obj in piece])
            for (at, key, _), answer in zip(piece, answers, strict=True):
                found[at] = self._kept.keep(key, encode(answer))
        return found

    async def object(self, kind: Kind, version: str, obj: Json) -> Json:
        """Convert an object that is not stored yet to a version. Raises ApiProblem."""
        wanted = api_version(kind.group, version)
        if obj.get("apiVersion") == wanted:
            return obj
        (answer,) = await self._call_webhook(kind, wanted, [obj])
        return answer

    async def _call_webhook(self, kind: Kind, wanted: str, objects: list[Json]) -> list[Json]:
        assert kind.convert is not None
        spoken = next((v for v in _SPOKEN if v in (kind.convert.get("conversionReviewVersions") or _SPOKEN)), "v1")
        review: Json = {
            "kind": "ConversionReview",
            "apiVersion": f"apiextensions.k8s.io/{spoken}",
            "request": {"uid": new_uid(self._rng), "desiredAPIVersion": wanted, "objects": objects},
        }
        try:
            target = target_of(kind.convert.get("clientConfig") or {}, self._store)
            body = await self._callers.of(kind.key, target).call(encode(review), TIMEOUT)
            answers = _converted(response_of(body, review))
            if len(answers) != len(objects):
                raise CallFailed(f"it returned {len(answers)} objects, expected {len(objects)}")
            return [_restored(old, new, wanted) for old, new in zip(objects, answers, strict=True)]
        except CallFailed as problem:
            source = objects[0].get("apiVersion")
            raise InternalError(f"conversion webhook for {source}, Kind={kind.kind} failed: {problem}") from None


def _converted(response: Json) -> list[Any]:
    result: Any = response.get("result") or {}
    if result.get("status") != "Success":
        raise CallFailed(str(result.get("message") or f"response.result.status was '{result.get('status') or ''}'"))
    converted: Any = response.get("convertedObjects") or []
    return list(converted)


def _restored(old: Json, new: Any, wanted: str) -> Json:
    """Check an object that a conversion webhook returned, and restore what it may not change.

    Raises CallFailed that says what is wrong.
    """
    if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
        raise CallFailed("it returned something that is not an object with metadata")
    if new.get("apiVersion") != wanted or new.get("kind") != old.get("kind"):
        raise CallFailed(
            f"it returned {new.get('apiVersion')}, Kind={new.get('kind')}, expected {wanted}, Kind={old.get('kind')}"
        )
    metadata, given = dict(old["metadata"]), new["metadata"]
    for field in ("name", "namespace", "uid"):
        if (given.get(field) or "") != (metadata.get(field) or ""):
            raise CallFailed(f"it changed metadata.{field} of {metadata.get('name')}, which must stay as it is")
    for field in ("labels", "annotations"):
        metadata.pop(field, None)
        if given.get(field):
            metadata[field] = given[field]
    rest = {key: value for key, value in new.items() if key not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": wanted, "kind": old["kind"], "metadata": metadata, **rest}
