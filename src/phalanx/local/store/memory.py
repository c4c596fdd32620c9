"""Gives memory back to the system. The C library keeps what was freed for later; after a long history goes, that is
most of the process."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

WORTH = 8 << 20  # bytes freed at once


@cache
def _library() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None  # glibc only


def give_back() -> None:
    """Takes milliseconds: call it in a thread."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)
