"""The roles in deploy/ allow what the parts do, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any

import msgspec
import pytest

from phalanx.base.client import Resource
from phalanx.base.clock import SystemClock
from phalanx.base.errors import Unauthorized
from phalanx.controllers.cluster_mode.controllers import ClusterControllers
from phalanx.controllers.workloads.registry import FOLLOWED, READ
from phalanx.engine import decisions as d
from phalanx.engine.events import Outcome
from phalanx.kube.executor import Executor
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import Elector, LeaseSettings
from phalanx.kube.recorder import ObjectRef, Recorder
from phalanx.local.api.rights import Rights
from phalanx.model.gates import Gates
from phalanx.model.objects.devices import (
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
    DeviceAllocation,
    ResourceClaimSpec,
)
from phalanx.serve.callers import Caller, Callers
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.scheduler import SchedulerService
from phalanx.serve.start_checks import other_holders
from phalanx.web.history import UsageHistory
from phalanx.web.questions import Questions
from support.cluster_mode import DEFINITIONS, GANG, OFF, InCluster, beside, gang_job, group_of, jobset_of, running
from support.manifests import template
from support.rights import Recording, Use, documents, grants

Json = dict[str, Any]
NATIVE = Gates({"WorkloadWithJob": False})
LEASE = LeaseSettings("phalanx-scheduler", "phalanx-system", retry=0.05)


async def namespace(cluster: InCluster) -> None:
    await cluster.create("Namespace", "phalanx-system")


# -- the scheduler ---------------------------------------------------------------------------------------------------


async def use_scheduler(cluster: InCluster, client: Recording) -> None:
    """Everything a scheduler does: leads, places gangs and trees, explains, preempts, binds volumes, survives doubt."""
    await Elector(client, LEASE, "me", SystemClock()).lead(lambda: asyncio.sleep(0.2))  # type: ignore[arg-type]
    assert await other_holders(client, LEASE, SystemClock()) == []  # type: ignore[arg-type]
    service = await cluster.start_scheduler("phalanx", client)
    await cluster.apply(gang_job("train", 2))
    await cluster.apply(jobset_of("js", {"scheduling.phalanx.dev/group-tree": "Job"}, ("w", 2, 1)))
    found = await cluster.eventually("Pod", running(4))
    await cluster.eventually("CompositePodGroup", lambda all_: all_ and (all_[0].get("status") or {}).get("conditions"))
    target = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "js"}
    await cluster.create("WorkloadPolicy", "js", spec={"targetRef": target})
    await cluster.eventually("WorkloadPolicy", lambda all_: (all_[0].get("status") or {}).get("matchedGroups"))
    bound = found[0]["metadata"]
    await cluster.create(
        "PersistentVolume", "pv", spec={**VOLUME, "persistentVolumeSource": None, "hostPath": {"path": "/x"}}
    )
    await cluster.create("PersistentVolumeClaim", "claim", spec={**CLAIM})
    outcomes: dict[int, Outcome] = {}
    await perform(
        GroupApi(client),  # type: ignore[arg-type]
        outcomes,
        d.Bind(1, "default", bound["name"], bound["uid"], node="other"),  # refused: read what happened
        d.BindVolume(2, "", "pv", "", claim_namespace="default", claim_name="claim", claim_uid="x"),
        d.ProvisionVolume(3, "default", "claim", "", node="n"),
        d.Evict(4, "default", bound["name"], bound["uid"], message="m"),
    )
    assert [outcomes[id_].problem for id_ in (2, 3, 4)] == ["", "", ""]
    await use_claims(cluster, client)
    await ask(service, client)
    await service.stop()


async def use_claims(cluster: InCluster, client: Recording) -> None:
    """Allocate, reserve and release a claim; the same for the claim of a pod's extended resources."""
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    await cluster.create("ResourceClaim", "c", "default", spec={"devices": {"requests": [request]}})
    await cluster.create("Pod", "extended", "default", spec=template(1)["spec"])
    claim, pod = cluster.look("ResourceClaim", "c"), cluster.look("Pod", "extended")
    assert claim is not None and pod is not None
    result = AllocatedDevice(request="r", driver="gpu.example.com", pool="p", device="d")
    allocation = AllocationResult(devices=DeviceAllocation(results=[result]))
    consumer = ConsumerReference("", "pods", "extended", pod["metadata"]["uid"])
    spec = msgspec.convert({"devices": {"requests": [request]}}, ResourceClaimSpec)
    uid, pod_uid = claim["metadata"]["uid"], pod["metadata"]["uid"]
    for decision in (
        d.ReserveClaim(1, "default", "c", uid, allocation=allocation, consumer=consumer),
        d.ReleaseClaim(1, "default", "c", uid, pod=pod_uid, deallocate=True),
        d.CreateExtendedClaim(1, "default", "extended", pod_uid, spec=spec, allocation=allocation),
        d.ReleaseClaim(1, "default", "", "", pod=pod_uid, deallocate=True, extended=True),
    ):
        outcomes: dict[int, Outcome] = {}
        await perform(GroupApi(client), outcomes, decision)  # type: ignore[arg-type]
        assert outcomes[1].problem == "", outcomes


