"""Rules for groups that Kubernetes 1.37 lacks: nested disruption modes, and composites that stay while in use."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

import pytest

from phalanx.base.errors import ApiProblem, NotFound
from phalanx.controllers.cluster_mode.protection import COMPOSITE_PROTECTION
from support.cluster_mode import InCluster, beside, play, review
from support.rights import documents

Json = dict[str, Any]
BASIC: Json = {"basic": {}}
REF = {"workloadName": "w", "templateName": "t"}


def leaf(mode: str) -> Json:
    return {"name": f"leaf-{mode}", "disruptionMode": {mode: {}}, "schedulingPolicy": BASIC}


def composite(mode: str, *children: Json) -> Json:
    """Return a composite template; children that have templates themselves are composites."""
    composites = [child for child in children if "podGroupTemplates" in child or "compositePodGroupTemplates" in child]
    leaves = [child for child in children if child not in composites]
    made: Json = {"name": f"c{len(str(children))}-{mode}", "disruptionMode": {mode: {}}, "schedulingPolicy": BASIC}
    if composites:
        made["compositePodGroupTemplates"] = composites
    if leaves:
        made["podGroupTemplates"] = leaves
    return made


ONE, ALL = "single", "all"
WRONG = {
    "leaf": composite(ALL, leaf(ONE)),
    "one of two leaves": composite(ALL, leaf(ALL), leaf(ONE)),
    "composite": composite(ALL, composite(ONE, leaf(ALL))),
    "second level": composite(ONE, composite(ALL, leaf(ONE))),
    "third level": composite(ONE, composite(ONE, composite(ALL, leaf(ONE)))),
    "below the second level": composite(ONE, composite(ALL, composite(ONE, leaf(ONE)))),
}
RIGHT = {
    "all": composite(ALL, composite(ALL, composite(ALL, leaf(ALL)))),
    "single above all": composite(ONE, composite(ALL, leaf(ALL)), leaf(ONE)),
    "single": composite(ONE, composite(ONE, composite(ONE, leaf(ONE)))),
}


async def install_policy(cluster: InCluster) -> None:
    for document in documents("80-group-rules.yaml"):
        await cluster.apply(document)


def test_the_policy_rejects_what_is_disrupted_in_parts_below_what_is_disrupted_as_a_whole() -> None:
    async def scenario(cluster: InCluster) -> None:
        old = await cluster.create("Workload", "before", spec={"compositePodGroupTemplates": [WRONG["leaf"]]})
        await install_policy(cluster)
        for number, template in enumerate(WRONG.values()):
            with pytest.raises(ApiProblem, match="needs disruptionMode all"):
                await cluster.create("Workload", f"bad-{number}", spec={"compositePodGroupTemplates": [template]})
        for number, template in enumerate(RIGHT.values()):
            await cluster.create("Workload", f"good-{number}", spec={"compositePodGroupTemplates": [template]})
        await cluster.create("Workload", "flat", spec={"podGroupTemplates": [leaf(ONE)]})
        # What was stored before the policy can still be labelled.
        await cluster.patch("Workload", old["metadata"]["name"], {"metadata": {"labels": {"team": "a"}}})

    play(scenario, upstream=False, nodes=0, phalanx=False, schedulers=())


async def gone(cluster: InCluster, kind: str, name: str) -> None:
    await cluster.eventually(kind, lambda found: all(obj["metadata"]["name"] != name for obj in found))


def test_a_composite_stays_until_its_children_are_gone() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.create("CompositePodGroup", "root", spec={"workloadRef": REF, "schedulingPolicy": BASIC})
        below = {"workloadRef": REF, "schedulingPolicy": BASIC, "parentCompositePodGroupName": "root"}
        await cluster.create("CompositePodGroup", "middle", spec=below)
        await cluster.create("PodGroup", "leaf", spec={**below, "parentCompositePodGroupName": "middle"})

        def protected(found: list[Json]) -> bool:
            return all(COMPOSITE_PROTECTION in (obj["metadata"].get("finalizers") or ()) for obj in found)

        await cluster.eventually("CompositePodGroup", protected)  # without the webhook, which they did not pass
        for name in ("root", "middle"):
            await cluster.delete("CompositePodGroup", name)
        await cluster.eventually(
            "CompositePodGroup", lambda found: all(obj["metadata"].get("deletionTimestamp") for obj in found)
        )
        assert {obj["metadata"]["name"] for obj in cluster.all("CompositePodGroup")} == {"root", "middle"}
        await cluster.delete("PodGroup", "leaf")
        await gone(cluster, "CompositePodGroup", "root")
        assert cluster.all("CompositePodGroup") == []

    play(scenario, upstream=False, nodes=0, schedulers=())


def test_composites_that_are_parents_of_each_other_can_be_deleted() -> None:
    async def scenario(cluster: InCluster) -> None:
        for name, parent in (("a", "b"), ("b", "a")):
            spec = {"workloadRef": REF, "schedulingPolicy": BASIC, "parentCompositePodGroupName": parent}
            await cluster.create("CompositePodGroup", name, spec=spec)
        await cluster.eventually(
            "CompositePodGroup", lambda found: all(obj["metadata"].get("finalizers") for obj in found)
        )
        for name in ("a", "b"):
            with contextlib.suppress(NotFound):
                await cluster.delete("CompositePodGroup", name)
        await gone(cluster, "CompositePodGroup", "a")
        await gone(cluster, "CompositePodGroup", "b")

    play(scenario, upstream=False, nodes=0, schedulers=())


@pytest.mark.parametrize(
    ("finalizers", "path"),
    [
        (None, "/metadata/finalizers"),
        (["example.com/mine"], "/metadata/finalizers/-"),
        ([COMPOSITE_PROTECTION], ""),
        (["scheduling.k8s.io/compositepodgroup-protection"], ""),  # a later Kubernetes protects it itself
    ],
)
def test_the_webhook_protects_a_composite_when_it_is_created(finalizers: list[str] | None, path: str) -> None:
    async def run() -> None:
        async with beside(upstream=False, nodes=0, schedulers=()) as cluster:
            body: Json = {"metadata": {"name": "c", **({"finalizers": finalizers} if finalizers else {})}}
            asked = review(body, resource={"group": "scheduling.k8s.io", "resource": "compositepodgroups"})
            code, text = await cluster.post(json.dumps(asked).encode())
            response = json.loads(text)["response"]
            assert code == 200 and response["allowed"]
            patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
            assert [step["path"] for step in patch] == ([path] if path else [])

    asyncio.run(run())
