"""Turn a workload object into its Workload, CompositePodGroups, PodGroups and links: code shared by all kinds."""

from __future__ import annotations

from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Link

__all__ = ["Grouping", "GroupingRefused", "Link"]
