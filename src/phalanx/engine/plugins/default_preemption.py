"""DefaultPreemption: pods and groups of this profile may have pods of lower priority evicted to make room for them.

What that costs and how it is done is the engine's own business (`preemption`, `scheduling`): the plugin only says
whether, and at which place among the PostFilter plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine.framework import Handle, Traits


class DefaultPreemption:
    name = "DefaultPreemption"
    traits = Traits(preempts=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        """minCandidateNodesPercentage and minCandidateNodesAbsolute are accepted without effect: all nodes count."""
