"""DefaultPreemption: pods and groups of this profile may preempt pods of lower priority.

The engine selects and evicts the victims (packages `preemption`, `scheduling`). The plugin only enables preemption and
sets its position among the PostFilter plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine.framework import Handle, Traits


class DefaultPreemption:
    name = "DefaultPreemption"
    traits = Traits(preempts=True)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        """Accept minCandidateNodesPercentage and minCandidateNodesAbsolute without effect: all nodes are candidates."""
