"""ControllerRevisions: the history of a template, named by its hash and numbered in the order of use.

`kubectl rollout history` and `undo` read them. A template that is used again gets its old revision with a new number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from phalanx.base.client import Resource
from phalanx.base.errors import AlreadyExists
from phalanx.base.ids import hash_of
from phalanx.controllers.runtime.claiming import Claims
from phalanx.controllers.runtime.controller import Cache, Json
from phalanx.controllers.runtime.ownership import controlled_by, controller_reference, deleting, index_by_controller

HASH_LABEL = "controller-revision-hash"


class Revisions:
    def __init__(
        self,
        cache: Cache,
        owner: Resource,
        *,
        label: str = HASH_LABEL,
        numbered: bool = False,
        digest: Callable[[Json, int], str] = hash_of,
        normal: Callable[[Json], Json] = lambda data: data,
    ) -> None:
        """Configure revisions. numbered: names end with the number of the revision at its creation.

        digest: hashes data, given a number of collisions. normal: converts stored data to the present form.
        """
        self._digest, self._normal = digest, normal
        self.cache, self._owner = cache, owner
        self._label, self._numbered = label, numbered
        cache.index("controller", index_by_controller)
        self._claims = Claims(cache, owner)

    def of(self, owner: Json) -> list[Json]:
        """Return revisions, oldest first."""
        found = [rev for rev in self.cache.by_index("controller", owner["metadata"]["uid"]) if not deleting(rev)]
        return sorted(found, key=lambda rev: (int(rev["revision"]), rev["metadata"]["name"]))

    async def present(self, owner: Json, data: Json, labels: dict[str, str], used: str = "") -> Json:
        """Return the revision of `data`: found, renumbered if used again, or created.

        used: label of the revision that runs. If there is none with it, it is taken for that of `data`: a controller
        that stored no revisions wrote the label.

        None is created for a terminating owner: the garbage collector would delete it repeatedly. Revisions left by an
        earlier owner of the name (`--cascade=orphan`) are adopted: their pods are current.
        """
        prefix = f"{owner['metadata']['name']}-"
        selector = owner["spec"].get("selector") or {"matchLabels": labels}  # a kind without one labels revisions
        await self._claims.of(
            {**owner, "spec": {"selector": selector}},
            lambda revision: revision["metadata"]["name"].startswith(prefix) and _alike(revision, data),
        )
        known = self.of(owner)
        highest = int(known[-1]["revision"]) if known else 0
        if used and not any(self._label_of(rev) == used for rev in known):
            return await self._create(owner, data, {**labels, self._label: used}, highest + 1)
        found = next((rev for rev in reversed(known) if self._is_of(rev, data)), None)
        if found is None:
            return await self._create(owner, data, labels, highest + 1)
        if int(found["revision"]) == highest:
            return found
        version = found["metadata"]["resourceVersion"]
        return await self.cache.patch(found, {"metadata": {"resourceVersion": version}, "revision": highest + 1})

    def _label_of(self, revision: Json) -> str:
        return str((revision["metadata"].get("labels") or {}).get(self._label, ""))

    def _is_of(self, revision: Json, data: Json) -> bool:
        stored = revision.get("data")
        return bool(stored == data or (stored and self._normal(stored) == data))

    async def _create(self, owner: Json, data: Json, labels: dict[str, str], number: int) -> Json:
        """Create the ControllerRevision; after a collision of hashes, under another name."""
        meta = owner["metadata"]
        for collisions in itertools.count():
            digest = self._digest(data, collisions)
            ending = f"{digest}-{number}" if self._numbered else digest
            name = f"{meta['name'][: 253 - len(ending) - 1]}-{ending}"
            body = {
                "apiVersion": self.cache.resource.api_version,
                "kind": self.cache.resource.kind,
                "metadata": {
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": {self._label: digest, **labels},
                    "ownerReferences": [controller_reference(owner, self._owner)],
                },
                "data": _sorted(data),
                "revision": number,
            }
            if deleting(owner):
                return body
            try:
                return await self.cache.create(body)
            except AlreadyExists:
                found: Json = msgspec.json.decode(
                    await self.cache.client.get(self.cache.resource, name, meta["namespace"])
                )
                if controlled_by(found, meta["uid"]) and self._is_of(found, data) and not deleting(found):
                    self.cache.remember(found)
                    return found
        raise AssertionError("unreachable")

    async def trim(self, owner: Json, live: set[str], limit: int) -> None:
        """Delete the oldest revisions beyond `limit` that no pod uses; `live` are names."""
        idle = [rev for rev in self.of(owner) if rev["metadata"]["name"] not in live]
        for revision in idle[: max(0, len(idle) - limit)]:
            await self.cache.delete(revision)


def _alike(revision: Json, data: Json) -> bool:
    """Return True if a revision is of a set of the same kind: its data has a field in common."""
    stored = (revision.get("data") or {}).get("spec") or {}
    return any(field in stored for field in data["spec"])


def template_data(template: Json) -> Json:
    """Return the patch form in which sets store a template, so that applying it restores the template."""
    return {"spec": {"template": {**template, "$patch": "replace"}}}


def template_of(revision: Json) -> Json:
    template = revision["data"]["spec"]["template"]
    return {key: value for key, value in template.items() if key != "$patch"}


def digest_of(revision: Json) -> str:
    return str((revision["metadata"].get("labels") or {}).get(HASH_LABEL, ""))


def _sorted(value: Any) -> Any:
    """Sort keys at every level, so that a text diff of two revisions shows only real differences."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
