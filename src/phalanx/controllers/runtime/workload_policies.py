"""Read what WorkloadPolicies say about a workload that a controller rolls out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.controllers.runtime.controller import Json
from phalanx.model.groups.policy import parse_spec
from phalanx.model.objects.policy import WorkloadPolicySpec


def unavailable_replicas(policies: Iterable[Json], owner: Json) -> int | None:
    """Return `disruption.maxUnavailableReplicas` of the oldest policy for this object; None: no limit.

    A value that means nothing is no limit; the scheduler reports it in the status of the policy.
    """
    group = str(owner["apiVersion"]).rpartition("/")[0]
    found = [policy for policy in policies if _is_about(policy, owner, group)]
    if not found:
        return None
    oldest = min(found, key=lambda each: (each["metadata"].get("creationTimestamp") or "", each["metadata"]["name"]))
    try:
        spec = msgspec.convert(oldest["spec"], WorkloadPolicySpec)
    except msgspec.ValidationError:
        return None
    limit: int | None = parse_spec(spec).fields.get("max_unavailable_replicas")
    return limit


def _is_about(policy: Json, owner: Json, group: str) -> bool:
    target = (policy.get("spec") or {}).get("targetRef") or {}
    named = (target.get("kind"), target.get("name")) == (owner["kind"], owner["metadata"]["name"])
    return named and target.get("apiGroup") in (None, "", group)
