"""One simulated kubelet for all simulated nodes: runs the pods bound to them, as annotations say.

It looks after nodes that carry the label `simulation.phalanx.dev/simulated: "true"` and leaves every other node and its
pods alone. It is level-triggered: each step looks at one pod as it is now and does what is due; one write per pod is
under way at a time, and a bounded number in all. Time in pods' lives runs `speed` times as fast as the clock.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import NotFound
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.resources import NODES, PODS
from phalanx.base.tasks import run_all
from phalanx.base.work import WorkQueue
from phalanx.local.nodes import pod_status
from phalanx.local.nodes.fleet import SIMULATED, ready_conditions
from phalanx.local.nodes.in_place_restart_agents import Agent, InPlaceRestartAgents
from phalanx.local.nodes.node_capacity import NodeUsage, amounts, host_ports, no_room, pod_requests, unsuitable
from phalanx.local.nodes.pod_runs import KnownPod, PodName, RunningPod, SimulatedNode, exit_code, starts_again, stopping
from phalanx.local.nodes.pod_status import KubeletEvents
from phalanx.local.nodes.references import Need, missing, needs_of
from phalanx.local.nodes.views import (
    FINISHED,
    READY_SECONDS,
    RUN_SECONDS,
    KubeletContainer,
    KubeletNode,
    KubeletPod,
    glance,
    kept,
    new_offers,
    number,
    read_pod,
)

LONGEST_BACKOFF = 300.0
RESIZE_SECONDS = 10.0  # until a pod that asks for more than its node has left is looked at again
LOOK_AGAIN = 2.0  # seconds until a ConfigMap or Secret that a pod needs is looked for again
NO_CONFIG = "CreateContainerConfigError"  # reason
MANAGER = "kubelet"


class KubeletOptions(msgspec.Struct, frozen=True):
    speed: float = 1.0  # seconds of pods' lives per second of the clock
    start_seconds: float = 0.0  # from bound to Running, in pods' time
    stop_seconds: float = 1.0  # containers need that long after SIGTERM, in pods' time, unless their pod says otherwise
    writes_at_once: int = 32
    heartbeat_seconds: float = 10.0


class SimulatedKubelet:
    def __init__(self, client: Client, clock: Clock, options: KubeletOptions | None = None) -> None:
        self.nodes: dict[str, SimulatedNode] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._clock = clock
        self._teller = KubeletEvents(client, clock)
        self._options = options or KubeletOptions()
        self._pods: dict[PodName, KnownPod] = {}
        self._runs: dict[PodName, RunningPod] = {}
        self._other_pods: dict[str, dict[PodName, None]] = {}  # node name -> pods on nodes not known (yet)
        self._pod_work: WorkQueue[PodName] = WorkQueue("kubelet")
        self._node_work: WorkQueue[str] = WorkQueue("kubelet nodes")
        self._agents = InPlaceRestartAgents(client, self._pod_work.add)

    async def run(self) -> None:
        nodes = Informer(self._client, NODES, KubeletNode, self._on_node, labels=f"{SIMULATED}=true")
        pods = Informer(self._client, PODS, bytes, self._on_pod, fields="spec.nodeName!=")

        async def follow_pods() -> None:
            await nodes.synced.wait()  # a pod on an unknown node belongs to another kubelet
            await pods.run()

        async def work() -> None:
            await pods.synced.wait()
            self.synced.set()
            await run_all(
                (
                    ("pods", self._pod_work.run(self._pod_step, self._options.writes_at_once)),
                    ("nodes", self._node_work.run(self._node_step, 8)),
                )
            )

        await run_all(
            (
                ("node informer", nodes.run()),
                ("pod informer", follow_pods()),
                ("kubelet", work()),
                ("in-place restart agents", self._agents.run()),
            )
        )

    # -- what the watches say -----------------------------------------------------------------------------------

    def _on_node(self, change: ObjectChange[KubeletNode]) -> None:
        known = self.nodes.get(change.name)
        view = kept(change.object) if change.object is not None else None
        if view is None:
            if known is not None:
                del self.nodes[change.name]
                for place in known.pods:
                    self._runs.pop(place, None)
                    self._other_pods.setdefault(change.name, {})[place] = None
            return
        if known is None:
            known = self.nodes[change.name] = SimulatedNode(view, NodeUsage(amounts(view.status.allocatable)))
            for place in self._other_pods.pop(change.name, {}):
                self._arrive(place, self._pods[place], known)
        else:
            recovered = known.failed and not view.must_fail
            if view.status.capacity != known.view.status.capacity:
                known.offers |= new_offers(known.view.status, view.status)
            known.view = view
            known.ledger.allocatable = amounts(view.status.allocatable)
            if recovered:
                for place in known.pods:
                    self._pod_work.add(place)
        if (view.ready == "True") == known.failed or not view.ready or known.offers:
            self._node_work.add(change.name)

    def _on_pod(self, change: ObjectChange[bytes]) -> None:
        place = (change.namespace, change.name)
        before = self._pods.get(place)
        seen = glance(change.object) if change.object is not None else None
        if before is not None and (seen is None or seen.metadata.uid != before.uid):
            self._leave(place, before)
        if seen is None or change.object is None:
            return
        name = seen.spec.node_name
        node = self.nodes.get(name)
        # The node's own string, one of three phases, and a uid that other parts of the process keep too: there are tens
        # of thousands of pods.
        uid = sys.intern(seen.metadata.uid)
        pod = KnownPod(uid, node.name if node else name, sys.intern(seen.status.phase), change.object)
        self._pods[place] = pod
        if node is None:
            self._other_pods.setdefault(name, {})[place] = None
        else:
            self._arrive(place, pod, node)

    def _arrive(self, place: PodName, pod: KnownPod, node: SimulatedNode) -> None:
        node.pods[place] = None
        if pod.phase in FINISHED:
            node.ledger.give_back(pod.uid)
        elif pod.phase == "Running" and place not in self._runs:
            self._resume(place, read_pod(pod.body), node)
        self._pod_work.add(place)

    def _leave(self, place: PodName, pod: KnownPod) -> None:
        del self._pods[place]
        self._runs.pop(place, None)
        self._agents.forget(place)
        other_pods = self._other_pods.get(pod.node)
        if other_pods is not None:
            other_pods.pop(place, None)
            if not other_pods:
                del self._other_pods[pod.node]
        node = self.nodes.get(pod.node)
        if node is not None:
            node.pods.pop(place, None)
            node.ledger.give_back(pod.uid)

    def _resume(self, place: PodName, pod: KubeletPod, node: SimulatedNode) -> None:
        """Track a pod that was started before this process began, from its stored status."""
        try:
            started = parse_rfc3339(pod.status.start_time or "")
        except ValueError:
            started = self._clock.now()
        uid = sys.intern(pod.metadata.uid)
        run = self._runs[place] = RunningPod(uid, node, started, started, pod.restarts, up=True)
        run.held = not pod.containers_ready
        node.ledger.take(uid, pod_requests(pod), host_ports(pod))

    # -- a node -------------------------------------------------------------------------------------------------

    async def _node_step(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None:
            return
        now = rfc3339(self._clock.now())
        if node.offers and not node.failed:
            offers, node.offers = node.offers, {}
            await self._offer(name, offers)
        if node.failed:
            if node.view.ready != "True":
                return
            # The message of a control plane that gets no status from a kubelet.
            gone = {
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": now,
            }
            types = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            conditions = [{"type": type_, **gone} for type_ in types]
        elif node.view.ready == "True":
            return
        else:
            conditions = ready_conditions(now)
        try:
            await self._patch(NODES, name, "", {"status": {"conditions": conditions}})
        except NotFound:
            return

    async def _offer(self, name: str, offers: dict[str, Any]) -> None:
        try:
            await self._patch(NODES, name, "", {"status": {"allocatable": offers}})
        except NotFound:
            return

    # -- a pod --------------------------------------------------------------------------------------------------

    async def _pod_step(self, place: PodName) -> None:
        held = self._pods.get(place)
        node = self.nodes.get(held.node) if held is not None else None
        if held is None or node is None or node.failed:
            return
        pod = read_pod(held.body)
        run = self._runs.get(place)
        try:
            if pod.deleting:
                await self._stop(place, pod, node, run)
            elif pod.finished or (run is not None and run.over):
                return
            elif run is None:
                await self._admit(place, pod, node)
            else:
                await self._live(place, pod, run)
        except NotFound:
            return  # gone meanwhile; any other failure is tried again

    async def _admit(self, place: PodName, pod: KubeletPod, node: SimulatedNode) -> None:
        requests, ports = pod_requests(pod), host_ports(pod)
        now = self._clock.now()
        refusal = unsuitable(pod, node.view) or no_room(node.ledger, requests, ports)
        if refusal is not None:
            await self._write(place, pod, pod_status.rejected(rfc3339(now), *refusal))
            return
        uid = sys.intern(pod.metadata.uid)
        node.ledger.take(uid, requests, ports)
        run = self._runs[place] = RunningPod(uid, node, now, now)
        if self._options.start_seconds > 0:
            self._wake(place, now + self._real(self._options.start_seconds))
        else:
            await self._live(place, pod, run)

    async def _live(self, place: PodName, pod: KubeletPod, run: RunningPod) -> None:
        """Do what is due for an admitted pod, then schedule its next wake-up."""
        now = self._clock.now()
        if not run.up and now < run.pod_started + self._real(self._options.start_seconds):
            return
        agent = self._agents.of(place, pod, self._pods[place].body)
        if agent is not None and await self._follow_agent(agent, run, now):
            await self._exit(place, pod, run, now, agent.exit_code, agent.container(pod))
            return
        await self._report(place, pod, run, now)
        dues: list[float] = [now + RESIZE_SECONDS] if run.deferred else []
        if run.held:
            dues.append(self._ready_at(pod, run))
        limit = pod.spec.active_deadline_seconds
        if limit is not None:
            deadline = run.pod_started + self._real(limit)
            if now >= deadline:
                text = "Pod was active on the node longer than the specified deadline"
                await self._finish(place, pod, run, 137, now, "DeadlineExceeded", text)
                return
            dues.append(deadline)
        if run.back_at is not None:
            if now < run.back_at:
                dues.append(run.back_at)
            else:
                await self._restart(place, pod, run, now)
        seconds = number(pod.metadata.annotations, RUN_SECONDS)
        if seconds is not None and run.up and run.back_at is None and not run.barrier:
            end = run.started + self._real(seconds)
            if now >= end:
                await self._exit(place, pod, run, now, exit_code(pod, run.restarts))
                return
            dues.append(end)
        if dues and (due := min(dues)) < math.inf:
            self._wake(place, due)

    async def _follow_agent(self, agent: Agent, run: RunningPod, now: float) -> bool:
        """Return True if the agent of a pod that restarts in place ends its containers."""
        if run.up and run.back_at is None:
            if await self._agents.wants_restart(agent, run.restarts):
                return True
            if run.barrier and agent.lifted:
                run.started = now  # of the worker
        run.barrier = not agent.lifted
        return False

    async def _report(self, place: PodName, pod: KubeletPod, run: RunningPod, now: float) -> None:
        """Write the next status of a pod, if it is due.

        Its containers wait for images or configuration, start, become ready or unready, or take over a changed spec.
        """
        images = pod.missing if not run.up else []
        if images:
            if run.waits != (pod.metadata.generation, images):
                await self._hold(place, pod, run, now, pod_status.not_pulled(pod))
                run.waits = (pod.metadata.generation, images)
                await self._teller.not_pulled(pod, run.node.name, images)
        elif not run.up and (lacking := await self._lacking(place, pod)):
            texts = list(lacking.values())
            if run.waits != (pod.metadata.generation, texts):
                why = {need.container: (NO_CONFIG, text) for need, text in lacking.items() if need.container}
                await self._hold(place, pod, run, now, why)
                run.waits = (pod.metadata.generation, texts)
                await self._teller.not_configured(pod, run.node.name, lacking)
            self._wake(place, now + LOOK_AGAIN)
        elif not run.up:
            run.started = now
            held, begun = now < self._ready_at(pod, run), rfc3339(run.pod_started)
            status = pod_status.running(pod, run.node.view.ip, begun, rfc3339(now), run.restarts, held=held)
            await self._write(place, pod, status)
            run.up, run.held = True, held
            await self._teller.started(pod, run.node.name)
        elif run.held != (held := now < self._ready_at(pod, run)) and run.back_at is None:
            status = pod_status.held_or_free(pod, rfc3339(run.started), rfc3339(now), run.restarts, held)
            await self._write(place, pod, status)
            run.held = held
        elif run.back_at is None and (
            pod.given_up or (pod.spec.readiness_gates and pod.ready == bool(pod.closed_gates))
        ):
            await self._write(place, pod, pod_status.readiness(pod, rfc3339(now)))
        elif run.deferred or pod.status.observed_generation < pod.metadata.generation:
            status = self._new_spec(pod, run, now)
            if status or pod.status.observed_generation < pod.metadata.generation:
                await self._write(place, pod, status)

    async def _hold(
        self, place: PodName, pod: KubeletPod, run: RunningPod, now: float, why: Mapping[str, tuple[str, str]]
    ) -> None:
        """Report that its containers wait, and what for."""
        begun = rfc3339(run.pod_started)
        await self._write(place, pod, pod_status.waiting(pod, run.node.view.ip, begun, rfc3339(now), why))

    async def _lacking(self, place: PodName, pod: KubeletPod) -> dict[Need, str]:
        """Return the ConfigMaps, Secrets and ClusterTrustBundles without which its containers cannot start."""
        held = self._pods.get(place)
        needs = needs_of(held.body) if held is not None else []
        return await missing(self._client, pod.metadata.namespace, needs) if needs else {}

    def _new_spec(self, pod: KubeletPod, run: RunningPod, now: float) -> dict[str, Any]:
        """Build the status after a change of the spec: ephemeral containers and resized requests.

        A resize that the node has no room for is deferred.
        """
        status = pod_status.looked_into(pod, rfc3339(now))
        requests, ledger = pod_requests(pod), run.node.ledger
        if requests == ledger.pods.get(run.uid, requests):
            if run.deferred:  # taken back
                run.deferred = False
                return status | pod_status.resized(pod, rfc3339(run.started), run.restarts)
            return status
        short = ledger.shortage_for(run.uid, requests)
        if short is None:
            ports = ledger.ports.get(run.uid, ())
            ledger.give_back(run.uid)
            ledger.take(run.uid, requests, ports)
            run.deferred = False
            return status | pod_status.resized(pod, rfc3339(run.started), run.restarts)
        if run.deferred and pod.status.observed_generation == pod.metadata.generation:
            return status  # said already
        run.deferred = True
        never = short.requested > short.capacity
        reason, message = ("Infeasible", short.message) if never else ("Deferred", short.short)
        return status | pod_status.not_resized(rfc3339(now), reason, message)

    async def _exit(
        self,
        place: PodName,
        pod: KubeletPod,
        run: RunningPod,
        now: float,
        code: int,
        container: KubeletContainer | None = None,
    ) -> None:
        """Handle containers that ended by themselves: finish the pod or schedule a restart.

        container: the one whose restart rules decide; None: the first.
        """
        if not starts_again(pod, code, container):
            await self._finish(place, pod, run, code, now)
            return
        run.last_exit = code
        # The first restart is at once; then 10 s, doubling, for failures and completions alike.
        wait = min(LONGEST_BACKOFF, 10.0 * 2 ** (run.restarts - 1)) if run.restarts else 0.0
        if wait:
            started = rfc3339(run.started)
            status = pod_status.restarting(pod, code, started, rfc3339(now), run.restarts, wait)
            await self._write(place, pod, status)
        run.back_at = now + self._real(wait)
        self._wake(place, run.back_at)

    async def _restart(self, place: PodName, pod: KubeletPod, run: RunningPod, now: float) -> None:
        began, run.started = rfc3339(run.started), now
        run.barrier = self._agents.of(place, pod, self._pods[place].body) is not None
        held = now < self._ready_at(pod, run)
        status = pod_status.restarted(pod, run.last_exit, began, rfc3339(now), run.restarts + 1, held)
        await self._write(place, pod, status)
        run.restarts += 1
        run.back_at, run.held = None, held

    async def _finish(
        self,
        place: PodName,
        pod: KubeletPod,
        run: RunningPod,
        code: int,
        now: float,
        reason: str = "",
        message: str = "",
    ) -> None:
        status = pod_status.finished(pod, code, rfc3339(run.started), rfc3339(now), run.restarts, reason, message)
        await self._write(place, pod, status)
        run.over = True
        run.node.ledger.give_back(run.uid)

    async def _stop(self, place: PodName, pod: KubeletPod, node: SimulatedNode, run: RunningPod | None) -> None:
        now = self._clock.now()
        if run is None:  # never admitted, or finished in an earlier life
            run = self._runs[place] = RunningPod(sys.intern(pod.metadata.uid), node, now, now, over=pod.finished)
        if run.deleted:
            return  # finalizers hold it
        if run.up and not run.over and not pod.finished:
            self._plan_stop(pod, run, now)
            if now < run.stop_at:
                self._wake(place, run.stop_at)
                return
            await self._finish(place, pod, run, run.stop_code, now)
        node.ledger.give_back(run.uid)
        await self._client.delete(PODS, place[1], place[0], grace_seconds=0, uid=pod.metadata.uid)
        run.deleted = True

    def _plan_stop(self, pod: KubeletPod, run: RunningPod, now: float) -> None:
        """Return when and how its containers end; planned again after a deletion with a shorter grace period."""
        grace = pod.metadata.deletion_grace_period_seconds
        if run.stopped is not None and grace == run.grace:
            return
        patience = self._options.stop_seconds if grace is None else float(grace)
        seconds, code = stopping(pod, patience, self._options.stop_seconds)
        due = now + self._real(seconds)
        if run.stopped is None:
            run.stopped, run.stop_at, run.stop_code = now, due, code
        elif due < run.stop_at:
            run.stop_at, run.stop_code = due, code
        run.grace = grace

    # -- time and writes ----------------------------------------------------------------------------------------

    def _real(self, seconds: float) -> float:
        """Convert seconds of the pods' time to seconds of the clock."""
        return seconds / self._options.speed

    def _ready_at(self, pod: KubeletPod, run: RunningPod) -> float:
        """Return when its containers are ready: at once, unless an annotation or a barrier says otherwise."""
        if run.barrier:
            return math.inf
        seconds = number(pod.metadata.annotations, READY_SECONDS)
        return run.started if seconds is None else run.started + self._real(seconds)

    def _wake(self, place: PodName, when: float) -> None:
        self._pod_work.add_after(place, max(0.0, when - self._clock.now()) + 0.001)

    async def _write(self, place: PodName, pod: KubeletPod, status: dict[str, Any]) -> None:
        seen = pod.metadata.generation  # which spec this status is about
        if seen:
            for condition in status.get("conditions") or ():
                condition["observedGeneration"] = seen
            status = {"observedGeneration": seen, **status}
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        await self._patch(PODS, place[1], place[0], body)

    async def _patch(self, resource: Resource, name: str, namespace: str, body: dict[str, Any]) -> None:
        await self._client.patch(
            resource,
            name,
            body,
            namespace,
            patch_type="application/strategic-merge-patch+json",
            subresource="status",
            field_manager=MANAGER,
        )
