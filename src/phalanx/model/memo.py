"""Cache results of checks of JSON values for equal values: thousands of pods have the same spec.

For pure questions only, whose answer depends on nothing but the value; answers are shared and must not be changed.
Bounded in number and size: values that are never alike cost one encoding each, and nothing is kept of large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

MOST = 128  # values
LARGEST = 16 << 10  # bytes of one

_encode = msgspec.json.Encoder().encode
_UNKNOWN: Any = object()


class Memo(Generic[T]):
    def __init__(self, ask: Callable[[Any], T], most: int = MOST) -> None:
        self._ask = ask
        self._most = most
        self._answers: dict[bytes, T] = {}

    def __call__(self, value: Any) -> T:
        """Return the answer for `value`, from memory if it was asked before.

        `value`: anything that JSON can express, or bytes that are JSON already.
        """
        key = value if value.__class__ is bytes else _encode(value)
        answer: T = self._answers.get(key, _UNKNOWN)
        if answer is _UNKNOWN:
            answer = self._ask(value)
            if len(key) <= LARGEST:
                if len(self._answers) >= self._most:
                    del self._answers[next(iter(self._answers))]  # the oldest
                self._answers[key] = answer
        return answer

    def __len__(self) -> int:
        return len(self._answers)
