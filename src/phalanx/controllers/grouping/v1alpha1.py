"""Workloads of KEP-4671 (v1alpha1): policies by group inside the Workload, which pods name; no groups as objects."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.controllers.grouping.annotations import DOMAIN, workload_annotations
from phalanx.controllers.grouping.core import WORKLOADS_V1ALPHA1, Json, controller_ref, namespace_of, reference_to
from phalanx.model.groups.keys import DISRUPTION

API = f"{DOMAIN}/api"  # the annotation that asks for it
ONLY_GROUP = "gg"  # the name the API design paper gives the one group of such a workload


def first_workload(owner: Json, name: str, policies: Mapping[str, Json]) -> Json:
    """Return a KEP-4671 Workload. It has no field for disruption: an annotation holds the requested mode."""
    mode = workload_annotations(owner["metadata"].get("annotations")).disruption
    return {
        "apiVersion": WORKLOADS_V1ALPHA1.api_version,
        "kind": WORKLOADS_V1ALPHA1.kind,
        "metadata": {"name": name, "namespace": namespace_of(owner), "ownerReferences": [reference_to(owner)]}
        | ({"annotations": {DISRUPTION: mode}} if mode else {}),
        "spec": {
            "controllerRef": controller_ref(owner),
            "podGroups": [{"name": group, "policy": policy} for group, policy in policies.items()],
        },
    }
