"""What `kubectl get` shows of every kind."""

from __future__ import annotations

from phalanx.model.kinds import Column
from phalanx.model.printing.cells import AGE, NAME

__all__ = ["columns_for"]

_DEFAULT: tuple[Column, ...] = (NAME, AGE)
_COLUMNS: dict[str, tuple[Column, ...]] = {}


def columns_for(storage_key: str) -> tuple[Column, ...]:
    """The Table columns of a kind; Name and Age where nobody said more."""
    return _COLUMNS.get(storage_key, _DEFAULT)
