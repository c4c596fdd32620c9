"""Diagnose why a pod fits no node: as a structured value, and as the message that kube-scheduler writes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.framework.interface import Finding, Status

NO_NODES = "no nodes available to schedule pods"
NAMED = 3  # maximum number of units named in one message


class Diagnosis(msgspec.Struct):
    """Describe one failed attempt of one shape."""

    nodes: int  # number of nodes in the cluster
    pre_filter: Status | None = None  # set if a PreFilter plugin rejected the pod before any node was evaluated
    findings: list[tuple[str, Finding]] = msgspec.field(default_factory=list)  # (plugin, finding), in plugin order
    # (capacity,) True on rows where preemption may help (no plugin answered "unresolvable")
    resolvable: npt.NDArray[np.bool_] = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    plugins: frozenset[str] = frozenset()  # plugins that rejected at least one node (or the pod)
    reserved_for: tuple[str, ...] = ()  # units with reservations on rows that would fit otherwise
    post_filter: str = ""

    def counts(self) -> dict[str, int]:
        """Return reason -> number of nodes."""
        result: dict[str, int] = {}
        for _, finding in self.findings:
            result[finding.reason] = result.get(finding.reason, 0) + len(finding.rows)
        return result

    @property
    def message(self) -> str:
        if self.nodes == 0 and self.pre_filter is None:
            return NO_NODES
        text = f"0/{self.nodes} nodes are available:"
        if self.pre_filter is not None:
            text += f" {self.pre_filter.message}."
        else:
            parts = histogram(self.counts())
            if parts:
                text += f" {', '.join(parts)}."
        if self.reserved_for:
            noted = reserved_text(self.reserved_for)
            text += f" {noted[0].upper()}{noted[1:]}."
        if self.post_filter:
            text += f" {self.post_filter}"
        return text


def histogram(counts: dict[str, int]) -> Sequence[str]:
    """Return texts such as "3 Insufficient cpu", sorted as text like kube-scheduler ("10 x" comes before "2 x")."""
    return sorted(f"{count} {reason}" for reason, count in counts.items())


def reserved_text(units: Sequence[str]) -> str:
    """Name the units that have reservations; at most three of them."""
    named = ", ".join(units[:NAMED])
    more = f" and {len(units) - NAMED} more" if len(units) > NAMED else ""
    return f"room is reserved for {named}{more}"
