"""Who owns which field: reads, updates and writes metadata.managedFields for everything but apply (see `apply`).

The system's part of metadata has no manager, and an endpoint only tracks what it can change: the main one leaves
status alone where status has its own endpoint, the status one looks at nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from phalanx.local.api.fieldset import LEAF, Fields, difference, in_order, union, well_formed
from phalanx.local.api.ownership import Walker, walker_of_type
from phalanx.model.kinds import Json, Kind
from phalanx.model.memo import Memo

APPLY = "Apply"
UPDATE = "Update"
MAX_UPDATE_MANAGERS = 10
ANCIENT_CHANGES = "ancient-changes"
_TRACKED_METADATA = ("annotations", "finalizers", "generateName", "labels", "ownerReferences")

Identity = tuple[str, str, str, str]  # manager, operation, apiVersion ("" for Apply), subresource


class Manager(msgspec.Struct):
    manager: str
    operation: str
    api_version: str
    time: str
    fields: Fields
    subresource: str = ""

    @property
    def identity(self) -> Identity:
        shown = "" if self.operation == APPLY else self.api_version
        return (self.manager, self.operation, shown, self.subresource)

    def entry(self) -> Json:
        out = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields,
        }
        if self.subresource:
            out["subresource"] = self.subresource
        return out

    def described(self) -> str:
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


def read_managers(metadata: Json) -> list[Manager] | None:
    """Read the managers from managedFields; None if the server cannot have written the list."""
    entries = metadata.get("managedFields")
    if not entries:
        return []
    found: list[Manager] = []
    for entry in entries:
        fields = entry.get("fieldsV1") or {}
        operation = entry.get("operation", "")
        if operation not in (APPLY, UPDATE):
            return None
        found.append(
            Manager(
                entry.get("manager") or "unknown",
                operation,
                entry.get("apiVersion", ""),
                entry.get("time") or "",
                fields,
                entry.get("subresource", ""),
            )
        )
    return found


def write_managers(metadata: Json, managers: list[Manager]) -> None:
    kept = [manager for manager in managers if manager.fields]
    if not kept:
        metadata.pop("managedFields", None)
        return
    kept.sort(key=lambda m: (m.operation, m.time, m.manager, m.api_version, m.subresource))
    metadata["managedFields"] = [manager.entry() for manager in kept]


class FieldTracker:
    """Ownership for create, update and the patches that are not apply."""

    def __init__(self) -> None:
        self._of_pod_spec: Memo[Fields] | None = None  # the part of a pod that thousands have in common

    def walker(self, kind: Kind) -> Walker:
        return walker_of_type(kind.version(kind.storage_version).schema)

    def created(self, kind: Kind, obj: Json, manager: str, now: str) -> None:
        metadata = obj["metadata"]
        fields = self.content(kind, obj)
        if fields:
            metadata["managedFields"] = [
                {
                    "manager": manager,
                    "operation": UPDATE,
                    "apiVersion": obj["apiVersion"],
                    "time": now,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
            ]
        else:
            metadata.pop("managedFields", None)

    def content(self, kind: Kind, obj: Json) -> Fields:
        """Return the set of all fields of a new object."""
        whole = tracked(kind, obj, "")
        spec = whole.pop("spec", None) if kind.storage_key == "pods" else None
        fields = self.walker(kind).filled(whole)
        if spec is not None:
            if self._of_pod_spec is None:
                self._of_pod_spec = Memo(partial(self._spec_content, self.walker(kind)))
            fields["f:spec"] = self._of_pod_spec(spec)  # behind f:metadata, where it belongs
        return {key: node for key, node in fields.items() if key not in ("f:apiVersion", "f:kind")}

    def _spec_content(self, walker: Walker, spec: Any) -> Fields:
        made: Fields = walker.filled({"spec": spec})["f:spec"]
        return made

    def updated(self, kind: Kind, new: Json, old: Json, manager: str, now: str, subresource: str) -> None:
        metadata, before = new["metadata"], old["metadata"]
        asked = metadata.get("managedFields")
        if asked == [{}]:  # the documented way to forget all owners
            metadata.pop("managedFields", None)
            return
        if not before.get("managedFields") and not asked:
            return  # ownership was cleared before; the next apply begins without owners
        changed, removed = self.differences(kind, old, new, subresource)
        if asked == before.get("managedFields") or not asked or not acceptable(asked):
            if not changed and not removed:
                metadata["managedFields"] = before.get("managedFields") or []
                if not metadata["managedFields"]:
                    del metadata["managedFields"]
                return
            managers = read_managers(before)
        else:  # clients may edit the list itself (kubectl moves its client-side entries this way)
            managers = read_managers(metadata)
        if managers is None:
            managers = []
        write_managers(metadata, record(managers, changed, removed, manager, new["apiVersion"], now, subresource))

    def differences(self, kind: Kind, old: Json, new: Json, subresource: str) -> tuple[Fields, Fields]:
        changed: Fields = {}
        removed: Fields = {}
        self.walker(kind).compare(tracked(kind, old, subresource), tracked(kind, new, subresource), changed, removed)
        return in_order(changed), removed


def tracked(kind: Kind, obj: Json, subresource: str) -> Json:
    """Return the part of an object that has owners at this endpoint."""
    if subresource == "status":
        return {"status": obj["status"]} if "status" in obj else {}
    drop_status = "status" in kind.subresources
    out: Json = {}
    for key, value in obj.items():
        if key == "metadata":
            kept = {name: value[name] for name in _TRACKED_METADATA if name in value}
            if kept:
                out[key] = kept
        elif key not in ("apiVersion", "kind") and not (drop_status and key == "status"):
            out[key] = value
    return out


def acceptable(entries: Any) -> bool:
    """Return True if a client's list of managers can be taken over."""
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and entry.get("operation") in (APPLY, UPDATE)
        and isinstance(entry.get("manager", ""), str)
        and isinstance(entry.get("apiVersion", ""), str)
        and isinstance(entry.get("subresource", ""), str)
        and isinstance(entry.get("time") or "", str)
        and well_formed(entry.get("fieldsV1") or {})
        for entry in entries
    )


