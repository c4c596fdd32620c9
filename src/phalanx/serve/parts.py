"""Which parts run in the process of a local cluster, in the order in which they start."""

from __future__ import annotations

from phalanx.serve.cluster import ClusterSettings, Part


def parts_of(settings: ClusterSettings) -> list[Part]:
    parts: list[Part] = []
    return parts
