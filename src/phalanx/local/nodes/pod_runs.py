"""The state that the simulated kubelet keeps of its nodes and of the pods that it runs."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from phalanx.local.nodes.node_capacity import NodeUsage
from phalanx.local.nodes.views import EXIT_CODE, STOP_SECONDS, KubeletContainer, KubeletNode, KubeletPod, number
from phalanx.model import annotation_values

PodName = tuple[str, str]  # (namespace, name) of a pod


class SimulatedNode(msgspec.Struct):
    view: KubeletNode
    ledger: NodeUsage
    pods: dict[PodName, None] = field(default_factory=dict)
    offers: dict[str, Any] = field(default_factory=dict)  # changes of allocatable to write; None removes a resource

    @property
    def name(self) -> str:
        return self.view.metadata.name

    @property
    def failed(self) -> bool:
        return self.view.must_fail


class KnownPod(msgspec.Struct):
    """The latest version of a pod; decoded only while it is handled."""

    uid: str
    node: str
    phase: str
    body: bytes


class RunningPod(msgspec.Struct):
    """A pod that was admitted. Times are in seconds of the clock."""

    uid: str
    node: SimulatedNode
    pod_started: float
    started: float  # when the current run of its containers started
    restarts: int = 0
    up: bool = False  # phase Running was written
    held: bool = False  # its containers were written as not ready
    barrier: bool = False  # an agent lets its worker wait (restarts in place)
    reported_waiting: tuple[int, list[str]] | None = None  # generation and missing images or objects, as written
    restart_at: float | None = None  # time of the next restart, while it waits for it
    last_exit: int = 0
    stopped: float | None = None  # when it began to stop
    stop_at: float = 0.0
    stop_code: int = 137  # 128 + SIGKILL if its containers never started
    grace: int | None = None  # seconds, from the deletion that stops it
    deferred: bool = False  # a resize does not fit on its node
    ended: bool = False  # a final phase was written
    deleted: bool = False


# Containers of a deleted pod end by themselves or are killed. As in a real kubelet, preStop hooks run first and use up
# the grace period; the rest of it (at least two seconds) follows SIGTERM, and then comes SIGKILL. The pod ends with its
# slowest container.

TERMINATED, KILLED = 143, 137  # 128 + SIGTERM, 128 + SIGKILL
LEAST_AFTER_HOOK = 2.0  # seconds left to containers after their preStop hook


def termination(pod: KubeletPod, grace: float, usual: float) -> tuple[float, int]:
    """Return the seconds from the deletion to the end of the last container, and its exit code."""
    announced = number(pod.metadata.annotations, STOP_SECONDS)
    needed = usual if announced is None else announced
    sidecars = (c for c in pod.spec.init_containers or () if c.restart_policy == "Always")
    return max((_container_end(c, needed, grace) for c in (*pod.spec.containers, *sidecars)), default=(0.0, 0))


def _container_end(container: KubeletContainer, needed: float, grace: float) -> tuple[float, int]:
    hook = container.lifecycle.pre_stop if container.lifecycle is not None else None
    sleep = float(hook.sleep.seconds) if hook is not None and hook.sleep is not None else 0.0
    sleep = min(sleep, grace)
    allowed = max(grace - sleep, LEAST_AFTER_HOOK) if sleep else grace
    return (sleep + needed, TERMINATED) if needed <= allowed else (sleep + allowed, KILLED)


LAST_CODE = 255
RESTARTS = ("Restart", "RestartAllContainers")  # actions of rules


def exit_code(pod: KubeletPod, restarts: int) -> int:
    """Return the exit code of the run after so many restarts.

    The annotation lists one code per run; the last one applies to all later runs.
    """
    codes = [_exit_code(text) for text in pod.metadata.annotations.get(EXIT_CODE, "").split(",")]
    return codes[min(restarts, len(codes) - 1)]


def _exit_code(text: str) -> int:
    """Parse an exit code; return 0 for an invalid value, as for a pod without the annotation."""
    try:
        return int(annotation_values.number(text, 0, LAST_CODE))
    except annotation_values.BadValue:
        return 0


def will_restart(pod: KubeletPod, code: int, container: KubeletContainer | None = None) -> bool:
    """Return True if the containers restart after this exit code.

    All containers end with the same code, so one of them decides (None: the first one): its restart rules, then its
    restart policy, then the policy of the pod.
    """
    decides = container or (pod.spec.containers[0] if pod.spec.containers else KubeletContainer())
    for rule in decides.restart_policy_rules or ():
        if rule.action in RESTARTS and rule.exit_codes.include(code):
            return True
    policy = decides.restart_policy or pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)
