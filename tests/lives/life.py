"""A model of lives: a workload of some kind, drawn by a seed, and what may happen to it, one event after the other.

After each event, once everything is quiet: nothing that ran was replaced unless the event asks for it; a gang has its
minimum on nodes or gets nobody new; every group has an owner that lives; whoever waits, and whoever lacks pods, says
why. When the workload is gone nothing of it is left. A story that fails is made as short as it can be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from manifests import deployment, job, jobset, leader_worker_set, stateful_set, template

from phalanx.base.errors import ApiProblem
from phalanx.local.nodes import KubeletOptions
from phalanx.model.gates import Gates
from phalanx.testing.simulated_cluster import SimulatedCluster, simulated_cluster
from phalanx.testing.virtual_time import VirtualLoop, run

Json = dict[str, Any]
Uids = set[str]
NODES, NODE_CPU = 3, 4  # often not enough
SELDOM = KubeletOptions(heartbeat_seconds=3600.0)  # nodes do not fail in these stories
QUIET = 90.0  # seconds without a write after which nothing more is to come; longer than the backoff of a few failures
OFF = Gates(
    dict.fromkeys(
        (
            "GenericWorkload",
            "GangScheduling",
            "TopologyAwareWorkloadScheduling",
            "CompositePodGroup",
            "WorkloadWithJob",
        ),
        False,
    )
)
MADE_FOR_OTHERS = ("PodGroup", "CompositePodGroup", "Workload")
LEFT_BEHIND = (*MADE_FOR_OTHERS, "Pod", "Job", "JobSet", "ReplicaSet", "StatefulSet", "ControllerRevision", "Service")


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Life:
    cluster: SimulatedCluster
    rng: random.Random
    kind: str
    variant: str
    name: str = "w"
    sizes: Json = field(default_factory=dict)  # what the user wants now
    suspended: bool = False
    excused: set[str] = field(default_factory=set)  # groups that lost members by themselves since they were whole
    fillers: int = 0
    completions: int = 0
    cpu: int = 1

    # ---- what there is

    @property
    def object(self) -> Json:
        found = self.cluster.get(self.kind, self.name)
        if found is None:
            raise Broken(f"{self.kind} {self.name} is gone")
        return found

    def pods(self) -> list[Json]:
        return [pod for pod in self.cluster.all("Pod") if not pod["metadata"]["name"].startswith("filler")]

    def live(self) -> list[Json]:
        return [
            pod
            for pod in self.pods()
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def running(self) -> list[Json]:
        return [pod for pod in self.live() if pod["status"].get("phase") == "Running"]

    def wanted(self) -> int:
        """Pods the user asks for; a Job's completions are those it was made with."""
        if self.suspended:
            return 0
        wanted = int(WANTED[self.variant](self.sizes))
        return min(wanted, self.completions) if self.kind == "Job" else wanted

    # ---- what must hold

    def check(self, event: str, before: dict[str, Json], replaced: Uids | None) -> None:
        """before: pods that ran, by uid; replaced: those the event may end, None for all of them."""
        self.nothing_replaced(event, before, replaced)
        self.whole_or_nobody_new(set(before))
        self.owned()
        self.explained()

    def nothing_replaced(self, event: str, before: dict[str, Json], replaced: Uids | None) -> None:
        if replaced is None:
            return
        now = {pod["metadata"]["uid"] for pod in self.running()}
        lost = [before[uid]["metadata"]["name"] for uid in before if uid not in now and uid not in replaced]
        if lost:
            raise Broken(f"{event} ended {', '.join(lost)}, which ran")

    def whole_or_nobody_new(self, before: Uids) -> None:
        for name, minimum, members in self.gangs():
            bound = [pod for pod in members if pod["spec"].get("nodeName")]
            if len(bound) >= minimum:
                self.excused.discard(name)
                continue
            fresh = [pod["metadata"]["name"] for pod in bound if pod["metadata"]["uid"] not in before]
            if fresh and name not in self.excused:
                raise Broken(f"{name} needs {minimum} pods and has {len(bound)} on nodes, {', '.join(fresh)} just now")

    def gangs(self) -> list[tuple[str, int, list[Json]]]:
        """(name, minimum, members that live) of every gang."""
        found: list[tuple[str, int, list[Json]]] = []
        for group in self.cluster.all("PodGroup") if self.cluster.gates("GenericWorkload") else ():
            gang = group["spec"]["schedulingPolicy"].get("gang")
            if gang is not None and "deletionTimestamp" not in group["metadata"]:
                found.append((group["metadata"]["name"], gang["minCount"], self.members(group["metadata"]["name"])))
        for workload in self.cluster.all("Workload") if self.cluster.gates("GenericWorkload") else ():
            for part in workload["spec"].get("podGroupTemplates") or ():
                gang = part["schedulingPolicy"].get("gang")
                link = {"name": workload["metadata"]["name"], "podGroup": part["name"]}
                of: dict[str, list[Json]] = {}
                for pod in self.live():
                    ref = pod["spec"].get("workloadRef")
                    if ref is not None and {key: ref[key] for key in link} == link:
                        of.setdefault(ref.get("podGroupReplicaKey", ""), []).append(pod)
                if gang is not None:
                    found += [(f"{link['name']}/{part['name']}/{key}", gang["minCount"], of[key]) for key in of]
        return found

    def members(self, group: str) -> list[Json]:
        return [p for p in self.live() if (p["spec"].get("schedulingGroup") or {}).get("podGroupName") == group]

    def owned(self) -> None:
        if not self.cluster.gates("GenericWorkload"):
            return
        uids = {obj["metadata"]["uid"] for kind in OWNERS for obj in self.cluster.all(kind)}
        for kind in MADE_FOR_OTHERS:
            for obj in self.cluster.all(kind):
                meta = obj["metadata"]
                owners = [owner["uid"] for owner in meta.get("ownerReferences") or ()]
                if meta["name"] in BY_HAND or "deletionTimestamp" in meta:
                    continue
                if not any(owner in uids for owner in owners):
                    raise Broken(f"{kind} {meta['name']} belongs to nobody that lives")

    def explained(self) -> None:
        for pod in self.live():
            if pod["spec"].get("nodeName"):
                continue
            told = [c for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"]
            if not told or told[0]["status"] != "False" or not told[0].get("message"):
                raise Broken(f"pod {pod['metadata']['name']} waits and does not say why")
        if len(self.live()) < self.wanted() and not self.complaints():
            raise Broken(f"{self.kind} wants {self.wanted()} pods, has {len(self.live())}, and does not say why")

    def complaints(self) -> list[str]:
        """What the user's object says, or the events about it and about what it made."""
        conditions = (self.object.get("status") or {}).get("conditions") or ()
        said = [f"{c['type']} {c.get('message', '')}" for c in conditions if c["status"] != "True" and c.get("message")]
        for event in self.cluster.all("Event"):
            about = event.get("regarding") or event.get("involvedObject") or {}
            if event["type"] == "Warning" and str(about.get("name", "")).startswith(self.name):
                said.append(event.get("note") or event.get("message") or "")
        return said

    def nothing_left(self) -> None:
        left = [
            f"{kind} {obj['metadata']['name']}"
            for kind in LEFT_BEHIND
            if kind not in MADE_FOR_OTHERS or self.cluster.gates("GenericWorkload")
            for obj in self.cluster.all(kind)
            if obj["metadata"]["name"] not in BY_HAND and not obj["metadata"]["name"].startswith("filler")
        ]
        if left:
            raise Broken(f"the {self.kind} is gone, and there are still {', '.join(left)}")

    # ---- what may happen; each says which running pods it may end (None: all of them)

    async def make(self) -> Uids | None:
        for obj in MAKE[self.variant](self):
            if obj["metadata"]["name"] not in BY_HAND or self.cluster.get(obj["kind"], obj["metadata"]["name"]) is None:
                await self.cluster.apply(obj)
        return set()

    async def scale(self) -> Uids | None:
        (key,) = self.sizes
        before, now = self.sizes[key], self.rng.randint(1, 5)
        self.sizes[key] = now
        await self.cluster.patch(self.kind, self.name, {"spec": {key: now}})
        return set() if now >= before else None

    async def restart(self) -> Uids | None:
        """Somebody deletes a pod."""
        return await self.end_one(lambda name: self.cluster.delete("Pod", name))

    async def retry(self) -> Uids | None:
        """A pod fails."""
        failed = {"status": {"phase": "Failed"}}
        return await self.end_one(lambda name: self.cluster.patch("Pod", name, failed, subresource="status"))

    async def end_one(self, how: Callable[[str], Awaitable[None]]) -> Uids | None:
        running = self.running()
        if not running:
            return set()
        victim = self.rng.choice(running)
        group = self.group_of(victim)
        self.excused.add(group)
        await how(victim["metadata"]["name"])
        if self.kind in ("LeaderWorkerSet", "JobSet"):  # a replica, or the whole set, restarts with its pod
            return {p["metadata"]["uid"] for p in running if self.kind == "JobSet" or self.group_of(p) == group}
        return {victim["metadata"]["uid"]}

    @staticmethod
    def group_of(pod: Json) -> str:
        ref = pod["spec"].get("workloadRef")
        if ref is not None:
            return f"{ref['name']}/{ref['podGroup']}/{ref.get('podGroupReplicaKey', '')}"
        return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))

    async def suspend(self) -> Uids | None:
        self.suspended = True
        await self.cluster.patch(self.kind, self.name, {"spec": {"suspend": True}})
        return None

    async def resume(self) -> Uids | None:
        self.suspended = False
        await self.cluster.patch(self.kind, self.name, {"spec": {"suspend": False}})
        return set()

    async def roll(self) -> Uids | None:
        """A new image."""
        image = f"v{self.rng.randint(1, 9)}"
        pods = template("1")
        pods["spec"]["containers"][0] |= {"image": image, "resources": {"requests": {"cpu": str(self.cpu)}}}
        spec: Json = {"template": pods}
        if self.kind == "LeaderWorkerSet":
            spec = {"leaderWorkerTemplate": {"workerTemplate": pods}}
        await self.cluster.patch(self.kind, self.name, {"spec": spec})
        for name, _, _ in self.gangs():
            self.excused.add(name)
        return None

    async def again(self) -> Uids | None:
        """Deleted and made again, at once or when it is gone."""
        await self.delete()
        if self.rng.random() < 0.5:
            await self.cluster.settle(QUIET)
        self.suspended = False
        self.completions = self.sizes.get("parallelism", 0)
        for _ in range(30):  # kubectl apply of a name that is still going is told so, and its user tries again
            try:
                await self.make()
                break
            except ApiProblem:
                await self.cluster.settle(1, 2)
        return None

    async def delete(self) -> None:
        how = self.rng.choice(["Background", "Foreground"])
        await self.cluster.delete(self.kind, self.name, propagation=how)

    async def group_deleted(self) -> Uids | None:
        groups = self.cluster.all("PodGroup")
        if groups:
            name = self.rng.choice(groups)["metadata"]["name"]
            self.excused.add(name)
            await self.cluster.delete("PodGroup", name)
            if name in BY_HAND:  # nobody else makes it again
                await self.cluster.settle(QUIET)
                for obj in MAKE[self.variant](self):
                    if obj["metadata"]["name"] == name and self.cluster.get("PodGroup", name) is None:
                        await self.cluster.apply(obj)
        return set()

    async def crash_controllers(self) -> Uids | None:
        await self.cluster.kill("controllers")
        await self.cluster.start_controllers()
        return set()

    async def crash_scheduler(self) -> Uids | None:
        await self.cluster.kill("scheduler")
        await self.cluster.start_scheduler()
        return set()

    async def gates_off_and_on(self) -> Uids | None:
        before = self.cluster.gates
        ran = {pod["metadata"]["uid"]: pod for pod in self.running()}
        await self.cluster.switch_gates(OFF)
        await self.cluster.settle(QUIET)
        self.nothing_replaced("switching the gates off", ran, set())
        self.excused.update(self.group_of(pod) for pod in self.pods())  # without gangs each pod starts for itself
        await self.cluster.switch_gates(before)
        return set()

    async def squeeze(self) -> Uids | None:
        """Other pods take room."""
        for _ in range(self.rng.randint(1, 3)):
            self.fillers += 1
            pod = template(str(self.rng.randint(1, NODE_CPU)))["spec"]
            meta = {"name": f"filler-{self.fillers}"}
            await self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})
        return set()

    async def relieve(self) -> Uids | None:
        for pod in self.cluster.all("Pod"):
            if pod["metadata"]["name"].startswith("filler"):
                await self.cluster.delete("Pod", pod["metadata"]["name"])
        return set()

    async def tick(self) -> Uids | None:
        """The next run of a CronJob comes and ends."""
        await self.cluster.settle(1, 1900)
        return None


