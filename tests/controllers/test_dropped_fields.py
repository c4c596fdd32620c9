"""A field that the API server drops because a gate is off is no difference: nothing is made again for it."""

from __future__ import annotations

import asyncio

from phalanx.controllers.grouping.compare import Difference, difference, dropped_fields, with_dropped_fields_annotated
from phalanx.model.gates import Gates
from support.controller_world import Json, World, world
from support.lws_objects import done, lws

OFF = Gates({"TopologyAwareWorkloadScheduling": False, "CompositePodGroup": False})


def test_groups_without_their_topology_are_made_once_and_pods_start() -> None:
    async def scenario() -> None:
        async with world(nodes=2, topology="", controllers=False, scheduler=False) as cluster:
            await cluster.restart(OFF)
            await cluster.apply(a_set_with_topology())
            await done(cluster, "svc")
            assert len({group["metadata"]["uid"] for group in cluster.all("PodGroup")}) == 2
            before = uids(cluster)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await cluster.patch("LeaderWorkerSet", "svc", {"spec": {"replicas": 3}})
            await done(cluster, "svc")
            assert before <= uids(cluster), "also those that an earlier process made are as they were"
            announced = [e for e in cluster.all("Event") if e["reason"] == "FieldsDropped"]
            assert announced and "schedulingConstraints" in announced[0]["message"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def a_set_with_topology() -> Json:
    topology = {"scheduling.phalanx.dev/topology": "topology.phalanx.dev/rack"}
    return lws("svc", 2, 2, scheduling={"schedulingPolicy": {"gang": {}}}, annotations=topology)


def uids(cluster: World) -> set[str]:
    return {obj["metadata"]["uid"] for kind in ("PodGroup", "Workload") for obj in cluster.all(kind)}


def a_group(**spec: object) -> Json:
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    return {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {**policy, **spec}}


def test_only_what_was_dropped_is_left_out_of_the_comparison() -> None:
    wanted = a_group(schedulingConstraints={"topology": [{"key": "rack"}]}, disruptionMode={"all": {}})
    stored = a_group(disruptionMode={"all": {}})
    assert dropped_fields(stored, wanted) == ["schedulingConstraints"]
    noted = with_dropped_fields_annotated(stored, wanted)
    assert noted is not None and difference(noted, wanted) is Difference.NONE
    assert difference(noted, a_group(disruptionMode={"single": {}})) is Difference.SHAPE
    assert with_dropped_fields_annotated(wanted, wanted) is None
