"""Create ResourceClaims from templates: one for each entry of a pod or PodGroup (KEP-5729), named in its status."""

from __future__ import annotations

import copy

import msgspec

from phalanx.base import resources as r
from phalanx.base.client import Resource
from phalanx.base.errors import Conflict, Invalid, NotFound
from phalanx.controllers.runtime.controller import Cache, Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controller_reference, deleting
from phalanx.controllers.runtime.pods import finished

ENTRY = "resource.kubernetes.io/pod-claim-name"  # annotation of a generated claim: the entry it was created for


class TemplateClaimsController(Controller):
    """Creates the claims of pods and of PodGroups. Keys of groups begin with "group:"."""

    name = "resource claim templates"
    workers = 8

    def __init__(self, caches: Caches, events: Events) -> None:
        super().__init__()
        self._client, self._events = caches.client, events
        self._pods = caches.of(r.PODS)
        self._groups = caches.of(r.POD_GROUPS, optional=True)
        self._claims = caches.of(r.RESOURCE_CLAIMS)
        self._templates = caches.of(r.RESOURCE_CLAIM_TEMPLATES)
        self._claims.index("made for", _made_for)
        self._pods.index("template", _templates_used)
        self._groups.index("template", _templates_used)
        self._pods.index("group with claims", _group_of)
        self._pods.on_change(self._pod_changed)
        self._groups.on_change(self._group_changed)
        self._templates.on_change(self._template_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and (new.get("spec") or {}).get("resourceClaims"):
            self.queue.add(key)

    def _group_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None or not (new.get("spec") or {}).get("resourceClaims"):
            return
        self.queue.add(_group_key(key))
        for pod in self._pods.by_index("group with claims", str(key)):
            self.queue.add(Key(key.namespace, pod["metadata"]["name"]))

    def _template_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for pod in self._pods.by_index("template", str(key)):
            self.queue.add(Key(key.namespace, pod["metadata"]["name"]))
        for group in self._groups.by_index("template", str(key)):
            self.queue.add(_group_key(Key(key.namespace, group["metadata"]["name"])))

    async def reconcile(self, key: Key) -> None:
        group = key.name.startswith("group:")
        owner = self._groups.get(key.namespace, key.name[6:]) if group else self._pods.get(*key)
        if owner is None or deleting(owner) or (not group and finished(owner)):
            return
        try:
            await self._create_claims(owner, self._groups if group else self._pods)
        except (Conflict, NotFound):
            self.queue.add(key)

    async def _create_claims(self, owner: Json, cache: Cache) -> None:
        resource = cache.resource
        made: Json = {
            each["name"]: each.get("resourceClaimName")
            for each in (owner.get("status") or {}).get("resourceClaimStatuses") or ()
        }
        wanted = dict(made)
        for entry in owner["spec"].get("resourceClaims") or ():
            template = entry.get("resourceClaimTemplateName")
            if not template or entry["name"] in made:
                continue
            name = await self._claim_name(owner, entry, template, resource)
            if name:
                wanted[entry["name"]] = name
        if wanted != made:
            statuses = [{"name": entry, "resourceClaimName": name} for entry, name in wanted.items()]
            meta = owner["metadata"]
            body = {"metadata": {"uid": meta["uid"]}, "status": {"resourceClaimStatuses": statuses}}
            answer = await self._client.patch(resource, meta["name"], body, meta["namespace"], subresource="status")
            cache.remember(msgspec.json.decode(answer))

    async def _claim_name(self, owner: Json, entry: Json, template: str, resource: Resource) -> str:
        """Return the name of an entry's claim, created if missing; "" if that is impossible now."""
        if resource is r.PODS and (group := self._group_entry(owner, entry)) is not None:
            statuses = (group.get("status") or {}).get("resourceClaimStatuses") or ()
            return next((each.get("resourceClaimName") or "" for each in statuses if each["name"] == entry["name"]), "")
        meta = owner["metadata"]
        for claim in self._claims.by_index("made for", f"{meta['uid']}/{entry['name']}"):
            return str(claim["metadata"]["name"])
        found = self._templates.get(meta["namespace"], template)
        if found is None:
            text = f'resource claim template "{template}" not found'
            self._events.warning(owner, self.name, "FailedResourceClaimCreation", text)
            return ""
        spec = found["spec"]
        about = spec.get("metadata") or {}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "generateName": f"{meta['name']}-{entry['name']}-",
                "namespace": meta["namespace"],
                "labels": dict(about.get("labels") or {}),
                "annotations": {**(about.get("annotations") or {}), ENTRY: entry["name"]},
                "ownerReferences": [controller_reference(owner, resource)],
            },
            "spec": copy.deepcopy(spec.get("spec") or {}),
        }
        try:
            created = await self._claims.create(body)
        except Invalid as problem:
            self._events.warning(owner, self.name, "FailedResourceClaimCreation", problem.message)
            return ""
        return str(created["metadata"]["name"])

    def _group_entry(self, pod: Json, entry: Json) -> Json | None:
        """Return the PodGroup whose claim a pod's entry refers to: name and reference are equal."""
        name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        group = self._groups.get(pod["metadata"]["namespace"], name) if name else None
        for each in (group or {}).get("spec", {}).get("resourceClaims") or ():
            if all(each.get(field) == entry.get(field) for field in ("name", "resourceClaimTemplateName")):
                return group
        return None


def _group_key(key: Key) -> Key:
    return Key(key.namespace, f"group:{key.name}")


def _made_for(claim: Json) -> list[str]:
    """Cache index: owner uid and entry of a generated claim."""
    entry = (claim["metadata"].get("annotations") or {}).get(ENTRY)
    owners = claim["metadata"].get("ownerReferences") or ()
    return [f"{ref['uid']}/{entry}" for ref in owners if ref.get("controller")] if entry else []


def _templates_used(owner: Json) -> list[str]:
    """Cache index: namespace/name of the templates that entries name."""
    namespace = owner["metadata"]["namespace"]
    entries = (owner.get("spec") or {}).get("resourceClaims") or ()
    return [
        f"{namespace}/{each['resourceClaimTemplateName']}" for each in entries if each.get("resourceClaimTemplateName")
    ]


def _group_of(pod: Json) -> list[str]:
    spec = pod.get("spec") or {}
    name = (spec.get("schedulingGroup") or {}).get("podGroupName")
    return [f"{pod['metadata']['namespace']}/{name}"] if name and spec.get("resourceClaims") else []