BY_HAND = frozenset({"by-hand", "kubernetes"})
OWNERS = ("Job", "JobSet", "StatefulSet", "Deployment", "ReplicaSet", "LeaderWorkerSet", "CronJob", "Workload")


def _job(life: Life, link: Json | None = None) -> Json:
    made = job(life.name, life.sizes["parallelism"], str(life.cpu))
    if link is not None:
        del made["metadata"]["annotations"]
        made["spec"]["template"]["spec"] |= link
    return made


def _pod_group(life: Life) -> list[Json]:
    meta, policy = {"name": "by-hand"}, {"gang": {"minCount": life.sizes["parallelism"]}}
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": meta,
        "spec": {"schedulingPolicy": policy},
    }
    return [group, _job(life, {"schedulingGroup": {"podGroupName": "by-hand"}})]


def _first_version(life: Life) -> list[Json]:
    pods = {"name": "pods", "policy": {"gang": {"minCount": life.sizes["parallelism"]}}}
    about = {"apiGroup": "batch", "kind": "Job", "name": life.name}
    workload = {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "by-hand"},
        "spec": {"podGroups": [pods], "controllerRef": about},
    }
    return [workload, _job(life, {"workloadRef": {"name": "by-hand", "podGroup": "pods"}})]


def _cron_job(life: Life) -> list[Json]:
    inner = job(life.name, life.sizes["parallelism"], str(life.cpu), seconds=300)
    template_ = {"metadata": {"annotations": inner["metadata"]["annotations"]}, "spec": inner["spec"]}
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": life.name},
            "spec": {"schedule": "*/30 * * * *", "concurrencyPolicy": "Allow", "jobTemplate": template_},
        }
    ]


