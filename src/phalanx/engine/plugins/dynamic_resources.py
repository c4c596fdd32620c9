"""DynamicResources: until claims are understood, a pod that has some is never placed as if it had none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine.framework import Code, Handle, Status, Traits, Wake
from phalanx.engine.state.shapes import Shape

MESSAGE = "pod has resource claims, and dynamic resource allocation is not supported yet by this scheduler"


class DynamicResources:
    name = "DynamicResources"
    traits = Traits(wakes_on=Wake.NOTHING, default_weight=2)  # only the pod itself can change this

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def pre_filter(self, shape: Shape) -> Status | None:
        return Status(Code.UNRESOLVABLE, (MESSAGE,), self.name) if shape.claims else None
