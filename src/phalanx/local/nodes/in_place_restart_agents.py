"""Simulate the agent container in pods of a JobSet with the restart strategy InPlaceRestart (JobSet's KEP-467).

A pod has an agent if one of its containers has the environment variables JOBSET_NAME and POD_NAME, which upstream's
agent reads. The agent writes the attempt of its containers as an annotation of the pod and lets the worker wait until
the JobSet's status names that attempt as the current one. It exits when the status says that the attempt is over, so
that the kubelet restarts the pod's containers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from phalanx.base.client import Client
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.resources import JOB_SETS, PODS
from phalanx.base.well_known import IN_PLACE_RESTART_ATTEMPT, JOB_SET_NAME
from phalanx.local.nodes.pod_runs import PodName
from phalanx.local.nodes.views import KubeletContainer, KubeletPod
from phalanx.model.annotation_values import MAX_INT32, BadValue, whole_number
from phalanx.model.objects.meta import Struct

DISABLED = "jobset.sigs.k8s.io/disable-in-place-restart"  # annotation of a JobSet: agents let their workers run
EXIT_CODE = "IN_PLACE_RESTART_EXIT_CODE"
USUAL_EXIT_CODE = 1
MANAGER = "in-place-restart-agent"


class _Variable(Struct, frozen=True, gc=False):
    name: str = ""
    value: str = ""


class _Container(Struct, frozen=True, gc=False):
    name: str = ""
    env: list[_Variable] | None = None


class _PodSpec(Struct, frozen=True, gc=False):
    containers: list[_Container] = msgspec.field(default_factory=list)
    init_containers: list[_Container] | None = None


class _Pod(Struct, frozen=True, gc=False):
    spec: _PodSpec = _PodSpec()


class _Metadata(Struct, frozen=True, gc=False):
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _FailurePolicy(Struct, frozen=True, gc=False):
    restart_strategy: str = ""


class _JobSetSpec(Struct, frozen=True, gc=False):
    failure_policy: _FailurePolicy | None = None


class _JobSetStatus(Struct, frozen=True, gc=False):
    current_in_place_restart_attempt: int | None = None
    previous_in_place_restart_attempt: int | None = None


class JobSetView(Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    spec: _JobSetSpec = _JobSetSpec()
    status: _JobSetStatus = _JobSetStatus()

    @property
    def restarts_in_place(self) -> bool:
        policy = self.spec.failure_policy
        in_place = policy is not None and policy.restart_strategy == "InPlaceRestart"
        return in_place and DISABLED not in self.metadata.annotations


class Agent(msgspec.Struct):
    """The agent of one pod."""

    place: PodName
    uid: str
    jobset: PodName
    name: str  # of its container
    exit_code: int
    run: int | None = None  # the run of the containers to which `attempt` belongs
    attempt: int = 0
    lifted: bool = False  # the worker may run

    def container(self, pod: KubeletPod) -> KubeletContainer | None:
        every = (*pod.spec.containers, *(pod.spec.init_containers or ()))
        return next((container for container in every if container.name == self.name), None)


_read_pod = msgspec.json.Decoder(_Pod).decode


class InPlaceRestartAgents:
    def __init__(self, client: Client, wake: Callable[[PodName], None]) -> None:
        """wake: called with each pod whose JobSet changed."""
        self._client, self._wake = client, wake
        self._needed = asyncio.Event()
        self._agents: dict[PodName, Agent | None] = {}  # None: a pod of a JobSet without an agent
        self._pods: dict[PodName, dict[PodName, None]] = {}  # JobSet -> its pods with agents
        self._sets: dict[PodName, JobSetView] = {}

    async def run(self) -> None:
        """Wait for the first pod with an agent, then watch JobSets."""
        await self._needed.wait()
        await Informer(self._client, JOB_SETS, JobSetView, self._on_set, optional=True).run()

    def _on_set(self, change: ObjectChange[JobSetView]) -> None:
        key = (change.namespace, change.name)
        if change.object is None:
            self._sets.pop(key, None)
        else:
            self._sets[key] = change.object
        for place in self._pods.get(key, ()):
            self._wake(place)

    def of(self, place: PodName, pod: KubeletPod, body: bytes) -> Agent | None:
        if JOB_SET_NAME not in pod.metadata.annotations:
            return None
        if place not in self._agents:
            agent = self._agents[place] = _agent(place, pod, body)
            if agent is not None:
                self._pods.setdefault(agent.jobset, {})[place] = None
                self._needed.set()
        return self._agents[place]

    def forget(self, place: PodName) -> None:
        agent = self._agents.pop(place, None)
        if agent is not None:
            pods = self._pods[agent.jobset]
            del pods[place]
            if not pods:
                del self._pods[agent.jobset]

    async def wants_restart(self, agent: Agent, run: int) -> bool:
        """Perform the next action in this run of the pod's containers; return True if the agent exits."""
        jobset = self._sets.get(agent.jobset)
        if jobset is None:
            return False
        if not jobset.restarts_in_place:
            agent.lifted = True
            return False
        current = jobset.status.current_in_place_restart_attempt
        previous = jobset.status.previous_in_place_restart_attempt
        if agent.run != run:
            attempt = 0 if current is None else current + 1
            await self._announce(agent, attempt)
            agent.run, agent.attempt, agent.lifted = run, attempt, False
        if previous is not None and agent.attempt <= previous:
            agent.lifted = False
            return True
        agent.lifted = agent.lifted or agent.attempt == current
        return False

    async def _announce(self, agent: Agent, attempt: int) -> None:
        metadata = {"uid": agent.uid, "annotations": {IN_PLACE_RESTART_ATTEMPT: str(attempt)}}
        namespace, name = agent.place
        await self._client.patch(PODS, name, {"metadata": metadata}, namespace, field_manager=MANAGER)


def _agent(place: PodName, pod: KubeletPod, body: bytes) -> Agent | None:
    spec = _read_pod(body).spec
    for container in (*(spec.init_containers or ()), *spec.containers):
        environment = {variable.name: variable.value for variable in container.env or ()}
        if not {"JOBSET_NAME", "POD_NAME"} <= environment.keys():
            continue
        jobset = (place[0], pod.metadata.annotations[JOB_SET_NAME])
        code = _whole(environment.get(EXIT_CODE), 255, USUAL_EXIT_CODE)
        agent = Agent(place, pod.metadata.uid, jobset, container.name, code)
        written = _whole(pod.metadata.annotations.get(IN_PLACE_RESTART_ATTEMPT), MAX_INT32, -1)
        if written >= 0:  # by the agent, before this process was restarted
            agent.run, agent.attempt, agent.lifted = pod.restarts, written, pod.ready
        return agent
    return None


def _whole(text: str | None, most: int, otherwise: int) -> int:
    try:
        return whole_number(text or "", 0, most)
    except BadValue:
        return otherwise