def record(
    managers: list[Manager],
    changed: Fields,
    removed: Fields,
    manager: str,
    api_version: str,
    now: str,
    subresource: str,
) -> list[Manager]:
    """Record an update: its manager owns what it changed, and no manager owns what it removed."""
    identity = (manager, UPDATE, api_version, subresource)
    mine: Manager | None = None
    for other in managers:
        if other.identity == identity:
            mine = other
            continue
        other.fields = difference(difference(other.fields, changed), removed)
    if mine is None:
        mine = Manager(manager, UPDATE, api_version, now, {}, subresource)
        managers.append(mine)
    fields = union(difference(mine.fields, removed), changed)
    if fields != mine.fields:
        mine.fields, mine.time = fields, now
    return cap(managers)


def cap(managers: list[Manager]) -> list[Manager]:
    """Merge the oldest updaters into one if there are more than the server keeps by name."""
    updaters = [m for m in managers if m.operation == UPDATE and m.fields and m.manager != ANCIENT_CHANGES]
    surplus = len(updaters) - MAX_UPDATE_MANAGERS
    if surplus <= 0:
        return managers
    updaters.sort(key=lambda m: (m.time, m.manager))
    for old in updaters[: surplus + 1]:
        managers.remove(old)
        merged = next((m for m in managers if m.manager == ANCIENT_CHANGES and m.api_version == old.api_version), None)
        if merged is None:
            managers.append(Manager(ANCIENT_CHANGES, UPDATE, old.api_version, old.time, old.fields))
        else:
            merged.fields = union(merged.fields, old.fields)
            merged.time = max(merged.time, old.time)
    return managers


__all__ = [
    "LEAF",
    "FieldTracker",
    "Manager",
    "acceptable",
    "cap",
    "read_managers",
    "record",
    "tracked",
    "write_managers",
]
