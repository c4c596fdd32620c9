"""Encoded text that is asked for more than once within a short time."""

from __future__ import annotations

from collections import OrderedDict


class Shared:
    """Encoded text that several watchers need within a short time. Bounded in bytes, oldest out first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._texts: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> bytes | None:
        return self._texts.get(key)

    def keep(self, key: tuple[object, ...], text: bytes) -> bytes:
        self._texts[key] = text
        self._size += len(text)
        while self._size > self._limit:
            _, dropped = self._texts.popitem(last=False)
            self._size -= len(dropped)
        return text
