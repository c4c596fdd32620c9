"""The last hour in samples: how full, how torn, how long the queue, how long pods waited. Bounded; forgets the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.engine import decisions as d
from phalanx.serve.engine_view import Reader

Json = dict[str, Any]

EVERY = 5.0  # seconds between two samples
KEPT = 720  # an hour of them


class History:
    def __init__(self, reader: Reader, now: Callable[[], float]) -> None:
        self._reader, self._now = reader, now
        self.samples: deque[Json] = deque(maxlen=KEPT)
        self._waits: list[float] = []
        self._evicted = 0

    def decided(self, made: list[d.Decision]) -> None:
        """Called with every decision; records how long each pod waited."""
        for decision in made:
            if isinstance(decision, d.Bind):
                waited = self._reader.waited(f"{decision.namespace}/{decision.name}")
                if waited is not None:
                    self._waits.append(waited)
            elif isinstance(decision, d.Evict):
                self._evicted += 1

    def sample(self) -> Json:
        """Take one, keep it, forget the oldest."""
        queue = self._reader.waiting()
        waits, self._waits = sorted(self._waits), []
        evicted, self._evicted = self._evicted, 0
        taken = {
            "t": round(self._now(), 1),
            **self._reader.sums(self._reader.layout()),
            "roots": queue["total"],
            "pods": queue["pods"],
            "oldest": queue["oldest"],
            "bound": len(waits),
            "wait": round(waits[len(waits) // 2], 2) if waits else None,
            "longest": round(waits[-1], 2) if waits else None,
            "evicted": evicted,
        }
        self.samples.append(taken)
        return taken
