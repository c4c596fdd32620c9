"""Write the one sentence that answers "why is it pending" for a user who does not know the filters.

Groups that do not fit have theirs from `placement.plain`; here are those of single pods and incomplete groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.engine.explain.values import Level, NodeReason
from phalanx.engine.placement.messages import plural
from phalanx.engine.placement.plain import because


def of_missing(level: Level) -> str:
    """Return the sentence for a group whose members have not all been created."""
    noun = "child groups" if level.kind == "CompositePodGroup" else "pods"
    return f"Waits until {noun} are created: {level.name} has {level.known} of {level.minimum}"


def of_nodes(reasons: Sequence[NodeReason], nodes: int) -> str:
    """Return the sentence for a single pod that fits no node."""
    if not nodes:
        return "The cluster has no nodes"
    parts = [f"{reason.nodes} {because(reason.reason)}" for reason in reasons[:3]]
    return f"Fits none of {plural(nodes, 'node')}: {', '.join(parts)}" if parts else ""


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]
