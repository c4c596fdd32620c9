"""StatefulSet, Deployment and ReplicaSet: one group of all replicas, when its author asks with an annotation.

The paper on the Workload API: a StatefulSet that starts its pods in parallel has a fixed world size and may be a gang;
one that starts them in order, and sets of interchangeable pods, may only be a basic group, for its topology and
status. The only part is "" (all pods).
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.controllers.grouping.core import Grouping, Json, Link, Refused
from phalanx.controllers.grouping.first_version import API, ONLY_GROUP, first_workload
from phalanx.controllers.grouping.names import by_uid, of_template
from phalanx.controllers.grouping.parts import BASIC, Leaf, gang, pod_group, workload
from phalanx.controllers.grouping.wishes import DOMAIN, Wishes, wishes

TEMPLATE = "replicas"


def group_set(obj: Json, related: Sequence[Json] = ()) -> Grouping:
    """Of any of the three kinds."""
    wish = wishes(obj["metadata"].get("annotations"))
    template = obj["spec"]["template"].get("spec") or {}
    named = template.get("schedulingGroup") is not None or template.get("workloadRef") is not None
    owned = any(ref.get("controller") for ref in obj["metadata"].get("ownerReferences") or ())
    if named or owned or not wish:
        return Grouping()
    policy = _policy(obj, wish)
    leaf = Leaf(TEMPLATE, policy, wish.constraints, wish.mode, (), template.get("priorityClassName") or "")
    meta = obj["metadata"]
    if (meta.get("annotations") or {}).get(API) == "v1alpha1":
        return _first_version(obj, policy)
    name = by_uid(meta["name"], meta.get("uid", ""))
    group = of_template(name, leaf.name)
    return Grouping(
        workload=workload(obj, name, [leaf]),
        groups=[pod_group(obj, group, name, leaf)],
        links={"": Link(pod_group=group, template=leaf.name)},
    )


def _policy(obj: Json, wish: Wishes) -> Json:
    if not wish.gang and wish.min_count is None:
        return BASIC
    kind, spec = obj["kind"], obj["spec"]
    if kind != "StatefulSet":
        raise Refused(
            f"pods of a {kind} are replaced one by one and cannot be a gang; use a StatefulSet with "
            f"podManagementPolicy Parallel, a Job or a LeaderWorkerSet, or remove the annotation {DOMAIN}/gang"
        )
    if spec.get("podManagementPolicy", "OrderedReady") != "Parallel":
        raise Refused(
            "podManagementPolicy OrderedReady starts one pod after the other, so a gang would wait for ever; "
            f'use podManagementPolicy Parallel, or {DOMAIN}/gang: "false" for a group without a gang'
        )
    replicas = int(spec.get("replicas", 1))
    count = wish.min_count or max(1, replicas)
    if count > max(1, replicas):
        raise Refused(f"annotation {DOMAIN}/min-count: {count} is more than the {replicas} replicas")
    return gang(count)


def _first_version(obj: Json, policy: Json) -> Grouping:
    """KEP-4671 as the API design paper has it: `w-<name>` with the one group."""
    name = f"w-{obj['metadata']['name']}"
    body = first_workload(obj, name, {ONLY_GROUP: policy})
    return Grouping(workload=body, links={"": Link(workload=name, group=ONLY_GROUP)})
