"""How queries reach the scheduler: paths, token header, and kinds.

Commands import this file and not the engine, which takes a second to load.
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
    """Return the kind named by a text such as "podgroups.scheduling.k8s.io", "PodGroup" or "po"."""
    return _KINDS.get(text.partition(".")[0].lower())
