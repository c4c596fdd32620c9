"""Builders, a cluster in memory and reference implementations; public, and imported by nothing in the product."""

from phalanx.testing.cluster import Cluster

__all__ = ["Cluster"]
