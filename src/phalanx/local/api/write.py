"""All writes of objects: create, update, patch, delete and the subresources.

Order of a write, as clients of kube-apiserver expect it: decode, convert to the storage version, default, record who
owns which field, admission, prepare, validate, store. Nothing between reading the latest state and handing the new
one to the store waits, so a write without preconditions never loses a race.
"""

from __future__ import annotations

from phalanx.base.errors import ApiProblem, BadRequest, MethodNotAllowed
from phalanx.local.api.change import HOOKED, Changes
from phalanx.local.api.context import Context
from phalanx.local.api.delete import Deletes
from phalanx.local.api.patch import Patches
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.reviews import review
from phalanx.local.api.subresources import Subresources

_TRIES = 3


class Writer:
    def __init__(self, ctx: Context) -> None:
        self._changes = Changes(ctx)
        self._patches = Patches(self._changes)
        self._deletes = Deletes(self._changes)
        self._subresources = Subresources(self._changes, self._deletes, self._patches)

    @property
    def changes(self) -> Changes:
        """Return the write pipeline, for duties inside the server (bootstrap, garbage collection)."""
        return self._changes

    async def handle(self, request: Request) -> Answer:
        """Answer a write. Every failure is an ApiProblem."""
        for _ in range(_TRIES):
            try:
                return await self._handle(request)
            except RecursionError:
                raise BadRequest("the object is nested too deeply") from None
            except ApiProblem:
                # Perhaps refused for a state that is not durable yet: the answer is sent when that state can be read,
                # and not if its write fails.
                if await self._changes.store.settled() or request.verb == "deletecollection":
                    raise
        return await self._handle(request)

    async def _handle(self, request: Request) -> Answer:
        """Answer a write by its verb and subresource."""
        if not request.kind.stored and not request.subresource:
            if request.kind.kind == "Binding":
                return await self._subresources.bind(request)
            return review(request, self._changes)
        if request.subresource not in HOOKED:
            return await self._subresources.handle(request)
        match request.verb:
            case "create":
                return await self._changes.create(request)
            case "update":
                return await self._changes.update(request)
            case "patch":
                return await self._patches.patch(request)
            case "delete":
                return await self._deletes.delete(request)
            case "deletecollection":
                return await self._deletes.delete_collection(request)
        raise MethodNotAllowed(f"the server does not allow {request.verb} on the requested resource")
