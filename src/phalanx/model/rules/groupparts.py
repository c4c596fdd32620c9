"""What Workload templates, PodGroups and CompositePodGroups share: policy, constraints, modes, claims, priority.

These follow declarative validation of Kubernetes 1.37: the order of complaints is the order of fields, a field that
did not change is not checked again, and "immutable" is said once, before the content is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.model import names
from phalanx.model.fieldpath import (
    all_invalid,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
    too_many,
)
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json

MAX_PRIORITY = 1_000_000_000
MAX_CLAIMS = 4
Item = Callable[[str, Json, Json | None], None]


def _bare(value: Any) -> Any:
    """The value without what says nothing: nulls and empty lists."""
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if inner is not None and inner != []}
    if isinstance(value, list):
        return [_bare(inner) for inner in value]
    return value


def same(left: Any, right: Any) -> bool:
    """Equal as the API means it: an empty list is an absent list."""
    if left == right:
        return True
    if not left and not right and not isinstance(left, dict) and not isinstance(right, dict):
        return left in (None, [], "") and right in (None, [], "")
    return bool(_bare(left) == _bare(right))


def union(
    errors: list[FieldError], path: str, members: tuple[str, ...], new: Json, old: Json | None, *, lists: bool = False
) -> None:
    """Exactly one member; an update that leaves the membership alone is not judged again."""

    def is_set(obj: Json, member: str) -> bool:
        value = obj.get(member)
        return bool(value) if lists else value is not None

    found = [member for member in members if is_set(new, member)]
    if len(found) == 1 or (old is not None and found == [member for member in members if is_set(old, member)]):
        return
    listed = ", ".join(f"`{member}`" for member in members)
    if found:
        shown = "{" + ", ".join(found) + "}"
        errors.append(invalid(path, shown, f"must specify exactly one of: {listed}"))
    else:
        errors.append(invalid(path, "", f"must specify one of: {listed}"))


def controller_reference(path: str, reference: Json) -> list[FieldError]:
    """apiGroup, kind and name of the object behind a Workload."""
    errors: list[FieldError] = []
    group = reference.get("apiGroup")
    if group:
        errors += all_invalid(f"{path}.apiGroup", group, names.long_name(group))
    for name in ("kind", "name"):
        value = reference.get(name)
        if not value:
            errors.append(required(f"{path}.{name}"))
        else:
            errors += all_invalid(f"{path}.{name}", value, names.path_segment(value))
    return errors


class Parts:
    """Collects complaints about one object. `update` says whether there was an old one."""

    def __init__(self, gates: Gates, update: bool) -> None:
        self.gates = gates
        self.update = update
        self.errors: list[FieldError] = []

    # -- scalars -------------------------------------------------------------------------------------------------

    def text(self, path: str, value: str | None, old: str | None, rule: Callable[[str], list[str]]) -> None:
        """A required name that may change."""
        if self.update and old == value:
            return
        if not value:
            self.errors.append(required(path))
        else:
            self.errors += all_invalid(path, value, rule(value))

    def fixed_text(self, path: str, value: str | None, old: str | None, rule: Callable[[str], list[str]]) -> None:
        """An optional name that may not change."""
        if self.update:
            if (value or None) != (old or None):
                self.errors.append(immutable(path))
        elif value:
            self.errors += all_invalid(path, value, rule(value))

    def count(self, path: str, value: int | None, old: int | None) -> None:
        """A required positive number; zero counts as missing."""
        if self.update and old is not None and (value or 0) == old:
            return
        if not value:
            self.errors.append(required(path))
        elif value < 1:
            self.errors.append(invalid(path, value, "must be greater than or equal to 1"))

    def priority(self, path: str, new: Json, old: Json | None) -> None:
        """priorityClassName, priority, preemptionPolicy: fixed, in this order."""
        before = old or {}
        self.fixed_text(
            f"{path}.priorityClassName", new.get("priorityClassName"), before.get("priorityClassName"), names.long_name
        )
        value = new.get("priority")
        if self.update:
            if value != before.get("priority"):
                self.errors.append(immutable(f"{path}.priority"))
        elif value is not None and value > MAX_PRIORITY:
            self.errors.append(invalid(f"{path}.priority", value, f"must be less than or equal to {MAX_PRIORITY}"))
        self._preemption(f"{path}.preemptionPolicy", new.get("preemptionPolicy"), before.get("preemptionPolicy"))

    def _preemption(self, path: str, value: str | None, old: str | None) -> None:
        if self.update and value == old:
            return
        on = self.gates("PodGroupPreemptionPolicy")
        if not on and value is not None:
            self.errors.append(forbidden(path))
        if self.update:
            self.errors.append(immutable(path))
        elif on and value is not None and value not in ("PreemptLowerPriority", "Never"):
            self.errors.append(not_supported(path, value, ("Never", "PreemptLowerPriority")))

    # -- structures ----------------------------------------------------------------------------------------------

    def policy(self, path: str, new: Json | None, old: Json | None, count: str) -> None:
        """basic or gang; the variant is frozen, the count inside gang is not."""
        found, before = new or {}, (old or {}) if self.update else None
        if before is not None and same(found, before):
            return
        union(self.errors, path, ("basic", "gang"), found, before)
        gang = found.get("gang")
        if before is None:
            if gang is not None:
                self.count(f"{path}.gang.{count}", gang.get(count), None)
            return
        if (found.get("basic") is None) != (before.get("basic") is None):
            self.errors.append(immutable(f"{path}.basic"))
        old_gang = before.get("gang")
        if gang is not None and old_gang is None:
            self.errors.append(invalid(f"{path}.gang", None, "field cannot be set once created"))
        elif gang is None and old_gang is not None:
            self.errors.append(invalid(f"{path}.gang", None, "field cannot be cleared once set"))
        elif gang is not None and old_gang is not None:
            self.count(f"{path}.gang.{count}", gang.get(count), old_gang.get(count))

    def constraints(self, path: str, new: Json | None, old: Json | None, *, gate: str = "", soft: bool = False) -> None:
        """Topology constraints. `soft`: a PodGroup says "immutable" only while the gate is on."""
        if self.update and same(new, old):
            return
        off = bool(gate) and not self.gates(gate)
        if off and new is not None:
            self.errors.append(forbidden(path))
        if self.update:
            if not (soft and off):
                self.errors.append(immutable(path))
            return
        if off or new is None:
            return
        topology = new.get("topology") or []
        if len(topology) > 1:
            self.errors.append(too_many(f"{path}.topology", len(topology), 1))
            return
        for index, constraint in enumerate(topology):
            self.text(f"{path}.topology[{index}].key", constraint.get("key"), None, names.label_key)

    def fixed(self, path: str, new: Any, old: Any) -> bool:
        """Whether this is an update; one of a field that cannot change is refused if it tries to."""
        if self.update and not same(new, old):
            self.errors.append(immutable(path))
        return self.update

    def _given(self, path: str, new: Json | None, old: Json | None, needed: bool) -> Json | None:
        """What is to be judged of a field that cannot change; None: nothing."""
        if self.fixed(path, new, old):
            return None
        if new is None and needed:
            self.errors.append(required(path))
        return new

    def disruption(self, path: str, new: Json | None, old: Json | None, *, needed: bool = False) -> None:
        given = self._given(path, new, old, needed)
        if given is not None:
            union(self.errors, path, ("single", "all"), given, None)

    def claims(self, path: str, new: list[Json] | None, old: list[Json] | None) -> None:
        """Resource claims of a group."""
        if self.fixed(path, new, old) or not new:
            return
        if len(new) > MAX_CLAIMS:
            self.errors.append(too_many(path, len(new), MAX_CLAIMS))
            return
        self.unique(path, new)
        for index, claim in enumerate(new):
            at = f"{path}[{index}]"
            union(self.errors, at, ("resourceClaimName", "resourceClaimTemplateName"), claim, None)
            self.text(f"{at}.name", claim.get("name"), None, names.short_name)
            for member in ("resourceClaimName", "resourceClaimTemplateName"):
                value = claim.get(member)
                if value is not None:
                    self.errors += all_invalid(f"{at}.{member}", value, names.long_name(value))

    def reference(self, path: str, new: Json | None, old: Json | None, *, needed: bool = False) -> None:
        """workloadRef of a group: fixed as a whole."""
        given = self._given(path, new, old, needed)
        if given is not None:
            self.text(f"{path}.workloadName", given.get("workloadName"), None, names.long_name)
            self.text(f"{path}.templateName", given.get("templateName"), None, names.short_name)

    # -- lists ---------------------------------------------------------------------------------------------------

    def unique(self, path: str, items: list[Json], key: str = "name") -> None:
        seen: set[str] = set()
        for index, item in enumerate(items):
            value = item.get(key) or ""
            if value in seen:
                self.errors.append(duplicate(f"{path}[{index}]", item))
            seen.add(value)

    def frozen_list(self, path: str, new: list[Json] | None, old: list[Json] | None, limit: int, each: Item) -> None:
        """A list by name whose items may change inside, and may be reordered, but not come or go."""
        items, before = new or [], old or []
        if self.update and same(items, before):
            return
        if len(items) > limit:
            self.errors.append(too_many(path, len(items), limit))
            if not self.update:
                return
        known = {item.get("name") or "": item for item in before}
        if self.update:
            found = {item.get("name") or "" for item in items}
            added = [index for index, item in enumerate(items) if (item.get("name") or "") not in known]
            gone = [item for item in before if (item.get("name") or "") not in found]
            self.errors += [forbidden(f"{path}[{index}]", "item may not be added") for index in added]
            self.errors += [forbidden(path, "item may not be removed") for _ in gone]
            if added or gone or len(items) > limit:
                return
        self.unique(path, items)
        for index, item in enumerate(items):
            earlier = known.get(item.get("name") or "")
            if earlier is None or not same(item, earlier):
                each(f"{path}[{index}]", item, earlier)
