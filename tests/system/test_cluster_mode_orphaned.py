"""A workload of a real cluster that is deleted with --cascade=orphan and created again takes over its groups."""

from __future__ import annotations

import pytest

from support.cluster_mode import GANG, InCluster, group_of, play, running
from support.lws_objects import lws
from support.manifests import stateful_set

BODIES = {
    "StatefulSet": (stateful_set("w", 3, podManagementPolicy="Parallel", metadata={"annotations": GANG}), 3),
    "LeaderWorkerSet": (lws("w", replicas=2, size=2, annotations=GANG), 4),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_lost_pod_starts_again_and_no_group_is_left_over(kind: str) -> None:
    async def scenario(cluster: InCluster) -> None:
        body, size = BODIES[kind]
        await cluster.apply(body)
        before = {pod["metadata"]["uid"] for pod in await cluster.eventually("Pod", running(size))}
        await cluster.delete(kind, "w", propagation="Orphan")
        await cluster.gone(kind, "w")
        await cluster.apply(body)
        uid = cluster.look(kind, "w")["metadata"]["uid"]

        def owned(groups: list[dict]) -> bool:
            return all(uid in [ref["uid"] for ref in group["metadata"].get("ownerReferences", [])] for group in groups)

        for scheduling_kind in ("PodGroup", "Workload"):
            await cluster.eventually(scheduling_kind, owned)
        lost = cluster.look("Pod", "w-0")["metadata"]["uid"]
        await cluster.delete("Pod", "w-0")
        pods = await cluster.eventually(
            "Pod", lambda found: running(size)(found) and lost not in {pod["metadata"]["uid"] for pod in found}
        )
        assert before & {pod["metadata"]["uid"] for pod in pods}, "the others run on"
        if kind == "StatefulSet":
            for name in ("w-1", "w-2"):
                await cluster.delete("Pod", name)
            await cluster.eventually("Pod", lambda f: running(size)(f) and len({group_of(pod) for pod in f}) == 1)
            (group,) = await cluster.eventually("PodGroup", lambda found: len(found) == 1)
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        await cluster.delete(kind, "w", propagation="Background")
        for left in ("PodGroup", "Workload"):
            await cluster.eventually(left, lambda found: not found)

    play(scenario)