def _sets(life: Life) -> tuple[int, str]:
    return life.sizes["replicas"], str(life.cpu)


MAKE: dict[str, Callable[[Life], list[Json]]] = {
    "Job": lambda life: [_job(life)],
    "Job in a PodGroup made by hand": _pod_group,
    "Job of a v1alpha1 Workload": _first_version,
    "CronJob": _cron_job,
    "JobSet": lambda life: [jobset(life.name, life.sizes["jobs"], life.sizes["size"], str(life.cpu))],
    "StatefulSet": lambda life: [stateful_set(life.name, *_sets(life))],
    "Deployment": lambda life: [deployment(life.name, *_sets(life))],
    "LeaderWorkerSet": lambda life: [leader_worker_set(life.name, life.sizes["replicas"], 2, str(life.cpu))],
}
WANTED: dict[str, Callable[[Json], int]] = {
    "Job": lambda sizes: sizes["parallelism"],
    "Job in a PodGroup made by hand": lambda sizes: sizes["parallelism"],
    "Job of a v1alpha1 Workload": lambda sizes: sizes["parallelism"],
    "CronJob": lambda sizes: 0,
    "JobSet": lambda sizes: sizes["jobs"] * sizes["size"],
    "StatefulSet": lambda sizes: sizes["replicas"],
    "Deployment": lambda sizes: sizes["replicas"],
    "LeaderWorkerSet": lambda sizes: sizes["replicas"] * 2,
}
ALWAYS = (
    "restart",
    "retry",
    "again",
    "group_deleted",
    "crash_controllers",
    "crash_scheduler",
    "gates_off_and_on",
    "squeeze",
    "relieve",
)
EVENTS = {
    "Job": (*ALWAYS, "suspend", "resume", "scale"),
    "Job in a PodGroup made by hand": (*ALWAYS, "suspend", "resume"),
    "Job of a v1alpha1 Workload": (*ALWAYS, "suspend", "resume"),
    "CronJob": (*ALWAYS, "suspend", "resume", "tick", "tick", "tick"),
    "JobSet": (*ALWAYS, "suspend", "resume"),
    "StatefulSet": (*ALWAYS, "scale", "roll"),
    "Deployment": (*ALWAYS, "scale", "roll"),
    "LeaderWorkerSet": (*ALWAYS, "scale", "roll"),
}


