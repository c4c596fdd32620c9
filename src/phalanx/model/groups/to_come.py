"""What a group's object says of pods that nobody has made yet (LeaderWorkerSet with LeaderReady, KEP-407)."""

from __future__ import annotations

import json
from functools import lru_cache

import msgspec

from phalanx.model.objects.groups import CompositePodGroup, PodGroup, Workload
from phalanx.model.objects.pod import Pod

TO_COME = "scheduling.phalanx.dev/pods-to-come"
MIN_RESOURCES = "scheduling.phalanx.dev/min-resources"
MOST = 10_000  # pods of one group

Source = PodGroup | CompositePodGroup | Workload | None


@lru_cache(maxsize=1024)  # replicas repeat each other's words
def _parsed(text: str) -> tuple[int, Pod] | None:
    """Nothing where the words make no sense: the group is then placed as it is."""
    try:
        found = json.loads(text)
        size, template = int(found["size"]), msgspec.convert(found["template"], Pod)
    except (ValueError, TypeError, KeyError, msgspec.ValidationError):
        return None
    return (size, template) if 0 < size <= MOST else None


def announced(source: Source) -> tuple[int, Pod] | None:
    """How many pods the group will have, and what those look like that come later."""
    text = source.metadata.annotations.get(TO_COME) if source is not None else None
    return _parsed(text) if text else None


def expected(source: Source) -> int:
    """How many pods the group will have; 0: nobody said that more come than there are."""
    if source is None or not source.metadata.annotations:
        return 0
    said = announced(source)
    if said is not None:
        return said[0]
    return MOST if MIN_RESOURCES in source.metadata.annotations else 0
