"""Manage claims of a StatefulSet's pods: created from templates before the pod, retained or deleted by policy."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress

from phalanx.base import resources as r
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.controllers.runtime.controller import Cache, Json
from phalanx.controllers.runtime.ownership import controller_reference


class Volumes:
    def __init__(self, claims: Cache) -> None:
        self._claims = claims

    async def ensure(self, owner: Json, ordinal: int, pod: Json) -> None:
        """Create every missing claim of `pod` and mount them."""
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            label, claim = template["metadata"]["name"], _claim_name(template, owner, ordinal)
            volumes = [v for v in pod["spec"].get("volumes") or () if v["name"] != label]
            pod["spec"]["volumes"] = [*volumes, {"name": label, "persistentVolumeClaim": {"claimName": claim}}]
            known = self._claims.get(owner["metadata"]["namespace"], claim)
            if known is not None:
                await self._keep(owner, known)
        await self.restore(owner, ordinal)

    async def restore(self, owner: Json, ordinal: int) -> None:
        """Create missing claims of a pod, also one deleted while the pod is pending."""
        namespace = owner["metadata"]["namespace"]
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            claim = _claim_name(template, owner, ordinal)
            if self._claims.get(namespace, claim) is not None:
                continue
            try:
                await self._claims.client.create(self._claims.resource, self._new(owner, template, claim), namespace)
            except AlreadyExists:
                continue

    def _new(self, owner: Json, template: Json, name: str) -> Json:
        meta = template["metadata"]
        labels = (owner["spec"]["selector"].get("matchLabels") or {}) | (meta.get("labels") or {})
        metadata: Json = {"name": name, "namespace": owner["metadata"]["namespace"], "labels": labels}
        if meta.get("annotations"):
            metadata["annotations"] = dict(meta["annotations"])
        if _policy(owner, "whenDeleted") == "Delete":
            metadata["ownerReferences"] = [controller_reference(owner, r.STATEFUL_SETS)]
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": copy.deepcopy(template["spec"]),
        }

    async def delete_with_pod(self, owner: Json, pod: Json) -> None:
        """Make a pod removed by scale-down the owner of its claims, if the retention policy is Delete."""
        if _policy(owner, "whenScaled") != "Delete":
            return
        meta = pod["metadata"]
        ordinal = int(meta["name"].rpartition("-")[2])
        reference = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            claim = self._claims.get(meta["namespace"], _claim_name(template, owner, ordinal))
            if claim is not None and not _owned_by_other(claim, owner):
                await self._set_owners(claim, [reference])

    async def update_owners(self, owner: Json, ordinals: Iterable[int]) -> None:
        """Update owner references of these pods' claims to the retention policy, which may have changed."""
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            for ordinal in ordinals:
                claim = self._claims.get(owner["metadata"]["namespace"], _claim_name(template, owner, ordinal))
                if claim is None or _owned_by_other(claim, owner):
                    continue
                references = claim["metadata"].get("ownerReferences") or []
                others = [ref for ref in references if ref.get("uid") != owner["metadata"]["uid"]]
                if not any(ref.get("kind") == "Pod" for ref in others):  # these are deleted with their pod
                    mine = (
                        [controller_reference(owner, r.STATEFUL_SETS)]
                        if _policy(owner, "whenDeleted") == "Delete"
                        else []
                    )
                    await self._set_owners(claim, others + mine)

    async def _keep(self, owner: Json, claim: Json) -> None:
        """Remove the pod's owner reference from a claim that is used again before its pod was deleted."""
        references = claim["metadata"].get("ownerReferences") or []
        if any(ref.get("kind") == "Pod" for ref in references):
            wanted = [controller_reference(owner, r.STATEFUL_SETS)] if _policy(owner, "whenDeleted") == "Delete" else []
            await self._set_owners(claim, wanted)

    async def _set_owners(self, claim: Json, references: list[Json]) -> None:
        meta = claim["metadata"]
        if (meta.get("ownerReferences") or []) == references:
            return
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "ownerReferences": references or None}}
        with suppress(NotFound):
            await self._claims.patch(claim, patch)


def _claim_name(template: Json, owner: Json, ordinal: int | str) -> str:
    return f"{template['metadata']['name']}-{owner['metadata']['name']}-{ordinal}"


def is_claim_of(owner: Json, name: str) -> bool:
    """Return True if a claim's name is that of a claim of the set."""
    templates = owner["spec"].get("volumeClaimTemplates") or ()
    return any(name.startswith(_claim_name(template, owner, "")) for template in templates)


def _owned_by_other(claim: Json, owner: Json) -> bool:
    """Return True if another controller owns it and decides whether it is retained."""
    mine = owner["metadata"]["uid"]
    references = claim["metadata"].get("ownerReferences") or ()
    return any(ref.get("controller") and ref.get("kind") != "Pod" and ref.get("uid") != mine for ref in references)


def _policy(owner: Json, when: str) -> str:
    return str((owner["spec"].get("persistentVolumeClaimRetentionPolicy") or {}).get(when, "Retain"))