async def ask(service: SchedulerService, client: Recording) -> None:
    """What people ask it, from the command line and in the dashboard."""
    diagnostics = Diagnostics(service.engine, client, Gates(), lambda: True)  # type: ignore[arg-type]
    reader = EngineReader(service.engine, service.now)
    questions = Questions(reader, diagnostics, client, UsageHistory(reader, service.now))  # type: ignore[arg-type]
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": template(1)["spec"]}
    outlook = json.loads(await questions.whatif(json.dumps({"text": json.dumps(item)}).encode()))
    assert outlook["outlook"]
    announced = json.loads(await questions.events({"key": "pod/default/p"}))
    assert "problem" not in announced
    await check_caller(client)


async def check_caller(client: Recording) -> None:
    """What a port with TLS asks about a caller."""
    callers = Callers(client)  # type: ignore[arg-type]
    with pytest.raises(Unauthorized):
        await callers.check("a token of no user", "/metrics", "get")
    assert await callers.allowed("t", Caller("alice"), {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}})


VOLUME = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}


async def perform(client: GroupApi, outcomes: dict[int, Outcome], *decisions: d.Decision) -> None:
    clock, rng = SystemClock(), random.Random(1)
    announced = asyncio.Event()

    def report(outcome: Outcome) -> None:
        outcomes[outcome.decision] = outcome
        if len(outcomes) == len(decisions):
            announced.set()

    recorder = Recorder(client, "phalanx", "phalanx-1", Ticking(), rng)
    executor = Executor(client, recorder, report, clock, rng)
    tasks = [asyncio.create_task(recorder.run()), asyncio.create_task(executor.run())]
    about = ObjectRef("v1", "Pod", "default", "p", "u")
    for _ in range(3):  # the same news again, much later: a series
        recorder.record(about, "Normal", "R", "A", "note")
    executor.submit(list(decisions))
    await asyncio.wait_for(announced.wait(), 20)
    await asyncio.wait_for(recorder.flush(), 20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Ticking(SystemClock):
    """Minutes pass between two looks."""

    passed = 0.0

    def now(self) -> float:
        self.passed += 200
        return super().now() + self.passed


# -- the controllers -------------------------------------------------------------------------------------------------


async def use_controllers(cluster: InCluster, client: Recording) -> None:
    """Everything the controllers do: lead, share a certificate and write its CA, make, follow and remove groups."""
    await serve_webhook_configurations(cluster)
    for resource in (*(kind.resource for kind in FOLLOWED), *READ):
        if cluster.registry.by_kind(resource.group, resource.version, resource.kind) is None:
            await install(cluster, resource)
    await check_caller(client)
    lease = LeaseSettings("phalanx-controllers", "phalanx-system")
    await cluster.create("Secret", "phalanx-webhook-tls", "phalanx-system", data={"tls.crt": "b2xk"})  # of no use
    await cluster.start_phalanx(client, namespace="phalanx-system", lease=lease)
    assert await other_holders(client, lease, SystemClock()) == []  # type: ignore[arg-type]
    await cluster.stop_phalanx()
    await cluster.delete("Secret", "phalanx-webhook-tls", "phalanx-system")
    await cluster.start_phalanx(client, namespace="phalanx-system", lease=lease)
    await cluster.apply(gang_job("train", 2, completions=None, completionMode="NonIndexed", suspend=True))
    await cluster.eventually("PodGroup", bool)
    await cluster.patch("Job", "train", {"spec": {"parallelism": 3}})
    await cluster.eventually("PodGroup", lambda g: g[0]["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3)
    tree = {"scheduling.phalanx.dev/group-tree": "Job"}
    await cluster.apply(jobset_of("js", tree, ("a", 1, 1), ("w", 2, 1)))
    await cluster.apply(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "lws", "annotations": GANG},
            "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(1)}},
        }
    )
    for body in (MPI_JOB, PYTORCH_JOB, RAY_CLUSTER):
        await cluster.apply(body)
    await cluster.create("ClusterTrainingRuntime", "torch", spec=RUNTIME)
    await cluster.apply(TRAIN_JOB)
    for kind, spec in (("StatefulSet", {"podManagementPolicy": "Parallel"}), ("Deployment", {})):
        requested = GANG if kind == "StatefulSet" else {"scheduling.phalanx.dev/topology": "kubernetes.io/hostname"}
        labels = {"app": kind.lower()}
        pods = {"metadata": {"labels": labels}, **template(1)}
        body = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pods, **spec}
        await cluster.create(kind, kind.lower(), metadata={"annotations": requested}, spec=body)
    await cluster.eventually("CompositePodGroup", lambda found: len(found) == 3)
    for owner in ("MPIJob", "PyTorchJob", "RayCluster", "TrainJob", "StatefulSet", "Deployment"):
        await cluster.eventually("PodGroup", lambda found, kind=owner: any(_owner(g) == kind for g in found))
    await cluster.eventually("PodGroup", lambda found: any(g["metadata"]["name"].startswith("lws-0-") for g in found))
    await second_writer(cluster, client)
    # The native API fixes the count of a composite: the tree is made again once no pod is in it.
    change = {"scheduling.phalanx.dev/min-groups": "1"}
    await cluster.patch("JobSet", "js", {"spec": {"suspend": True}, "metadata": {"annotations": change}})
    await cluster.eventually("CompositePodGroup", lambda all_: _policy(all_, "js") == {"gang": {"minGroupCount": 1}})
    tree["scheduling.phalanx.dev/min-groups"] = "1"
    cluster.webhook_on = False
    await cluster.apply(gang_job("missed", 1, pod={"schedulerName": "nobody"}))
    await cluster.eventually("Pod", lambda found: any("missed" in group_of(pod) for pod in found))
    # A workload that no longer asks loses the groups, from the leaves up.
    await cluster.patch("JobSet", "js", {"metadata": {"annotations": dict.fromkeys(tree)}})
    await cluster.eventually("CompositePodGroup", lambda found: not found)
    await cluster.eventually("Workload", lambda found: not any(w["metadata"]["name"].startswith("js-") for w in found))


