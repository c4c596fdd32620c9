"""One simulated kubelet for all simulated nodes: runs the pods bound to them, controlled by annotations.

It manages nodes with the label `simulation.phalanx.dev/simulated: "true"` and ignores all other nodes and their pods.
It is level-triggered: each step reads the current state of one pod and does what is due. At most one write per pod is
under way, and a limited number in total. Time in pods runs `speed` times as fast as the clock.
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
from phalanx.local.nodes.node_capacity import NodeUsage, amounts, host_ports, insufficient, pod_requests, unsupported
from phalanx.local.nodes.pod_runs import (
    KnownPod,
    PodName,
    RunningPod,
    SimulatedNode,
    exit_code,
    termination,
    will_restart,
)
from phalanx.local.nodes.pod_status import KubeletEvents
from phalanx.local.nodes.references import Need, missing, needs_of
from phalanx.local.nodes.views import (
    FINISHED,
    READY_SECONDS,
    RUN_SECONDS,
    KubeletContainer,
    KubeletNode,
    KubeletPod,
    decode_summary,
    new_offers,
    number,
    read_pod,
    without_unused,
)

LONGEST_BACKOFF = 300.0
RESIZE_RETRY_SECONDS = 10.0  # between two attempts of a resize that does not fit on the node
REFERENCE_RETRY_SECONDS = 2.0  # seconds between two checks for a missing ConfigMap or Secret
NO_CONFIG = "CreateContainerConfigError"  # reason
MANAGER = "kubelet"


class KubeletOptions(msgspec.Struct, frozen=True):
    speed: float = 1.0  # seconds in pods per second of the clock
    start_seconds: float = 0.0  # from bound to Running, in pod time
    stop_seconds: float = 1.0  # default time that containers need after SIGTERM, in pod time
    writes_at_once: int = 32
    heartbeat_seconds: float = 10.0


class SimulatedKubelet:
    def __init__(self, client: Client, clock: Clock, options: KubeletOptions | None = None) -> None:
        self.nodes: dict[str, SimulatedNode] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._clock = clock
        self._events = KubeletEvents(client, clock)
        self._options = options or KubeletOptions()
        self._pods: dict[PodName, KnownPod] = {}
        self._runs: dict[PodName, RunningPod] = {}
        self._other_pods: dict[str, dict[PodName, None]] = {}  # node name -> pods on nodes that are not known (yet)
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
            pod_work = self._pod_work.run(self._pod_step, self._options.writes_at_once)
            await run_all([("pods", pod_work), ("nodes", self._node_work.run(self._node_step, 8))])

        parts = [("node informer", nodes.run()), ("pod informer", follow_pods()), ("kubelet", work())]
        await run_all([*parts, ("in-place restart agents", self._agents.run())])

    # -- watches ------------------------------------------------------------------------------------------------

    def _on_node(self, change: ObjectChange[KubeletNode]) -> None:
        known = self.nodes.get(change.name)
        view = without_unused(change.object) if change.object is not None else None
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
                self._add_pod(place, self._pods[place], known)
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
        seen = decode_summary(change.object) if change.object is not None else None
        if before is not None and (seen is None or seen.metadata.uid != before.uid):
            self._remove_pod(place, before)
        if seen is None or change.object is None:
            return
        name = seen.spec.node_name
        node = self.nodes.get(name)
        # Shared strings save memory: node name, one of three phases, and a uid that other components store too.
        uid = sys.intern(seen.metadata.uid)
        pod = KnownPod(uid, node.name if node else name, sys.intern(seen.status.phase), change.object)
        self._pods[place] = pod
        if node is None:
            self._other_pods.setdefault(name, {})[place] = None
        else:
            self._add_pod(place, pod, node)

    def _add_pod(self, place: PodName, pod: KnownPod, node: SimulatedNode) -> None:
        node.pods[place] = None
        if pod.phase in FINISHED:
            node.ledger.release(pod.uid)
        elif pod.phase == "Running" and place not in self._runs:
            self._restore_run(place, read_pod(pod.body), node)
        self._pod_work.add(place)

    def _remove_pod(self, place: PodName, pod: KnownPod) -> None:
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
            node.ledger.release(pod.uid)

    def _restore_run(self, place: PodName, pod: KubeletPod, node: SimulatedNode) -> None:
        """Track a pod that was started before a restart of this process, from its stored status."""
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
            await self._write_offers(name, offers)
        if node.failed:
            if node.view.ready != "True":
                return
            # The message of the node controller for a kubelet that reports no status.
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

    async def _write_offers(self, name: str, offers: dict[str, Any]) -> None:
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
            elif pod.finished or (run is not None and run.ended):
                return
            elif run is None:
                await self._admit(place, pod, node)
            else:
                await self._sync_pod(place, pod, run)
        except NotFound:
            return  # deleted meanwhile; the queue retries any other failure

    async def _admit(self, place: PodName, pod: KubeletPod, node: SimulatedNode) -> None:
        requests, ports = pod_requests(pod), host_ports(pod)
        now = self._clock.now()
        refusal = unsupported(pod, node.view) or insufficient(node.ledger, requests, ports)
        if refusal is not None:
            await self._write(place, pod, pod_status.rejected(rfc3339(now), *refusal))
            return
        uid = sys.intern(pod.metadata.uid)
        node.ledger.take(uid, requests, ports)
        run = self._runs[place] = RunningPod(uid, node, now, now)
        if self._options.start_seconds > 0:
            self._wake(place, now + self._clock_seconds(self._options.start_seconds))
        else:
            await self._sync_pod(place, pod, run)

    async def _sync_pod(self, place: PodName, pod: KubeletPod, run: RunningPod) -> None:
        """Perform the actions that are due for an admitted pod, then schedule the next step."""
        now = self._clock.now()
        if not run.up and now < run.pod_started + self._clock_seconds(self._options.start_seconds):
            return
        agent = self._agents.of(place, pod, self._pods[place].body)
        if agent is not None and await self._follow_agent(agent, run, now):
            await self._exit(place, pod, run, now, agent.exit_code, agent.container(pod))
            return
        await self._report(place, pod, run, now)
        due_times: list[float] = [now + RESIZE_RETRY_SECONDS] if run.deferred else []
        if run.held:
            due_times.append(self._ready_at(pod, run))
        limit = pod.spec.active_deadline_seconds
        if limit is not None:
            deadline = run.pod_started + self._clock_seconds(limit)
            if now >= deadline:
                text = "Pod was active on the node longer than the specified deadline"
                await self._finish(place, pod, run, 137, now, "DeadlineExceeded", text)
                return
            due_times.append(deadline)
        if run.restart_at is not None:
            if now < run.restart_at:
                due_times.append(run.restart_at)
            else:
                await self._restart(place, pod, run, now)
        seconds = number(pod.metadata.annotations, RUN_SECONDS)
        if seconds is not None and run.up and run.restart_at is None and not run.barrier:
            end = run.started + self._clock_seconds(seconds)
            if now >= end:
                await self._exit(place, pod, run, now, exit_code(pod, run.restarts))
                return
            due_times.append(end)
        if due_times and (due := min(due_times)) < math.inf:
            self._wake(place, due)

    async def _follow_agent(self, agent: Agent, run: RunningPod, now: float) -> bool:
        """Return True if the agent of a pod that restarts in place ends its containers now."""
        if run.up and run.restart_at is None:
            if await self._agents.wants_restart(agent, run.restarts):
                return True
            if run.barrier and agent.lifted:
                run.started = now  # of the worker
        run.barrier = not agent.lifted
        return False

    async def _report(self, place: PodName, pod: KubeletPod, run: RunningPod, now: float) -> None:
        """Write the next status of a pod, if it is due.

        Its containers wait for images or configuration, start, become ready or unready, or get a changed spec.
        """
        images = pod.missing if not run.up else []
        if images:
            if run.reported_waiting != (pod.metadata.generation, images):
                await self._report_waiting(place, pod, run, now, pod_status.not_pulled(pod))
                run.reported_waiting = (pod.metadata.generation, images)
                await self._events.not_pulled(pod, run.node.name, images)
        elif not run.up and (absent := await self._missing_references(place, pod)):
            texts = list(absent.values())
            if run.reported_waiting != (pod.metadata.generation, texts):
                mounted = not any(need.volume for need in absent)
                why = {need.container: (NO_CONFIG, text) for need, text in absent.items() if mounted}
                await self._report_waiting(place, pod, run, now, why)
                run.reported_waiting = (pod.metadata.generation, texts)
                await self._events.not_configured(pod, run.node.name, absent)
            self._wake(place, now + REFERENCE_RETRY_SECONDS)
        elif not run.up:
            run.started = now
            held, begun = now < self._ready_at(pod, run), rfc3339(run.pod_started)
            status = pod_status.running(pod, run.node.view.ip, begun, rfc3339(now), run.restarts, held=held)
            await self._write(place, pod, status)
            run.up, run.held = True, held
            await self._events.started(pod, run.node.name)
        elif run.held != (held := now < self._ready_at(pod, run)) and run.restart_at is None:
            status = pod_status.readiness_changed(pod, rfc3339(run.started), rfc3339(now), run.restarts, held)
            await self._write(place, pod, status)
            run.held = held
        elif run.restart_at is None and (
            pod.marked_unready or (pod.spec.readiness_gates and pod.ready == bool(pod.closed_gates))
        ):
            await self._write(place, pod, pod_status.readiness(pod, rfc3339(now)))
        elif run.deferred or pod.status.observed_generation < pod.metadata.generation:
            status = self._new_spec(pod, run, now)
            if status or pod.status.observed_generation < pod.metadata.generation:
                await self._write(place, pod, status)

    async def _report_waiting(
        self, place: PodName, pod: KubeletPod, run: RunningPod, now: float, why: Mapping[str, tuple[str, str]]
    ) -> None:
        """Report why its containers wait."""
        begun = rfc3339(run.pod_started)
        await self._write(place, pod, pod_status.waiting(pod, run.node.view.ip, begun, rfc3339(now), why))

    async def _missing_references(self, place: PodName, pod: KubeletPod) -> dict[Need, str]:
        """Return the missing ConfigMaps, Secrets and ClusterTrustBundles that its containers need to start."""
        held = self._pods.get(place)
        needs = needs_of(held.body) if held is not None else []
        return await missing(self._client, pod.metadata.namespace, needs) if needs else {}

    def _new_spec(self, pod: KubeletPod, run: RunningPod, now: float) -> dict[str, Any]:
        """Build the status after a change of the spec: ephemeral containers and resized requests.

        A resize that does not fit on the node is deferred.
        """
        status = pod_status.ephemeral_running(pod, rfc3339(now))
        requests, ledger = pod_requests(pod), run.node.ledger
        if requests == ledger.pods.get(run.uid, requests):
            if run.deferred:  # the user undid the resize
                run.deferred = False
                return status | pod_status.resized(pod, rfc3339(run.started), run.restarts)
            return status
        short = ledger.shortage_for(run.uid, requests)
        if short is None:
            ports = ledger.ports.get(run.uid, ())
            ledger.release(run.uid)
            ledger.take(run.uid, requests, ports)
            run.deferred = False
            return status | pod_status.resized(pod, rfc3339(run.started), run.restarts)
        if run.deferred and pod.status.observed_generation == pod.metadata.generation:
            return status  # reported already
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
        if not will_restart(pod, code, container):
            await self._finish(place, pod, run, code, now)
            return
        run.last_exit = code
        # The first restart is immediate; the next ones wait 10 s, doubling, after failures and completions.
        wait = min(LONGEST_BACKOFF, 10.0 * 2 ** (run.restarts - 1)) if run.restarts else 0.0
        if wait:
            started = rfc3339(run.started)
            status = pod_status.restarting(pod, code, started, rfc3339(now), run.restarts, wait)
            await self._write(place, pod, status)
        run.restart_at = now + self._clock_seconds(wait)
        self._wake(place, run.restart_at)

    async def _restart(self, place: PodName, pod: KubeletPod, run: RunningPod, now: float) -> None:
        began, run.started = rfc3339(run.started), now
        run.barrier = self._agents.of(place, pod, self._pods[place].body) is not None
        held = now < self._ready_at(pod, run)
        status = pod_status.restarted(pod, run.last_exit, began, rfc3339(now), run.restarts + 1, held)
        await self._write(place, pod, status)
        run.restarts += 1
        run.restart_at, run.held = None, held

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
        run.ended = True
        run.node.ledger.release(run.uid)

    async def _stop(self, place: PodName, pod: KubeletPod, node: SimulatedNode, run: RunningPod | None) -> None:
        now = self._clock.now()
        if run is None:  # never admitted, or finished before a restart of this process
            run = self._runs[place] = RunningPod(sys.intern(pod.metadata.uid), node, now, now, ended=pod.finished)
        if run.deleted:
            return  # finalizers keep the object
        if not run.ended and not pod.finished:
            if run.up:
                self._plan_termination(pod, run, now)
                if now < run.stop_at:
                    self._wake(place, run.stop_at)
                    return
            await self._finish(place, pod, run, run.stop_code, now)
        node.ledger.release(run.uid)
        await self._client.delete(PODS, place[1], place[0], grace_seconds=0, uid=pod.metadata.uid)
        run.deleted = True

    def _plan_termination(self, pod: KubeletPod, run: RunningPod, now: float) -> None:
        """Compute when and how its containers end; compute it again after a deletion with a shorter grace period."""
        grace = pod.metadata.deletion_grace_period_seconds
        if run.stopped is not None and grace == run.grace:
            return
        patience = self._options.stop_seconds if grace is None else float(grace)
        seconds, code = termination(pod, patience, self._options.stop_seconds)
        due = now + self._clock_seconds(seconds)
        if run.stopped is None:
            run.stopped, run.stop_at, run.stop_code = now, due, code
        elif due < run.stop_at:
            run.stop_at, run.stop_code = due, code
        run.grace = grace

    # -- time and writes ----------------------------------------------------------------------------------------

    def _clock_seconds(self, seconds: float) -> float:
        """Convert seconds of pod time to seconds of the clock."""
        return seconds / self._options.speed

    def _ready_at(self, pod: KubeletPod, run: RunningPod) -> float:
        """Return when its containers are ready: at their start, unless an annotation or a barrier delays it."""
        if run.barrier:
            return math.inf
        seconds = number(pod.metadata.annotations, READY_SECONDS)
        return run.started if seconds is None else run.started + self._clock_seconds(seconds)

    def _wake(self, place: PodName, when: float) -> None:
        self._pod_work.add_after(place, max(0.0, when - self._clock.now()) + 0.001)

    async def _write(self, place: PodName, pod: KubeletPod, status: dict[str, Any]) -> None:
        """Patch the status of a pod, with the generation that it describes."""
        seen = pod.metadata.generation  # of the spec that this status describes
        explained = {condition.type for condition in pod.status.conditions or () if condition.reason}
        for condition in status.get("conditions") or () if explained else ():
            if condition["type"] in explained and "$patch" not in condition:
                condition |= {"reason": condition.get("reason"), "message": condition.get("message")}
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
