"""Read a pod's workload from its controller reference and labels, without lookups."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from phalanx.model.groups.keys import GROUP_LABEL


class MemberOwner(msgspec.Struct, rename="camel", gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    api_version: str = ""


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[MemberOwner] | None = None
    deletion_timestamp: str | None = None


class _Group(msgspec.Struct, rename="camel", gc=False):
    pod_group_name: str | None = None


class _Gate(msgspec.Struct, gc=False):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_group: _Group | None = None
    workload_ref: dict[str, Any] | None = None
    scheduling_gates: list[_Gate] | None = None
    priority_class_name: str = ""


class _Status(msgspec.Struct, gc=False):
    phase: str = ""


class PodView(msgspec.Struct, gc=False):
    """The pod fields needed for linking: a cluster has many pods."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def controller(self) -> MemberOwner | None:
        return next((ref for ref in self.metadata.owner_references or () if ref.controller), None)

    @property
    def linked(self) -> bool:
        """Return True if the pod names a group, also one set by a user."""
        spec = self.spec
        return spec.scheduling_group is not None or spec.workload_ref is not None or GROUP_LABEL in self.labels

    @property
    def group(self) -> str:
        """Return the PodGroup that the pod names."""
        named = self.spec.scheduling_group
        return (named.pod_group_name or "") if named is not None else self.labels.get(GROUP_LABEL, "")

    @property
    def gates(self) -> list[str]:
        return [gate.name for gate in self.spec.scheduling_gates or ()]

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    def made_by(self, kind: str) -> str:
        """Return the name of its controller, if that is of this kind."""
        owner = self.controller
        return owner.name if owner is not None and owner.kind == kind else ""


class WorkloadSlot(NamedTuple):
    """A workload that a pod may belong to, with possible names of its part, finest first."""

    kind: str
    name: str
    parts: tuple[str, ...]
