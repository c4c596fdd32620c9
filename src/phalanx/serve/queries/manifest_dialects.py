"""Group the pods of a what-if query by PodGroups of other schedulers, if the scheduler uses these (`--dialects`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from phalanx.engine.explain import Question
from phalanx.kube.dialects import DIALECTS, ForeignGroup, Translation
from phalanx.kube.dialects.contract import InvalidGroup, unusable
from phalanx.model import objects
from phalanx.model.kinds import Json
from phalanx.model.objects.groups import CompositePodGroup, PodGroup
from phalanx.model.objects.pod import PodSchedulingGroup

_Name = tuple[str, str, str]  # dialect, namespace, name


class QueryDialects:
    def __init__(self, names: Sequence[str]) -> None:
        self._dialects = [DIALECTS[name] for name in names]
        self._groups: dict[_Name, Translation] = {}
        self.notes: list[str] = []

    def take(self, doc: Json) -> bool:
        """Take a PodGroup of a dialect; return False for everything else."""
        for dialect in self._dialects:
            resource = dialect.resource
            if (doc["apiVersion"], doc["kind"]) == (resource.api_version, resource.kind):
                group = msgspec.convert({"metadata": doc["metadata"], "spec": doc.get("spec")}, ForeignGroup)
                try:
                    found = dialect.translate(group)
                except InvalidGroup as problem:
                    found = unusable(group, dialect.name, str(problem))
                self._groups[dialect.name, group.metadata.namespace, group.metadata.name] = found
                return True
        return False

    def link(self, question: Question, profiles: Collection[str]) -> None:
        """Add the translated groups, and put the pods of the scheduler `profiles` that name them into these."""
        if not self._groups:
            return
        priorities: dict[_Name, list[int]] = {}
        classes: dict[_Name, set[str]] = {name: set() for name in self._groups}
        used = set()
        for number, pod in enumerate(question.pods):
            found = self._group_of(pod) if pod.spec.scheduler_name in profiles else None
            if found is not None:
                name, leaf = found
                used.add((name, leaf))
                priorities.setdefault(name, []).append(pod.spec.priority or 0)
                classes[name].add(pod.spec.priority_class_name)
                spec = msgspec.structs.replace(pod.spec, scheduling_group=PodSchedulingGroup(leaf))
                question.pods[number] = msgspec.structs.replace(pod, spec=spec)
        for name, named in classes.items():
            self.notes += [f"PodGroup {name[2]}: {text}" for text in self._groups[name].ignored_with(named)]
        for name, values in priorities.items():
            translation = self._groups[name]
            rest = translation.leaves[""]  # of pods in no part
            for group in translation.groups:
                if group.metadata.name == rest and (name, rest) not in used:
                    continue
                own: Any = msgspec.structs.replace(group.spec, priority=min(values))
                made: PodGroup | CompositePodGroup = msgspec.structs.replace(group, spec=own)
                if isinstance(made, CompositePodGroup):
                    question.composites.append(made)
                else:
                    question.pod_groups.append(made)

    def _group_of(self, pod: objects.Pod) -> tuple[_Name, str] | None:
        """Return the PodGroup that a pod names, and the name of its own group in the translation."""
        meta = pod.metadata
        if pod.spec.scheduling_group is not None or pod.spec.workload_ref is not None:
            return None
        for dialect in self._dialects:
            if found := dialect.group_of(meta.labels, meta.annotations):
                name = (dialect.name, meta.namespace, found[0])
                leaves = self._groups[name].leaves if name in self._groups else {}
                return (name, leaves.get(found[1], leaves[""])) if leaves else None
        return None
