"""Warn authors of workloads about unknown annotations under our prefix: a misspelt one silently loses a gang."""

from __future__ import annotations

from phalanx.controllers.runtime.controller import Json, Key
from phalanx.controllers.workloads.kind import Local
from phalanx.model.annotation_values import unknown

CONTROLLER = "workload-annotations"


def report_unknown_annotations(local: Local) -> None:
    """Watch every local kind that may request groups; an unknown annotation becomes an Event on the object."""
    from phalanx.controllers.workloads.registry import KINDS

    def look(key: Key, new: Json | None, old: Json | None) -> None:
        if new is None:
            return
        annotations = new["metadata"].get("annotations")
        if old is not None and old["metadata"].get("annotations") == annotations:
            return
        for text in unknown(annotations):
            local.events.warning(new, CONTROLLER, "UnknownAnnotation", text)

    for kind in KINDS:
        if kind.run is not None:
            local.caches.of(kind.resource, optional=True).on_change(look)