def _policy(composites: list[Json], name: str) -> Json:
    found = [obj["spec"]["schedulingPolicy"] for obj in composites if obj["metadata"]["name"] == name]
    return found[0] if found else {}


def _owner(obj: Json) -> str:
    return str(obj["metadata"]["ownerReferences"][0]["kind"])


MPI_JOB = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {"name": "mpi", "annotations": GANG},
    "spec": {
        "mpiReplicaSpecs": {"Launcher": {"template": template(1)}, "Worker": {"replicas": 2, "template": template(1)}}
    },
}
PYTORCH_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "torch", "annotations": GANG},
    "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template(1)}}},
}
RAY_CLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "ray", "annotations": GANG},
    "spec": {"headGroupSpec": {"template": template(1)}},
}
RUNTIME = {
    "mlPolicy": {"numNodes": 2},
    "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": template(1)}}}]}},
}
TRAIN_JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "tj", "annotations": GANG},
    "spec": {"runtimeRef": {"name": "torch", "kind": "ClusterTrainingRuntime"}},
}


async def second_writer(cluster: InCluster, client: Recording) -> None:
    """A controller that was killed after a write and has not heard of it."""
    api = GroupApi(client)  # type: ignore[arg-type]
    await api.decide()
    fresh = ClusterControllers(api, SystemClock())
    assert cluster.phalanx is not None and cluster.phalanx.controllers is not None
    directory = cluster.phalanx.controllers.directory
    owner = cluster.look("JobSet", "js")
    assert owner is not None
    wanted = directory.wanted(owner)
    assert wanted is not None and not isinstance(wanted, Exception)
    fresh.writer.fill_priority = not api.native
    await fresh.writer.write(owner, wanted, ())


