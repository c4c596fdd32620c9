"""Durable revisioned storage: one writer, many readers, acknowledged means durable."""

from phalanx.local.store.store import Store
from phalanx.local.store.window import Bounds

__all__ = ["Bounds", "Store"]
