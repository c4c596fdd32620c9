"""The rules of every kind: what values are allowed, defaulted, dropped, converted.

`rules_for(storage_key, gates)` is the one way in. A kind nobody wrote rules for gets empty ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from phalanx.model.gates import Gates
from phalanx.model.rules.contract import EMPTY, Errors, Rules, Viewed

__all__ = ["Errors", "Rules", "Viewed", "rules_for"]

# storage key -> (module, function taking Gates and giving Rules); modules load when first asked for
_WHERE: dict[str, tuple[str, str]] = {
    "pods": ("pod", "rules"),
    "workloads.scheduling.k8s.io": ("workload", "rules"),
    "podgroups.scheduling.k8s.io": ("podgroup", "pod_group"),
    "compositepodgroups.scheduling.k8s.io": ("podgroup", "composite_pod_group"),
}


def rules_for(storage_key: str, gates: Gates) -> Rules:
    """The rules of a kind under these gates."""
    where = _WHERE.get(storage_key)
    if where is None:
        return EMPTY
    module, function = where
    make: Callable[[Gates], Rules] = getattr(import_module(f"phalanx.model.rules.{module}"), function)
    return make(gates)
