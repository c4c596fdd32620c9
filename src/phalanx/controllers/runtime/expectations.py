"""Track our own writes that the cache does not show yet, so that a controller does not create a pod twice.

A controller that creates with generated names cannot see its own creations until the watch delivers them. Names and
uids of created and deleted objects are remembered here until the cache agrees.
"""

from __future__ import annotations

from phalanx.base.clock import Clock

PATIENCE = 300.0  # seconds after which a lost watch event is given up and the cache believed


class Expectations:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, dict[str, float]] = {}  # owner uid -> {what: since}

    def expect(self, owner_uid: str, what: str) -> None:
        self._pending.setdefault(owner_uid, {})[what] = self._clock.monotonic()

    def seen(self, owner_uid: str, what: str) -> None:
        pending = self._pending.get(owner_uid)
        if pending is not None:
            pending.pop(what, None)
            if not pending:
                del self._pending[owner_uid]

    def fulfilled(self, owner_uid: str) -> bool:
        pending = self._pending.get(owner_uid)
        if not pending:
            return True
        oldest = min(pending.values())
        if self._clock.monotonic() - oldest > PATIENCE:
            del self._pending[owner_uid]
            return True
        return False

    def forget(self, owner_uid: str) -> None:
        self._pending.pop(owner_uid, None)
