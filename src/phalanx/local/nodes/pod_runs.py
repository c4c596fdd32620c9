"""What the simulated kubelet knows of its nodes and of the pods that it runs."""

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
    offers: dict[str, Any] = field(default_factory=dict)  # allocatable to be written; None takes a resource away

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
    """A pod that was admitted. Times are seconds of the clock."""

    uid: str
    node: SimulatedNode
    pod_started: float
    started: float  # of the current run of its containers
    restarts: int = 0
    up: bool = False  # Running was written
    held: bool = False  # and that its containers are not ready
    barrier: bool = False  # an agent keeps its worker waiting (restarts in place)
    waits: tuple[int, list[str]] | None = None  # for these images, with which generation: as written
    back_at: float | None = None  # waiting to restart until then
    last_exit: int = 0
    stopped: float | None = None  # since when it is stopping
    stop_at: float = 0.0
    stop_code: int = 0
    grace: int | None = None  # of the deletion that stops it
    deferred: bool = False  # asks for more than its node has left
    over: bool = False  # a final phase was written
    deleted: bool = False


# How long the containers of a deleted pod take to end, and how: by themselves, or killed when their time is up.
#
# As a kubelet has it: hooks run first and use up the grace period, what they leave (two seconds at least) is the
# containers' after SIGTERM, and then comes SIGKILL. The pod ends with its slowest container.

TERMINATED, KILLED = 143, 137  # 128 + SIGTERM, 128 + SIGKILL
LEAST_AFTER_HOOK = 2.0  # seconds


def stopping(pod: KubeletPod, grace: float, usual: float) -> tuple[float, int]:
    """Return the seconds from the deletion to the end of the last container, and its exit code."""
    announced = number(pod.metadata.annotations, STOP_SECONDS)
    needed = usual if announced is None else announced
    sidecars = (c for c in pod.spec.init_containers or () if c.restart_policy == "Always")
    return max((_one(container, needed, grace) for container in (*pod.spec.containers, *sidecars)), default=(0.0, 0))


def _one(container: KubeletContainer, needed: float, grace: float) -> tuple[float, int]:
    hook = container.lifecycle.pre_stop if container.lifecycle is not None else None
    sleep = float(hook.sleep.seconds) if hook is not None and hook.sleep is not None else 0.0
    sleep = min(sleep, grace)
    allowed = max(grace - sleep, LEAST_AFTER_HOOK) if sleep else grace
    return (sleep + needed, TERMINATED) if needed <= allowed else (sleep + allowed, KILLED)


LAST_CODE = 255
RESTARTS = ("Restart", "RestartAllContainers")  # actions of rules


def exit_code(pod: KubeletPod, restarts: int) -> int:
    """Return the exit code of the run after so many restarts.

    Several codes in the annotation are for one run after the other; the last one is for all that follow.
    """
    codes = [_code(text) for text in pod.metadata.annotations.get(EXIT_CODE, "").split(",")]
    return codes[min(restarts, len(codes) - 1)]


def _code(text: str) -> int:
    """Parse an exit code; return 0 for a value that is not one, so that a typo ends a pod as usual."""
    try:
        return int(annotation_values.number(text, 0, LAST_CODE))
    except annotation_values.BadValue:
        return 0


def starts_again(pod: KubeletPod, code: int, container: KubeletContainer | None = None) -> bool:
    """Return True if the containers restart after this exit code.

    All containers end alike, so one of them decides (None: the first): its rules, then its policy, then the pod's
    policy.
    """
    decides = container or (pod.spec.containers[0] if pod.spec.containers else KubeletContainer())
    for rule in decides.restart_policy_rules or ():
        if rule.action in RESTARTS and rule.exit_codes.include(code):
            return True
    policy = decides.restart_policy or pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)
