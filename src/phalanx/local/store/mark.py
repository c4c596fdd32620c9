"""The mark file of a store: the last acknowledged revision, and the process that has the store open.

It is written after the commit is durable, without a sync of its own, so it can lag behind but never be ahead. A log
that ends before its mark has lost acknowledged writes: to SQLite, a missing, truncated or damaged WAL looks like an
older database without errors. A missing or unreadable mark could hide such a loss, so it is an error.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple

SIZE_1 = 64  # of marks of format 1, which have no checksum
SIZE = 128  # bytes; overwritten in place, within one disk sector


class Marked(NamedTuple):
    revision: int
    pid: int  # 0: no process has the store open
    store: str  # identity of the store it belongs to; "" in marks of format 1


class UnreadableMark(Exception):
    """The file exists but is not a valid mark."""


def path_of(store: Path) -> Path:
    return Path(f"{store}.mark")


def read(path: Path) -> Marked | None:
    """Read the mark; None if there is no file. Raises UnreadableMark."""
    try:
        data = path.read_bytes()[:SIZE]
        text = data.decode("ascii").strip()
        words = text.split()
        fields = dict(zip(words[::2], words[1::2], strict=True))
        whole = fields["sum"] == _sum(text.rpartition(" sum ")[0]) if "sum" in fields else len(data) == SIZE_1
        if not whole:
            raise UnreadableMark
        return Marked(int(fields["revision"]), int(fields["pid"]), fields.get("store", ""))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError):
        raise UnreadableMark from None


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


class Mark:
    """The mark of an open store."""

    def __init__(self, path: Path, store: str) -> None:
        self._store = store
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, revision: int, pid: int | None = None) -> None:
        text = f"revision {revision} pid {os.getpid() if pid is None else pid} store {self._store}"
        text = f"{text} sum {_sum(text)}"
        # A failure only makes later checks weaker. The write is durable and must not be reported as failed.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, f"{text:<{SIZE - 1}}\n".encode(), 0)

    def sync(self) -> None:
        """Sync the file once per start: it must exist after a power loss, even with an older content."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
