"""ResourceClaims of pods that a query moves: released as the claim controller would, and created again for the new pod.

Changes the engine permanently, so it must run in the forked process of a query (`serve.queries.fork`).
"""

from __future__ import annotations

import msgspec

from phalanx.engine.engine import Engine
from phalanx.engine.events import Gone, ResourceClaimChanged
from phalanx.engine.state.claims import claims_of
from phalanx.model.objects import Pod, ResourceClaim
from phalanx.model.objects.devices import ResourceClaimStatus


def with_claims_moved(engine: Engine, old: Pod, new: Pod) -> Pod:
    """Release the claims of a pod that is gone; return its replacement with copies of the claims that were its own."""
    uid = old.metadata.uid
    copies: dict[str | None, str] = {}
    for namespace, name in (*claims_of(old), engine.indexes.devices.made_for(uid)):
        claim = engine.objects.get(ResourceClaim, namespace, name)
        if claim is None:
            continue
        if not any(owner.uid == uid for owner in claim.metadata.owner_references):
            _release(engine, claim, uid)
            continue
        engine.apply(Gone("ResourceClaim", name, namespace, claim.metadata.uid))
        if name in {each.resource_claim_name for each in old.status.resource_claim_statuses or ()}:
            copy = _copy(claim, new)
            engine.apply(ResourceClaimChanged(copy))
            copies[name] = copy.metadata.name
    statuses = [
        msgspec.structs.replace(
            each, resource_claim_name=copies.get(each.resource_claim_name, each.resource_claim_name)
        )
        for each in old.status.resource_claim_statuses or ()
    ]
    status = msgspec.structs.replace(new.status, resource_claim_statuses=statuses or None)
    return msgspec.structs.replace(new, status=status)


def _release(engine: Engine, claim: ResourceClaim, uid: str) -> None:
    """Remove a consumer; a claim without consumers loses its devices."""
    left = [each for each in claim.status.reserved_for if each.uid != uid]
    status = msgspec.structs.replace(claim.status, reserved_for=left) if left else ResourceClaimStatus()
    engine.apply(ResourceClaimChanged(msgspec.structs.replace(claim, status=status)))


def _copy(claim: ResourceClaim, pod: Pod) -> ResourceClaim:
    """Return what the template of a claim makes for another pod."""
    meta = claim.metadata
    owners = [
        msgspec.structs.replace(owner, name=pod.metadata.name, uid=pod.metadata.uid) for owner in meta.owner_references
    ]
    name = f"{meta.name}-again"[-253:]
    made = msgspec.structs.replace(meta, name=name, uid=f"{meta.uid}-again", finalizers=[], owner_references=owners)
    return msgspec.structs.replace(claim, metadata=made, status=ResourceClaimStatus())
