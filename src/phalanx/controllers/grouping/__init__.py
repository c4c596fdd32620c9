"""Turn a workload object into its Workload, CompositePodGroups, PodGroups and links: code shared by all kinds."""

from __future__ import annotations

from phalanx.controllers.grouping.core import Grouping, Link, Refused

__all__ = ["Grouping", "Link", "Refused"]
