"""Durable revisioned storage: one writer, many readers, acknowledged means durable."""

from phalanx.local.store.store import Store
from phalanx.local.store.window import WindowBounds

__all__ = ["Store", "WindowBounds"]
