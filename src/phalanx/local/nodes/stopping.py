"""How long the containers of a deleted pod take to end, and how: by themselves, or killed when their time is up.

As a kubelet has it: hooks run first and use up the grace period, what they leave (two seconds at least) is the
containers' after SIGTERM, and then comes SIGKILL. The pod ends with its slowest container.
"""

from __future__ import annotations

from phalanx.local.nodes.views import STOP_SECONDS, KubeletContainer, KubeletPod, number

TERMINATED, KILLED = 143, 137  # 128 + SIGTERM, 128 + SIGKILL
LEAST_AFTER_HOOK = 2.0  # seconds


def stopping(pod: KubeletPod, grace: float, usual: float) -> tuple[float, int]:
    """(seconds from the deletion to the end of the last container, its exit code)."""
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
