"""ImageLocality: prefer nodes that have the pod's images, weighted by how many nodes have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.engine.framework import MAX_SCORE, Floats, Handle
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.journal import Change
from phalanx.engine.state.shapes import Shape

_MIN = 23 * 1024 * 1024  # bytes; smaller images give no score
_MAX_PER_IMAGE = 1000 * 1024 * 1024


class ImageLocality:
    name = "ImageLocality"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def track_score(self, shape: Shape, columns: Columns) -> _Images | None:
        return _Images(shape, columns) if shape.images else None


class _Images:
    """Track the score, which depends on the number of nodes and on how many nodes have each image."""

    def __init__(self, shape: Shape, columns: Columns) -> None:
        self._shape = shape
        self._columns = columns
        self._seen = (-1, -1)
        self._any = False
        self.raw: Floats = np.zeros(0)

    def rebuild(self) -> None:
        columns = self._columns
        self._seen = (columns.images.version, columns.count)
        sums: dict[int, int] = {}
        for image in self._shape.images:
            holders = columns.images.holders(image)
            spread = len(holders) / columns.count if columns.count else 0.0
            for row, size in holders.items():
                sums[row] = sums.get(row, 0) + int(size * spread)
        self.raw = np.zeros(columns.capacity)
        top = _MAX_PER_IMAGE * len(self._shape.images)
        for row, total in sums.items():
            self.raw[row] = MAX_SCORE * (min(max(total, _MIN), top) - _MIN) // (top - _MIN)
        self._any = bool(sums)

    def update(self, changes: Sequence[Change]) -> Sequence[int] | None:
        columns = self._columns
        seen = (columns.images.version, columns.count)
        if seen == self._seen:
            return ()
        if seen[0] == self._seen[0] and not self._any:
            self._seen = seen  # no node has the images, so the number of nodes does not matter
            return ()
        self.rebuild()
        return None
