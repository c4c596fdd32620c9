"""Feature gates: names, stages, defaults and what depends on what (KEP-4671, KEP-6012, Kubernetes 1.37)."""

from __future__ import annotations

from collections.abc import Mapping

# name -> (on by default in local mode, gates it needs)
KNOWN: dict[str, tuple[bool, tuple[str, ...]]] = {
    "GenericWorkload": (True, ()),
    "GangScheduling": (True, ("GenericWorkload",)),
    "TopologyAwareWorkloadScheduling": (True, ("GenericWorkload",)),
    "CompositePodGroup": (True, ("GenericWorkload", "TopologyAwareWorkloadScheduling")),
    "PodGroupPreemptionPolicy": (False, ("GenericWorkload",)),
    "DRAWorkloadResourceClaims": (False, ("GenericWorkload",)),
    "MutableMinGroupCount": (False, ("CompositePodGroup",)),
}


class Gates:
    """An immutable set of decisions."""

    def __init__(self, overrides: Mapping[str, bool] | None = None) -> None:
        self._on = {name: default for name, (default, _) in KNOWN.items()}
        self._on.update(overrides or {})

    def __call__(self, name: str) -> bool:
        return self._on[name]
