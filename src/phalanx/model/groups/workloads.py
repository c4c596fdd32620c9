"""Workloads: what their templates say, and which groups were made from them. Never changes a group."""

from __future__ import annotations

from phalanx.model.groups.group import Group, GroupSpec, Templates, read_templates, spec_of_template
from phalanx.model.groups.keys import WORKLOAD, GroupKey
from phalanx.model.objects.groups import Workload

Name = tuple[str, str]  # namespace, name


class Workloads:
    def __init__(self) -> None:
        self._known: dict[Name, tuple[Workload, Templates]] = {}
        self._groups: dict[Name, dict[GroupKey, None]] = {}  # those that refer to a Workload, known or not

    def put(self, workload: Workload) -> Name:
        name = (workload.metadata.namespace, workload.metadata.name)
        self._known[name] = (workload, read_templates(workload))
        return name

    def drop(self, namespace: str, name: str) -> Name:
        self._known.pop((namespace, name), None)
        return (namespace, name)

    def get(self, namespace: str, name: str | None) -> Workload | None:
        found = self._known.get((namespace, name)) if name is not None else None
        return found[0] if found is not None else None

    def leaf_templates(self, namespace: str, name: str) -> list[str]:
        found = self._known.get((namespace, name))
        return list(found[1].leaves) if found is not None else []

    def templates_of(self, group: Group) -> Templates | None:
        """Return the templates of the Workload that a group's object names."""
        if group.spec is None or group.spec.workload is None or group.key.kind == WORKLOAD:
            return None
        found = self._known.get((group.key.namespace, group.spec.workload))
        return found[1] if found is not None else None

    def implicit(self, key: GroupKey) -> tuple[GroupSpec | None, Workload | None]:
        """Return the spec that a Workload's template gives a group without its own object, and the Workload."""
        workload, name, _ = key.name.split("/", 2)
        found = self._known.get((key.namespace, workload))
        template = found[1].leaves.get(name) if found is not None else None
        if found is None or template is None:
            return None, None
        return spec_of_template(found[0], template), found[0]

    # ---- groups made from a Workload

    def groups(self, name: Name) -> list[GroupKey]:
        return list(self._groups.get(name, ()))

    def follow(self, key: GroupKey, old: GroupSpec | None, new: GroupSpec | None) -> None:
        """Move the group to the Workload that its object names now, if that has changed."""
        if key.kind == WORKLOAD:
            return  # entered by its pods
        before = old.workload if old is not None else None
        after = new.workload if new is not None else None
        if before != after:
            self.leave(key, before)
            self.enter(key, after)

    def enter(self, key: GroupKey, workload: str | None) -> None:
        if workload is not None:
            self._groups.setdefault((key.namespace, workload), {})[key] = None

    def leave(self, key: GroupKey, workload: str | None) -> None:
        if workload is None:
            return
        name = (key.namespace, workload)
        entry = self._groups.get(name, {})
        entry.pop(key, None)
        if not entry:
            self._groups.pop(name, None)
