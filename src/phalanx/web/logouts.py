"""Logouts: a cookie that was logged out is rejected, also after a restart.

Names of logins are kept as hashes until they expire, in a file that only its owner may read.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from phalanx.local.api.files import write_private

log = logging.getLogger(__name__)

FILE = "dashboard-logouts"  # in the data directory


class Logouts:
    def __init__(self, now: Callable[[], float], path: Path | None = None, session_seconds: float = 0.0) -> None:
        """`session_seconds`: how long a login lasts at most."""
        self._now, self._path = now, path
        self._ended: dict[str, float] = {}  # digest of a login's name -> when it expires
        self._first = 0  # logins that end before this predate the lost list of logouts
        try:
            self._ended = msgspec.json.decode(path.read_bytes(), type=dict[str, float]) if path else {}
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as problem:
            log.warning("%s cannot be read (%s): all users of the dashboard must log in again", path, problem)
            self._first = int(now() + session_seconds)

    def add(self, name: str, until: float) -> None:
        """Remember that this session ended, on disk as well."""
        now = self._now()
        self._ended = {digest: end for digest, end in self._ended.items() if end >= now}
        self._ended[_digest(name)] = until
        if self._path is None:
            return
        try:
            write_private(self._path, msgspec.json.encode(self._ended))
        except OSError as problem:
            log.warning("%s cannot be written (%s): a logout is forgotten at the next restart", self._path, problem)

    def has(self, name: str, until: float) -> bool:
        return _digest(name) in self._ended or until < self._first


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