async def serve_webhook_configurations(cluster: InCluster) -> None:
    """As an administrator applies it; `cluster.admit` stands for the calls, so that none is needed here."""
    body = documents("50-webhook.yaml")[0]
    body["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"nobody": "here"}}
    await cluster.apply(body)


async def install(cluster: InCluster, resource: Resource) -> None:
    """Any kind, as a custom resource that keeps everything."""
    names, group = {"plural": resource.plural, "kind": resource.kind}, resource.group
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    meta = {"name": f"{names['plural']}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}}
    definition = {
        "apiVersion": DEFINITIONS.api_version,
        "kind": DEFINITIONS.kind,
        "metadata": meta,
        "spec": {
            "group": group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }
    await cluster.client.create(DEFINITIONS, definition)


# -- the comparison --------------------------------------------------------------------------------------------------


async def uses_of(role: str) -> tuple[dict[Use, set[tuple[str, str]]], set[str]]:
    found: dict[Use, set[tuple[str, str]]] = {}
    refused: set[str] = set()
    for gates, custom in ((OFF, True), (NATIVE, False)):
        scheduling = role == "phalanx-scheduler"
        options: Json = {
            "gates": gates,
            "custom": custom,
            "schedulers": (),
            "phalanx": scheduling,
            "upstream_gates": OFF,
        }
        async with beside(**options) as cluster:
            await namespace(cluster)
            for body in documents("20-rbac.yaml"):
                await cluster.apply(body, body["metadata"].get("namespace", ""))
            client = Recording(cluster.as_(role), Rights(cluster.store), role)
            await (use_scheduler if scheduling else use_controllers)(cluster, client)
        for use, where in client.uses.items():
            found.setdefault(use, set()).update(where)
        refused |= client.refused
    return found, refused


@pytest.mark.parametrize("role", ["phalanx-scheduler", "phalanx-controllers"])
def test_a_role_allows_exactly_what_its_part_does(role: str) -> None:
    uses, refused = asyncio.run(uses_of(role))
    assert sorted(refused) == []
    allowed = grants(role)
    unused = [grant for grant in allowed if not any(grant.allows(*where) for where in uses.get(grant.use, ()))]
    assert unused == []


def test_every_kind_of_workload_may_be_read_and_may_own_groups() -> None:
    allowed = {grant.use for grant in grants("phalanx-controllers")}
    for kind in FOLLOWED:
        for verb, resource in kind.rights:
            assert Use(verb, resource.group, resource.plural) in allowed
        assert Use("update", kind.resource.group, f"{kind.resource.plural}/finalizers") in allowed


def test_no_rule_has_a_wildcard() -> None:
    assert "*" not in json.dumps([body for body in documents("20-rbac.yaml") if "rules" in body])


def test_the_webhook_configuration_names_the_certificate_to_trust() -> None:
    async def scenario() -> None:
        async with beside(upstream=False, phalanx=False, nodes=0, schedulers=()) as cluster:
            await serve_webhook_configurations(cluster)
            phalanx = await cluster.start_phalanx()
            hooks = (cluster.look("MutatingWebhookConfiguration", "phalanx") or {})["webhooks"]
            bundles = [base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in hooks]
            assert bundles == [phalanx.authority] * 2

    asyncio.run(scenario())


def test_a_configuration_that_is_applied_later_or_again_names_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kubectl apply -k deploy/` makes it after the controllers; who applies it again takes our authority out."""
    monkeypatch.setattr("phalanx.serve.cluster_mode.TRUST_AGAIN", 0.02)

    async def scenario() -> None:
        async with beside(upstream=False, phalanx=False, nodes=0, schedulers=()) as cluster:
            phalanx = await cluster.start_phalanx()

            def trusted(found: list[Json]) -> bool:
                bundles = [body["webhooks"][0]["clientConfig"].get("caBundle") or "" for body in found]
                return [base64.b64decode(bundle) for bundle in bundles] == [phalanx.authority]

            await serve_webhook_configurations(cluster)
            (announced,) = await cluster.eventually("MutatingWebhookConfiguration", trusted)
            service = announced["webhooks"][0]["clientConfig"]["service"]
            again = [{**announced["webhooks"][0], "clientConfig": {"service": service}}]
            await cluster.patch("MutatingWebhookConfiguration", "phalanx", {"webhooks": again})
            await cluster.eventually("MutatingWebhookConfiguration", trusted)

    asyncio.run(scenario())