def draw(variant: str, seed: int) -> tuple[Json, list[str]]:
    """Sizes and events of a story."""
    rng = random.Random(f"{variant} {seed}")
    if variant == "JobSet":
        sizes = {"jobs": rng.randint(1, 3), "size": rng.randint(1, 2)}
    elif variant in ("StatefulSet", "Deployment", "LeaderWorkerSet"):
        sizes = {"replicas": rng.randint(1, 4)}
    else:
        sizes = {"parallelism": rng.randint(1, 4)}
    return {**sizes, "cpu": rng.choice([1, 2, 3])}, [rng.choice(EVENTS[variant]) for _ in range(rng.randint(2, 6))]


def live(variant: str, seed: int, events: list[str] | None = None) -> None:
    """Raises Broken, with everything that is needed to see it again."""
    sizes, drawn = draw(variant, seed)
    kind = variant.partition(" ")[0]
    told: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(NODES, seed=seed, topology=f"cpu={NODE_CPU}", options=SELDOM) as cluster:
            own = dict(sizes)
            life = Life(cluster, random.Random(f"{variant} {seed} choices"), kind, variant)
            life.cpu = own.pop("cpu")
            life.sizes = own
            life.completions = own.get("parallelism", 0)
            await life.make()
            told.append("make")
            await cluster.settle(QUIET)
            life.check("make", {}, set())
            for event in events if events is not None else drawn:
                told.append(event)
                before = {pod["metadata"]["uid"]: pod for pod in life.running()}
                replaced = await getattr(life, event)()
                if not await cluster.settle(QUIET):
                    raise Broken(f"an hour after {event} it is still not quiet")
                life.check(event, before, replaced)
            told.append("delete")
            await life.delete()
            await cluster.settle(QUIET)
            life.nothing_left()

    try:
        run(main)
    except Broken as broken:
        raise Broken(f"{variant} {json.dumps(sizes)}, seed {seed}: {' > '.join(told)}: {broken}") from None


def shortest(variant: str, seed: int) -> str | None:
    """None when the story of a seed holds; else the shortest one found that does not."""
    _, events = draw(variant, seed)
    try:
        live(variant, seed)
        return None
    except Broken as broken:
        found = str(broken)
    index = 0
    while index < len(events):
        fewer = [*events[:index], *events[index + 1 :]]
        try:
            live(variant, seed, fewer)
            index += 1
        except Broken as broken:
            events, found = fewer, str(broken)
    return found
