"""The annotations and labels under our own prefix. A key under it that is not listed is reported as a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

PREFIX = "scheduling.phalanx.dev/"
_LEVELS = ("", "replicated-job-", "subgroup-")  # levels of a workload that lie between its objects
_REQUESTS = ("gang", "topology", "disruption", "min-count", "min-groups", "preferred-topology")
_WRITTEN_BY_PEOPLE = (
    *(level + requested for level in _LEVELS for requested in _REQUESTS),
    "api",
    "group-tree",
    "match-device-attribute",
    "min-resources",
    "pod-group",
    "provider",
    "default-gangs",  # a label of namespaces
    "expected-duration",
    "rank-placement",
    "rescheduling-policy",
    "schedule-timeout",
    "schedule-timeout-seconds",
    "scheduler-name",
)
_WRITTEN_BY_US = (
    "adopted",
    "after-group",
    "attempt",
    "compositepodgroup-protection",  # a finalizer
    "group",
    "implied-by",
    "placement",  # controller name of admission checks
    "provisions-for",
    "through",
    "waiting",
    "group-size",  # a scheduling gate
    "bound-in-group",
    "completed-in-run",
    "dropped-fields",
    "generated",
    "made-as",
    "part-of",
    "pods-to-come",
    "run",
    "v1beta1-fields",
)
KNOWN = frozenset(PREFIX + name for name in (*_WRITTEN_BY_PEOPLE, *_WRITTEN_BY_US))


def unknown(annotations: Mapping[str, object] | None) -> list[str]:
    """Return a sentence for each unknown Phalanx annotation, with the key that may have been meant."""
    return [
        f"annotation {key} means nothing to Phalanx{_hint(key)}"
        for key in annotations or ()
        if key.startswith(PREFIX) and key not in KNOWN
    ]


def _hint(key: str) -> str:
    near = get_close_matches(key.removeprefix(PREFIX), _WRITTEN_BY_PEOPLE, n=1)
    return f"; did you mean {PREFIX}{near[0]}?" if near else ""
