"""Builders, a cluster in memory, a local cluster, a pytest plugin; public, and imported by nothing in the product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.testing.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    # Imported lazily: a user of the pytest plugin alone does not wait for the engine.
    if name == "Cluster":
        from phalanx.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
