"""Resolve how pods refer to ResourceClaims: by name, by template, or by an extended resource of a device class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from phalanx.model.objects import Pod
from phalanx.model.objects.devices import ResourceClaimSpec

if TYPE_CHECKING:
    from phalanx.engine.state.records import PodRecord

ClaimKey = tuple[str, str]  # (namespace, name)

# Kinds of ClaimUse.
OWN = "own"  # used by this pod alone and not allocated: only its requests count
NAMED = "named"  # shared or allocated: the identity of the claim counts
MISSING = "missing"  # the claim does not exist or may not be used
EXTENDED = "extended"  # extended resources of the pod's containers


class ClaimUse(NamedTuple):
    """Describe a claim for a shape. Pods with equal claim keys are interchangeable as far as claims are concerned."""

    kind: str
    key: Hashable
    spec: ResourceClaimSpec = ResourceClaimSpec()  # of OWN and EXTENDED
    claim: ClaimKey = ("", "")  # of NAMED, MISSING and an existing one of EXTENDED; of OWN that of a pod, for messages
    group: str = ""  # the PodGroup that holds the claim for its members (KEP-5729)
    problem: str = ""  # of MISSING
    resources: tuple[tuple[int, float, tuple[str, ...]], ...] = ()  # of EXTENDED: (resource id, amount, its requests)

    @property
    def identity(self) -> Hashable:
        return (self.kind, self.key, self.group)


def claim_names(pod: Pod) -> list[tuple[str, str | None]]:
    """Return (entry, claim name) for every entry of spec.resourceClaims. The name is None if the claim is not created
    yet. Entries for which the status says that no claim is needed are left out, and others of the same claim."""
    entries = pod.spec.resource_claims
    if not entries:
        return []
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    found: list[tuple[str, str | None]] = []
    for entry in entries:
        if entry.resource_claim_name is not None:
            found.append((entry.name, entry.resource_claim_name))
        elif entry.name not in made:
            found.append((entry.name, None))
        elif (name := made[entry.name]) is not None:
            found.append((entry.name, name))
    if len(found) > 1:
        found = list({name or (entry,): (entry, name) for entry, name in reversed(found)}.values())[::-1]
    return found


def claims_of(pod: Pod) -> tuple[ClaimKey, ...]:
    """Return the keys of the claims that a pod names, as far as they are known, without duplicates."""
    if not pod.spec.resource_claims:
        return ()
    namespace = pod.metadata.namespace
    return tuple(dict.fromkeys((namespace, name) for _, name in claim_names(pod) if name is not None))


def claims_renamed(text: str, records: Iterable[PodRecord]) -> str:
    """Return a message about the claims of a shape with the names of those of the pod itself."""
    for record in records:
        if record.pod is None or record.pod is record.shape.pod or not record.claims:
            continue
        for (_, mine), (_, theirs) in zip(claim_names(record.pod), claim_names(record.shape.pod), strict=False):
            text = text.replace(f"claim {record.namespace}/{theirs}:", f"claim {record.namespace}/{mine}:")
        break
    return text
