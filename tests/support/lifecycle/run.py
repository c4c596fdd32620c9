"""What there is of one workload while its story goes on, and what must hold after every event of it.

Nothing that ran was replaced unless the event asks for it; a gang has its minimum on nodes or gets no new pod; every
group has an owner that lives; what waits, and what lacks pods, says why. When the workload is gone nothing of it
is left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phalanx.base.clock import parse_rfc3339, rfc3339
from phalanx.engine.framework.settings import ReservationSettings
from support.simulated_cluster import SimulatedCluster

Json = dict[str, Any]
Uids = set[str]
NODES, NODE_CPU = 2, 4  # often not enough
RUN_SECONDS = 300  # of the pods of a CronJob; others run until they are asked to end
QUIET = 90.0  # seconds without a write after which nothing more is to come; longer than the backoff of a few failures
MADE_FOR_OTHERS = ("PodGroup", "CompositePodGroup", "Workload")
MADE_BY_HAND = ("PodGroup", "Workload", "ClusterTrainingRuntime")
LEFT_BEHIND = (*MADE_FOR_OTHERS, "Pod", "Job", "JobSet", "ReplicaSet", "StatefulSet", "ControllerRevision", "Service")
BY_HAND = frozenset({"by-hand"})
DOES_NOT_FIT = frozenset({"WorkloadDoesNotFit", "FailedWorkloadCompilation"})  # the second is what Kubernetes calls it
NO_PODS = DOES_NOT_FIT | {  # why there are fewer than wanted (docs/workloads.md)
    "InvalidSchedulingConfiguration",
    "TooManyGroups",
    "NameConflict",
    "GroupCreationFailed",
    "FailedCreate",
}
GROUP_LABEL = "scheduling.phalanx.dev/pod-group"
ADOPTED = "scheduling.phalanx.dev/adopted"


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Variant:
    """A kind of workload as its users write it, and what may happen to it."""

    kind: str
    make: Callable[[Life], list[Json]]
    wanted: Callable[[Json], int]  # pods, of its sizes
    events: tuple[str, ...]
    sizes: Callable[[random.Random], Json]
    scale: Callable[[Life, int], Json] | None = None  # patch of the object to so many
    suspend: Callable[[bool], Json] = lambda on: {"spec": {"suspend": on}}
    template: Callable[[Json], Json] = lambda pods: {"spec": {"template": pods}}  # patch of the object to such pods
    fixed: bool = False  # its template cannot be changed
    restarts: bool = False  # others may go with a pod that is lost
    goes_by_itself: bool = False  # some time after it is over
    own_group: bool = False  # the minimum of its gang is not lowered while pods of it are outside (docs/gaps.md)
    beside: bool = False  # others make its pods; Phalanx makes groups and links, as on a real cluster
    definitions: tuple[str, ...] = ()  # files of examples/crds


@dataclass
class Life:
    cluster: SimulatedCluster
    rng: random.Random
    variant: Variant
    name: str = "w"
    sizes: Json = field(default_factory=dict)  # what the user wants now
    suspended: bool = False
    ended: bool = False
    excused: set[str] = field(default_factory=set)  # groups that lost members by themselves since they were whole
    all_excused: bool = False  # whatever groups there are when it is looked at next
    fillers: int = 0
    completions: int = 0
    succeeded: int = 0  # pods of this run that are not made again
    cpu: int = 1
    image: str = ""  # of the last roll-out
    priority: str = ""
    ttl: int | None = None  # seconds the object stays when it is over
    began: str = ""  # when; earlier events are about others of the same name

    def __post_init__(self) -> None:
        self.began = rfc3339(self.cluster.clock.now())

    @property
    def kind(self) -> str:
        return self.variant.kind

    # ---- what there is

    @property
    def object(self) -> Json:
        found = self.cluster.get(self.kind, self.name)
        if found is None:
            raise Broken(f"{self.kind} {self.name} is gone")
        return found

    @property
    def grouped(self) -> bool:
        """Whether the API has groups now."""
        return self.cluster.served("PodGroup")

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
        if self.suspended or self.ended:
            return 0
        wanted = int(self.variant.wanted(self.sizes))
        if self.kind == "Job":
            return min(wanted, self.completions - self.succeeded)
        return wanted - self.succeeded

    @staticmethod
    def group_of(pod: Json) -> str:
        ref = pod["spec"].get("workloadRef")
        if ref is not None:
            return f"{ref['name']}/{ref['podGroup']}/{ref.get('podGroupReplicaKey', '')}"
        named = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        return str(named or (pod["metadata"].get("labels") or {}).get(GROUP_LABEL) or "")

    def gangs(self) -> list[tuple[str, int, list[Json]]]:
        """(name, minimum, members that live) of every gang."""
        if not self.grouped:
            return []
        found: list[tuple[str, int, list[Json]]] = []
        of: dict[str, list[Json]] = {}
        for pod in self.live():
            of.setdefault(self.group_of(pod), []).append(pod)
        for group in self.cluster.all("PodGroup"):
            gang = group["spec"]["schedulingPolicy"].get("gang")
            if gang is not None and "deletionTimestamp" not in group["metadata"]:
                name = group["metadata"]["name"]
                found.append((name, gang["minCount"], of.get(name, [])))
        for workload in self.cluster.all("Workload"):
            for part in workload["spec"].get("podGroupTemplates") or ():
                gang = part["schedulingPolicy"].get("gang")
                prefix = f"{workload['metadata']['name']}/{part['name']}/"
                if gang is not None:
                    found += [(name, gang["minCount"], of[name]) for name in of if name.startswith(prefix)]
        return found

    # ---- what must hold

    def check(self, event: str, before: dict[str, Json], replaced: Uids | None) -> None:
        """before: pods that ran, by uid; replaced: those the event may end, None for all of them."""
        self.nothing_replaced(event, before, replaced)
        self.whole_or_no_new_pod(set(before))
        self.owned()
        if not self.ended:
            self.explained()
            self.not_stranded()

    def nothing_replaced(self, event: str, before: dict[str, Json], replaced: Uids | None) -> None:
        if replaced is None:
            return
        now = {pod["metadata"]["uid"] for pod in self.running()} | replaced | self._ended_with_their_gangs()
        lost = [
            pod["metadata"]["name"]
            for uid, pod in before.items()
            if uid not in now and not self._over(pod) and not self._outdated(pod) and not self._preempted(pod)
        ]
        if lost:
            raise Broken(f"{event} ended {', '.join(lost)}, which ran")

    def _ended_with_their_gangs(self) -> Uids:
        """Pods that the rescheduling policy TerminateAll ended, because their gang had lost others."""
        events = [each for each in self.events() if each["reason"] == "GangTerminated"]
        about = [each.get("regarding") or each.get("involvedObject") or {} for each in events]
        return {each.get("uid", "") for each in about if each.get("kind") == "Pod"}

    def _over(self, pod: Json) -> bool:
        """A run of a CronJob ends by itself."""
        began = parse_rfc3339(pod["status"]["startTime"])
        return self.kind == "CronJob" and began + RUN_SECONDS <= self.cluster.clock.now()

    def _outdated(self, pod: Json) -> bool:
        """A roll-out that could not go on before goes on when it can."""
        spec = pod["spec"]
        now = (spec["containers"][0]["image"], spec.get("priorityClassName", ""))
        return bool(self.image) and now != (self.image, self.priority)

    def _preempted(self, pod: Json) -> bool:
        """Its class is worth more by now, and where there is no room for all the new ones go first."""
        worth = [other["spec"].get("priority", 0) for other in self.live()]
        full = self.wanted() > NODES * (NODE_CPU // self.cpu) or self.fillers > 0
        return full and max(worth, default=0) > pod["spec"].get("priority", 0)

    def whole_or_no_new_pod(self, before: Uids) -> None:
        if self.all_excused:
            self.excused.update(name for name, _, _ in self.gangs())
            self.all_excused = False
        for name, minimum, members in self.gangs():
            bound = [pod for pod in members if pod["spec"].get("nodeName")]
            if len(bound) >= minimum:
                self.excused.discard(name)
                continue
            fresh = [pod["metadata"]["name"] for pod in bound if pod["metadata"]["uid"] not in before]
            if fresh and name not in self.excused:
                raise Broken(f"{name} needs {minimum} pods and has {len(bound)} on nodes, {', '.join(fresh)} just now")

    def owned(self) -> None:
        if not self.grouped:
            return
        owners = [kind for kind in OWNERS if self.cluster.served(kind)]
        uids = {obj["metadata"]["uid"] for kind in owners for obj in self.cluster.all(kind)}
        for kind in MADE_FOR_OTHERS:
            for obj in self.cluster.all(kind):
                meta = obj["metadata"]
                references = [owner["uid"] for owner in meta.get("ownerReferences") or ()]
                if meta["name"] in BY_HAND or "deletionTimestamp" in meta:
                    continue
                if not any(owner in uids for owner in references):
                    raise Broken(f"{kind} {meta['name']} has no owner that lives")

    def explained(self) -> None:
        for pod in self.live():
            if pod["spec"].get("nodeName"):
                continue
            announced = [c for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"]
            if not announced or announced[0]["status"] != "False" or not announced[0].get("message"):
                raise Broken(f"pod {pod['metadata']['name']} waits and does not say why")
        if len(self.live()) < self.wanted() and not self.complaints():
            raise Broken(f"{self.kind} wants {self.wanted()} pods, has {len(self.live())}, and does not say why")

    def not_stranded(self) -> None:
        """Where there is room for all of it, all of it runs, unless its user can read what to do."""
        if self.grouped:
            groups = {group["metadata"]["name"]: group for group in self.cluster.all("PodGroup")}
            there = {*groups, *(workload["metadata"]["name"] for workload in self.cluster.all("Workload"))}
            for pod in self.live():
                name = self.group_of(pod).partition("/")[0]
                if pod["spec"].get("nodeName") or not name or name in there:
                    continue
                if name in BY_HAND:  # deleted, and gone with its last pod, or adopted and gone with its owner
                    return  # its author has to make it again
                raise Broken(f"pod {pod['metadata']['name']} waits for PodGroup {name}, which no controller makes")
            going = {name for name, group in groups.items() if "deletionTimestamp" in group["metadata"]}
            if going:  # deleted by hand: who is made next waits until the others are gone
                self.waits_for(going)
                return
        if self.variant.own_group and any(not self.group_of(pod) for pod in self.live()):
            return  # made while the API had no groups: a gang only its author may change waits for as many as before
        running, wanted = len(self.running()), self.wanted()
        if running >= wanted or wanted > self.room() or self.refused() or self.room_is_reserved():
            return
        raise Broken(f"{self.kind} wants {wanted} pods, there is room, and {running} run")

    def waits_for(self, going: set[str]) -> None:
        """Groups that are being deleted have pods in them, and no other pod waits because of them."""
        empty = going - {self.group_of(pod) for pod in self.pods()}
        if empty:
            raise Broken(f"PodGroup {', '.join(sorted(empty))} is deleted, no pod is in it, and it stays")
        waiting = [
            pod["metadata"]["name"]
            for pod in self.live()
            if not pod["spec"].get("nodeName") and self.group_of(pod) not in going
        ]
        if waiting and len(self.running()) < self.wanted() <= self.room() and not self.refused():
            raise Broken(f"{', '.join(waiting)} waits, there is room, and only {', '.join(sorted(going))} is going")

    def room(self) -> int:
        """For how many of its pods, beside those of others."""
        taken: Counter[str] = Counter()
        for pod in self.cluster.all("Pod"):
            if pod["metadata"]["name"].startswith("filler") and pod["spec"].get("nodeName"):
                taken[pod["spec"]["nodeName"]] += int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        return (NODES - len(taken)) * (NODE_CPU // self.cpu) + sum(
            (NODE_CPU - cpu) // self.cpu for cpu in taken.values()
        )

    def refused(self) -> bool:
        """What its user asks for now cannot be: a gang of more than there are, pods of another priority than it."""
        announced = [c.get("message") or "" for pod in self.live() for c in pod["status"].get("conditions") or ()]
        said = {str(event["reason"]) for event in self.events() if event["type"] == "Warning"}
        return any("same priority" in message for message in announced) or (
            bool(said & DOES_NOT_FIT) and self.least_of_its_author() > self.variant.wanted(self.sizes)
        )

    def room_is_reserved(self) -> bool:
        """Return True if its pods name a filler that waits and starves: room is reserved for one (scheduling.md)."""
        announced = [c.get("message") or "" for pod in self.live() for c in pod["status"].get("conditions") or ()]
        starving = [
            pod["metadata"]["name"]
            for pod in self.cluster.all("Pod")
            if pod["metadata"]["name"].startswith("filler")
            and not pod["spec"].get("nodeName")
            and self._age(pod) > ReservationSettings().starvation_seconds
        ]
        return any(f"room is reserved for Pod default/{name}" in message for name in starving for message in announced)

    def _age(self, obj: Json) -> float:
        return self.cluster.clock.now() - parse_rfc3339(obj["metadata"]["creationTimestamp"])

    def least_of_its_author(self) -> int:
        """Pods that its author's Workload wants together."""
        found = self.cluster.get("Workload", "by-hand") if self.grouped else None
        parts = found["spec"].get("podGroupTemplates") or () if found is not None else ()
        return max((part["schedulingPolicy"].get("gang", {}).get("minCount", 0) for part in parts), default=0)

    def complaints(self) -> list[str]:
        """What the user's object says, or the events about it and about what it made."""
        conditions = (self.object.get("status") or {}).get("conditions") or ()
        said = [f"{c['type']} {c.get('message', '')}" for c in conditions if c["status"] != "True" and c.get("message")]
        for event in self.events():
            about = event.get("regarding") or event.get("involvedObject") or {}
            if event["reason"] in NO_PODS and str(about.get("name", "")).startswith(self.name):
                said.append(event.get("note") or event.get("message") or "")
        return said

    def events(self) -> list[Json]:
        """What was reported since this story began."""
        return [event for event in self.cluster.all("Event") if event["metadata"]["creationTimestamp"] >= self.began]

    def nothing_left(self, *, stays: bool = True) -> None:
        """stays: what was made by hand, and other people's pods."""
        left = [
            f"{kind} {obj['metadata']['name']}"
            for kind in LEFT_BEHIND
            if self.cluster.served(kind)
            for obj in self.cluster.all(kind)
            if not (stays and (self._stays(obj) or obj["metadata"]["name"].startswith("filler")))
            and obj["metadata"]["name"] != "kubernetes"
        ]
        if left:
            raise Broken(f"the {self.kind} is gone, and there are still {', '.join(left)}")

    @staticmethod
    def _stays(obj: Json) -> bool:
        """Made by a user, who owns it: a controller that adopted it would have taken it along."""
        meta = obj["metadata"]
        return meta["name"] in BY_HAND and ADOPTED not in (meta.get("annotations") or {})


OWNERS = (
    "Job",
    "JobSet",
    "StatefulSet",
    "Deployment",
    "ReplicaSet",
    "LeaderWorkerSet",
    "CronJob",
    "Workload",
    "MPIJob",
    "TrainJob",
    "RayCluster",
    "PyTorchJob",
)
