"""What tests of the engine read off decisions, and the sentences that preemption adds to a verdict."""

from __future__ import annotations

from phalanx.engine import decisions as d


def binds(decisions: list[d.Decision]) -> dict[str, str]:
    return {each.name: each.node for each in decisions if isinstance(each, d.Bind)}


def no_victims(message: str) -> str:
    """A verdict with what preemption adds to it when every node might help, but no pod there may be evicted."""
    return _with_preemption(message, "No preemption victims found for incoming pod")


def not_helpful(message: str) -> str:
    """The same when no eviction anywhere would help."""
    return _with_preemption(message, "Preemption is not helpful for scheduling")


def _with_preemption(message: str, why: str) -> str:
    count = message.partition(" ")[0].removeprefix("0/")
    return f"{message} preemption: 0/{count} nodes are available: {count} {why}."
