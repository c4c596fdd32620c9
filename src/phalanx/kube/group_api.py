"""Use the scheduling kinds in the API group that serves them: native, or as custom resources.

Kubernetes serves Workload and PodGroup as scheduling.k8s.io/v1beta1 since 1.37, behind a gate. Elsewhere they are
custom resources. kube-apiserver answers every path below /apis/<built-in group> itself, and scheduling.k8s.io exists
everywhere (PriorityClass), so custom resources in it would never be reached. Therefore Phalanx has the same kinds,
versions and fields in scheduling.phalanx.dev. With this client all other code uses scheduling.k8s.io.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec

from phalanx.base.client import Body, Call, Client, Resource, WatchEvent
from phalanx.base.errors import Forbidden, NotFound
from phalanx.base.resources import POD_GROUPS
from phalanx.base.well_known import PHALANX_API, SCHEDULING_API
from phalanx.model.kinds import Json

log = logging.getLogger(__name__)

KINDS = {"workloads": "Workload", "podgroups": "PodGroup", "compositepodgroups": "CompositePodGroup"}


class GroupApi(Client):
    """Choose the group at the first list or watch of a scheduling kind, and again while neither group is served."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.group = ""  # "": unknown, or not served

    @property
    def native(self) -> bool:
        return self.group == SCHEDULING_API

    async def decide(self) -> str:
        """Find which API group serves the kinds and return it; "" if none does yet.

        A user of one namespace may not list them in all; then discovery says what is served.
        """
        for group in (SCHEDULING_API, PHALANX_API):
            try:
                await self._client.list(replace(POD_GROUPS, group=group), limit=1)
            except NotFound:
                continue
            except Forbidden:
                if not await self._client.served(replace(POD_GROUPS, group=group)):
                    continue
            if group != self.group:  # several informers ask at the same time
                self.group = group
                log.info("scheduling objects are served by %s", group)
            break
        return self.group

    def _resource(self, resource: Resource) -> Resource:
        if self.group == PHALANX_API and resource.group == SCHEDULING_API and resource.plural in KINDS:
            return replace(resource, group=PHALANX_API)
        return resource

    def _body(self, body: Body) -> Body:
        """Replace the native group by the custom one if that is served.

        It is replaced in the object, in its owner references, and in the objects that an event refers to.
        """
        if isinstance(body, bytes):
            if SCHEDULING_API.encode() not in body:
                return body
            body = msgspec.json.decode(body)
        assert isinstance(body, dict)
        found = dict(body)
        _rename(found)
        references = (found.get("metadata") or {}).get("ownerReferences")
        if references:
            found["metadata"] = {**found["metadata"], "ownerReferences": copy.deepcopy(references)}
            for reference in found["metadata"]["ownerReferences"]:
                _rename(reference)
        for field in ("regarding", "related"):
            if isinstance(found.get(field), dict):
                found[field] = dict(found[field])
                _rename(found[field])
        return found

    def _translated(self, call: Call) -> Call:
        if self.group != PHALANX_API:
            return call
        body = self._body(call.body) if call.verb in ("create", "update") else call.body
        return msgspec.structs.replace(call, resource=self._resource(call.resource), body=body)

    def _undecided(self, resource: Resource) -> bool:
        return not self.group and resource.group == SCHEDULING_API and resource.plural in KINDS

    async def call(self, call: Call) -> bytes:
        if call.verb == "list" and self._undecided(call.resource):
            await self.decide()
        return await self._client.call(self._translated(call))

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        if self._undecided(call.resource):
            await self.decide()
        async for event in self._client.events(self._translated(call)):
            yield event

    async def served(self, resource: Resource) -> bool:
        custom = replace(resource, group=PHALANX_API)
        if self._undecided(resource) and await self._client.served(custom):
            return True
        return await self._client.served(self._resource(resource))


def _rename(reference: Json) -> None:
    group, _, version = str(reference.get("apiVersion") or "").partition("/")
    if group == SCHEDULING_API and reference.get("kind") in KINDS.values():
        reference["apiVersion"] = f"{PHALANX_API}/{version}"
