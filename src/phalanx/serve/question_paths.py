"""How a question reaches the scheduler: paths, header of the token, and kinds that can be asked about.

Commands import this file and not the engine behind it, which takes a second to load.
"""

from __future__ import annotations

BASE = "/phalanx/v1"
PATHS = (f"{BASE}/why", f"{BASE}/whatif", f"{BASE}/plan", f"{BASE}/state", f"{BASE}/demand")
AUDIENCE = "phalanx-scheduler"
HEADER = "Phalanx-Token"

_KINDS = {
    "pod": "Pod", "pods": "Pod", "po": "Pod",
    "podgroup": "PodGroup", "podgroups": "PodGroup", "pg": "PodGroup",
    "compositepodgroup": "CompositePodGroup", "compositepodgroups": "CompositePodGroup", "cpg": "CompositePodGroup",
    "workload": "Workload", "workloads": "Workload", "wl": "Workload",
}  # fmt: skip


def kind_of(text: str) -> str | None:
    """Return the kind that a text such as "podgroups.scheduling.k8s.io", "PodGroup" or "po" names."""
    return _KINDS.get(text.partition(".")[0].lower())
