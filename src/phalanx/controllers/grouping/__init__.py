"""Grouping: what the kinds of workloads share to turn an object into Workload, CompositePodGroups, PodGroups, links."""

from __future__ import annotations

from phalanx.controllers.grouping.core import Grouping, Link, Refused

__all__ = ["Grouping", "Link", "Refused"]
