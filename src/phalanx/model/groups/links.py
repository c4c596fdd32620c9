"""Link groups to their parents and to the Workloads they were made from.

Children that are ready or invalid are counted in all ancestors; only a change of such a flag is passed to the next one.
"""

from __future__ import annotations

from phalanx.model.groups import hierarchy
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


class GroupLinks:
    def __init__(self, groups: dict[GroupKey, Group], workloads: Workloads) -> None:
        """`groups`: all groups of the forest, by key; groups are added and removed here alone."""
        self._groups, self._workloads = groups, workloads

    def node(self, key: GroupKey) -> Group:
        """Return the group; one without an object is made if it is not known."""
        if key not in self._groups:
            self._groups[key] = Group(key)
        return self._groups[key]

    def link(self, group: Group, parent: GroupKey) -> None:
        """Count a group as a child of `parent`, whose object may not exist yet."""
        above = self.node(parent)
        above.children[group.key] = group
        above.resort()
        was = (above.ready, above.bad)
        above.ready_children += group.ready
        above.bad_children += group.bad
        self.update_ancestors(above, *was)

    def unlink(self, group: Group, parent: GroupKey, was_ready: bool, was_bad: bool) -> None:
        """Count a group no longer as a child of `parent`. `was_…`: what it counted as there."""
        above = self._groups[parent]
        was = (above.ready, above.bad)
        del above.children[group.key]
        above.resort()
        above.ready_children -= was_ready
        above.bad_children -= was_bad
        self.update_ancestors(above, *was)
        self.prune(above)

    def update_ancestors(self, group: Group, was_ready: bool, was_bad: bool) -> None:
        """Update the ancestors after `ready` or `bad` of a group has changed, until nothing changes.

        This also ends in cycles, since each value changes once.
        """
        while group.spec is not None and group.spec.parent is not None and group.spec.parent in self._groups:
            above = self._groups[group.spec.parent]
            if group.key not in above.children:
                return
            ready, bad = int(group.ready) - int(was_ready), int(group.bad) - int(was_bad)
            if not ready and not bad:
                return
            was_ready, was_bad = above.ready, above.bad
            above.ready_children += ready
            above.bad_children += bad
            group = above

    def recheck(self, group: Group, *, deep: bool) -> None:
        """Check the rules between a group and its ancestors again, for the group and those below it.

        A new or removed link (`deep`) concerns as many levels below as a check looks up; other changes concern only the
        children, since they are compared with their parent.
        """
        deep = deep and bool(group.children)
        below = self._levels_below(group, hierarchy.LEVELS_CHECKED) if deep else [group, *group.children.values()]
        for member in below:
            was = (member.ready, member.bad)
            member.problem = hierarchy.check(self._groups, member, self._workloads.templates_of(member))
            self.update_ancestors(member, *was)

    def _levels_below(self, group: Group, levels: int) -> list[Group]:
        """Return the group and the known groups up to `levels` below it, parents first; each once.

        A cycle is no problem.
        """
        found, level = {group.key: group}, [group]
        for _ in range(levels):
            level = [child for each in level for child in each.sorted_children() if child.key not in found]
            found.update({each.key: each for each in level})
        return list(found.values())

    def prune(self, group: Group) -> None:
        """Remove a group that has neither an object nor members nor children."""
        if group.empty:
            self._groups.pop(group.key, None)
