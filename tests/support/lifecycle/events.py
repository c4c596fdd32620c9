"""What may happen to a workload. Each event says which running pods it may end (None: all of them)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from phalanx.base.errors import ApiProblem, NotFound
from phalanx.model.gates import Gates
from support.lifecycle.crashes import Crash
from support.lifecycle.manifests import template
from support.lifecycle.run import BY_HAND, MADE_BY_HAND, NODE_CPU, QUIET, Json, Life, Uids

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
OVER = ("Complete", "Completed", "Succeeded", "Failed")
CLASS = "class-of-w"
POLICY_API = "scheduling.phalanx.dev/v1alpha1"


def priority_class(value: int) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": CLASS},
        "value": value,
    }


class Happenings(Life):
    crash: Crash

    async def make(self) -> Uids | None:
        for obj in self.variant.make(self):
            if obj["metadata"]["name"] not in BY_HAND or self.cluster.get(obj["kind"], obj["metadata"]["name"]) is None:
                await self.cluster.apply(obj)
        return set()

    async def scale(self) -> Uids | None:
        assert self.variant.scale is not None
        (key,) = self.sizes
        before, now = self.sizes[key], self.rng.choice([1, 2, 2, 3, 3, 4])
        self.sizes[key] = now
        await self.cluster.patch(self.kind, self.name, self.variant.scale(self, now))
        return set() if now >= before else None

    async def restart(self) -> Uids | None:
        """A user deletes a pod."""
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
        if self.variant.restarts:  # a replica, or the whole set, restarts with its pod
            whole = self.kind != "LeaderWorkerSet"
            return {p["metadata"]["uid"] for p in running if whole or self.group_of(p) == group}
        return {victim["metadata"]["uid"]}

    async def suspend(self) -> Uids | None:
        self.suspended = True
        await self.cluster.patch(self.kind, self.name, self.variant.suspend(True))
        return None

    async def resume(self) -> Uids | None:
        self.suspended = False
        await self.cluster.patch(self.kind, self.name, self.variant.suspend(False))
        return set()

    async def roll(self) -> Uids | None:
        """A new image, and whatever else the template says by now."""
        pods = template(str(self.cpu))
        self.image = pods["spec"]["containers"][0]["image"] = f"v{self.rng.randint(1, 9)}"
        if self.priority:
            pods["spec"]["priorityClassName"] = self.priority
        await self.cluster.patch(self.kind, self.name, self.variant.template(pods))
        for name, _, _ in self.gangs():
            self.excused.add(name)
        return None

    async def priority_changed(self) -> Uids | None:
        """The class of its pods is made again with another value, or its template names another class."""
        if not self.variant.fixed and self.rng.random() < 0.5:
            self.priority = "" if self.priority else CLASS
            return await self.roll()
        await self.cluster.delete("PriorityClass", CLASS)
        await self.cluster.apply(priority_class(self.rng.choice([100, 200, 300])))
        return set()

    async def finish(self) -> Uids | None:
        """Whatever runs succeeds; when the whole is over it goes by itself or by its user, and is made again."""
        done = {"status": {"phase": "Succeeded"}}
        running = [p for p in self.running() if self.kind != "MPIJob" or "launcher" in p["metadata"]["name"]]
        for pod in running:
            await self.cluster.patch("Pod", pod["metadata"]["name"], done, subresource="status")
        self.excused.update(self.group_of(pod) for pod in self.pods())
        await self.cluster.settle(20, 200)
        found = self.cluster.get(self.kind, self.name)
        conditions = ((found or {}).get("status") or {}).get("conditions") or ()
        if found is not None and not any(c["type"] in OVER and c["status"] == "True" for c in conditions):
            self.succeeded += len(running)  # only a part of it ran
            return None
        self.ended = True
        if found is None or (self.ttl is not None and self.variant.goes_by_itself):
            await self.cluster.settle(QUIET)
            self.nothing_left()
            await self._make_again()
            return None
        self.check("finish", {}, None)
        return await self.again()

    async def policy(self) -> Uids | None:
        """Its user writes, changes or deletes a WorkloadPolicy; only what is left of a broken gang may end by it."""
        rng, name = self.rng, f"policy-of-{self.name}"
        if not self.cluster.served("WorkloadPolicy"):
            return set()
        spec: Json = {
            "targetRef": {"kind": self.kind, "name": self.name},
            "rescheduling": {
                "policy": rng.choice(["Keep", "Shrink", "Replace", "TerminateAll", "TerminateAll", "Nonsense"]),
                "graceSeconds": rng.choice([-1, 0, 2]),
                "backoffSeconds": rng.choice([0, 2]),
                "maxRestarts": rng.choice([-1, 1, 1000]),
            },
            "timeouts": {"scheduleSeconds": rng.choice([0, 5, 10**10]), "membersSeconds": rng.choice([-1, 5])},
            "ranks": {"placement": rng.choice(["Any", "Pack", "Stripe", "Balance", "Heap"]), "coPlaceWith": "nothing"},
        }
        if self.cluster.get("WorkloadPolicy", name) is None:
            meta = {"name": name}
            await self.cluster.apply(
                {"apiVersion": POLICY_API, "kind": "WorkloadPolicy", "metadata": meta, "spec": spec}
            )
        elif rng.random() < 0.5:
            await self.cluster.patch("WorkloadPolicy", name, {"spec": spec})
        else:
            await self.cluster.delete("WorkloadPolicy", name)
        return set()

    async def adopt(self) -> Uids | None:
        """Its user writes a Workload for it, while it is there."""
        if self.grouped and self.cluster.get("Workload", "by-hand") is None:
            await self.cluster.apply(self.workload())
        return set()

    def workload(self) -> Json:
        group = self.cluster.api_version_of(self.kind).rpartition("/")[0]
        least = self.rng.randint(1, max(1, self.variant.wanted(self.sizes)))
        gang = {"basic": {}} if self.kind in ("Deployment", "ReplicaSet") else {"gang": {"minCount": min(least, 2)}}
        return {
            "apiVersion": self.cluster.api_version_of("Workload"),
            "kind": "Workload",
            "metadata": {"name": "by-hand"},
            "spec": {
                "controllerRef": {"apiGroup": group, "kind": self.kind, "name": self.name},
                "podGroupTemplates": [{"name": "all", "schedulingPolicy": gang}],
            },
        }

    async def again(self) -> Uids | None:
        """Deleted and made again, at once or when it is gone."""
        await self.delete()
        if self.rng.random() < 0.5:
            await self.cluster.settle(QUIET)
        await self._make_again()
        return None

    async def _make_again(self) -> None:
        self.suspended = self.ended = False
        if not self._made_by_hand() and self.rng.random() < 0.5:  # with other sizes
            self.sizes, self.cpu = self.variant.sizes(self.rng), self.rng.choice([1, 2, 3, 3])
        self.completions, self.succeeded = self.sizes.get("parallelism", 0), 0
        for _ in range(30):  # kubectl apply of a name that is still going is refused, and its user tries again
            try:
                await self.make()
                break
            except ApiProblem:
                await self.cluster.settle(1, 2)

    async def delete(self) -> None:
        how = self.rng.choice(["Background", "Foreground"])
        await self.cluster.delete(self.kind, self.name, propagation=how)

    async def leave(self) -> None:
        """The workload is gone; its user also deletes what belongs to it."""
        await self.relieve()
        for kind, name in self._made_by_hand():
            await self.cluster.delete(kind, name)
        await self.cluster.delete("PriorityClass", CLASS)
        await self.cluster.settle(QUIET)
        self.nothing_left(stays=False)

    def _made_by_hand(self) -> list[tuple[str, str]]:
        """What its user made beside it, for the sizes it had then."""
        served = filter(self.cluster.served, MADE_BY_HAND)
        return [(kind, name) for kind in served for name in BY_HAND if self.cluster.get(kind, name) is not None]

    async def group_deleted(self) -> Uids | None:
        groups = self.cluster.all("PodGroup") if self.grouped else []
        if groups:
            name = self.rng.choice(groups)["metadata"]["name"]
            self.excused.add(name)
            await self.cluster.delete("PodGroup", name)
            if name in BY_HAND:  # no controller makes it again
                await self.cluster.settle(QUIET)
                for obj in self.variant.make(self):
                    if obj["metadata"]["name"] == name and self.cluster.get("PodGroup", name) is None:
                        await self.cluster.apply(obj)
        return set()

    async def crash_controllers(self) -> Uids | None:
        await self.cluster.kill("controllers")
        if self.variant.beside:  # pods that are made meanwhile pass no webhook
            self.all_excused = True
        await self.cluster.start_controllers()
        return set()

    async def crash_mid_write(self) -> Uids | None:
        """The controllers die at some write of what they do about another event."""
        names = [name for name in self.variant.events if not name.startswith(("crash", "gates"))]
        event = self.rng.choice(names)
        self.crash.arm(self.rng.randint(1, 6), answered=self.rng.random() < 0.5)
        reviving = asyncio.create_task(self._revive())
        try:
            replaced: Uids | None = await getattr(self, event)()
            await self.cluster.settle(QUIET)
        finally:
            self.crash.disarm()
            if self.crash.crashed.is_set():
                await reviving
            reviving.cancel()
        return replaced

    async def _revive(self) -> None:
        await self.crash.crashed.wait()
        await self.crash_controllers()

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
        lost: Uids = set()
        if self.rng.random() < 0.5 and self.kind != "CronJob":
            lost = await self.restart() or set()  # what is made meanwhile is in no group
            await self.cluster.settle(QUIET)
        self.excused.update(self.group_of(pod) for pod in self.pods())  # without gangs each pod starts for itself
        await self.cluster.switch_gates(before)
        return lost

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
                with suppress(NotFound):  # one that terminates may be gone meanwhile
                    await self.cluster.delete("Pod", pod["metadata"]["name"])
        return set()

    async def tick(self) -> Uids | None:
        """The next run of a CronJob comes and ends."""
        await self.cluster.settle(1, 1900)
        return None
