"""Index which nodes hold which container images, for ImageLocality."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.model.objects.node import ContainerImage


class ImageIndex:
    __slots__ = ("_rows", "version")

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, int]] = {}  # image name -> row -> size in bytes
        self.version = 0  # +1 with every change: a score depends on how many nodes have the image

    def set(self, row: int, images: Iterable[ContainerImage], old: Iterable[ContainerImage]) -> None:
        """Replace the images of a row."""
        if images == old:
            return
        for image in old:
            for name in image.names or ():
                rows = self._rows.get(name)
                if rows is not None:
                    rows.pop(row, None)
                    if not rows:
                        del self._rows[name]
        for image in images:
            for name in image.names or ():
                self._rows.setdefault(name, {})[row] = max(image.size_bytes, 0)
        self.version += 1

    def holders(self, name: str) -> dict[int, int]:
        """Return row -> size in bytes for every node that has the image."""
        return self._rows.get(name, {})
