"""Pods that a group's object announces and that do not exist yet (LeaderWorkerSet with LeaderReady, KEP-407)."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from phalanx.model.annotation_values import BadValue, json_object, whole_number
from phalanx.model.objects.groups import CompositePodGroup, PodGroup, Workload
from phalanx.model.objects.pod import Pod
from phalanx.model.quantity import BadQuantity, parse

TO_COME = "scheduling.phalanx.dev/pods-to-come"
MIN_RESOURCES = "scheduling.phalanx.dev/min-resources"
MOST = 10_000  # pods of one group
CONTROLLERS = "phalanx-controllers"  # field manager of our controllers, local and in cluster mode
MOST_RESOURCES = 32  # names in `min-resources`

Source = PodGroup | CompositePodGroup | Workload | None
Amount = str | int | float


@lru_cache(maxsize=1024)  # cached: replicas have the same text
def _announced(text: str) -> tuple[int, Pod] | BadValue:
    try:
        found = json_object(text)
        size = whole_number(found.get("size"), 1, MOST)
        return size, msgspec.convert(found.get("template"), Pod)
    except BadValue as problem:
        return problem
    except (msgspec.ValidationError, RecursionError) as problem:
        return BadValue(f"its template is not a pod template: {problem}")


@lru_cache(maxsize=1024)  # cached: replicas have the same text
def _resources(text: str) -> tuple[tuple[str, Amount], ...] | BadValue:
    try:
        found = json_object(text)
        if len(found) > MOST_RESOURCES:
            raise BadValue(f"it names {len(found)} resources; at most {MOST_RESOURCES} are read")
        for name, quantity in found.items():
            if parse(quantity).nanos < 0:
                raise BadValue(f"{name}: the quantity is negative")
        return tuple(found.items())
    except BadValue as problem:
        return problem
    except BadQuantity as problem:
        return BadValue(str(problem))


def announced(source: Source) -> tuple[int, Pod] | None:
    """Return how many pods the group will have and a model of the later ones; None if not announced.

    An announcement that cannot be used counts as none.
    """
    text = source.metadata.annotations.get(TO_COME) if source is not None else None
    found = _announced(text) if text and written_by_controllers(source, TO_COME) else None
    return None if isinstance(found, BadValue) else found


def written_by_controllers(source: Source, key: str) -> bool:
    """Return True if our controllers, and no other field manager, wrote an annotation of a group.

    The API server keeps the list of field managers; the policy in deploy/ keeps others from using the name.
    """
    if not isinstance(source, PodGroup):
        return False
    field = f"f:{key}"  # as managedFields names it
    managers = {
        each.manager for each in source.metadata.managed_fields or () if field in each.fields_v1.metadata.annotations
    }
    return managers == {CONTROLLERS}


def min_resources(source: Source) -> tuple[tuple[str, Amount], ...]:
    """Return the resource names and quantities that the whole group needs; empty if not announced.

    An annotation that cannot be used counts as none.
    """
    text = source.metadata.annotations.get(MIN_RESOURCES) if source is not None else None
    found = _resources(text) if text else ()
    return () if isinstance(found, BadValue) else found


def unusable(source: Source) -> list[str]:
    """Return a sentence for each annotation of the group that is ignored because its value cannot be used."""
    found = []
    for key, read in ((TO_COME, _announced), (MIN_RESOURCES, _resources)):
        text = source.metadata.annotations.get(key) if source is not None else None
        problem = read(text) if text else None
        if text and key == TO_COME and not written_by_controllers(source, TO_COME):
            problem = BadValue(f"it reserves room, and counts only if field manager {CONTROLLERS} has written it")
        if isinstance(problem, BadValue):
            found.append(f"annotation {key} is ignored: {problem}")
    return found


def expected(source: Source) -> int:
    """Return how many pods the group will have; 0 if its object announces none.

    With `min-resources` alone the number is not known: it is then the most that a group may have.
    """
    if source is None or not source.metadata.annotations:
        return 0
    count = announced(source)
    if count is not None:
        return count[0]
    return MOST if min_resources(source) else 0
