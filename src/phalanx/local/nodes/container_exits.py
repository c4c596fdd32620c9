"""How the containers of a pod end by themselves, and whether they start again. Annotations tell; nothing runs."""

from __future__ import annotations

from phalanx.local.nodes.views import EXIT_CODE, KubeletContainer, KubeletPod
from phalanx.model.annotation_values import BadValue, number

LAST_CODE = 255
RESTARTS = ("Restart", "RestartAllContainers")  # actions of rules


def exit_code(pod: KubeletPod, restarts: int) -> int:
    """Of this run: several codes are for one run after the other, the last one for all that follow."""
    codes = [_code(text) for text in pod.metadata.annotations.get(EXIT_CODE, "").split(",")]
    return codes[min(restarts, len(codes) - 1)]


def _code(text: str) -> int:
    """A typo ends a pod like any other: with 0."""
    try:
        return int(number(text, 0, LAST_CODE))
    except BadValue:
        return 0


def starts_again(pod: KubeletPod, code: int, container: KubeletContainer | None = None) -> bool:
    """All containers end alike, so the rules of one of them (None: the first), its policy, then the pod's decide."""
    decides = container or (pod.spec.containers[0] if pod.spec.containers else KubeletContainer())
    for rule in decides.restart_policy_rules or ():
        if rule.action in RESTARTS and rule.exit_codes.include(code):
            return True
    policy = decides.restart_policy or pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)
