"""Read a document field by field. Every wrong type, range or unknown field raises a ConfigProblem with its path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from phalanx.base.clock import parse_duration
from phalanx.base.errors import ConfigProblem

T = TypeVar("T")


class Fields:
    """Read a JSON object. Take the known fields, then call `done()`."""

    def __init__(self, value: object, path: str = "") -> None:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise ConfigProblem(path, f"must be an object, not {_kind(value)}")
        self.path = path
        self._left: dict[str, Any] = dict(value)

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, default: Any = None) -> Any:
        """Return and remove the raw value; null counts as absent, as in Kubernetes."""
        value = self._left.pop(key, None)
        return default if value is None else value

    def has(self, key: str) -> bool:
        return self._left.get(key) is not None

    def rest(self) -> dict[str, Any]:
        """Return and remove all remaining fields, as written."""
        left, self._left = self._left, {}
        return left

    def text(self, key: str, default: str = "", choices: Iterable[str] = ()) -> str:
        value = self.take(key, default)
        if not isinstance(value, str):
            raise ConfigProblem(self.at(key), f"must be text, not {_kind(value)}")
        allowed = list(choices)
        if allowed and value not in allowed:
            listed = ", ".join(f'"{choice}"' for choice in allowed)
            raise ConfigProblem(self.at(key), f'Unsupported value: "{value}": supported values: {listed}')
        return value

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ConfigProblem(self.at(key), f"must be true or false, not {_kind(value)}")
        return value

    def integer(self, key: str, default: int = 0, low: int | None = None, high: int | None = None) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigProblem(self.at(key), f"must be a whole number, not {_kind(value)}")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"[{low}, {high}]" if high is not None else f"[{low}, inf)"
            raise ConfigProblem(self.at(key), f"Invalid value: {value}: not in valid range {bounds}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigProblem(self.at(key), f"must be a number, not {_kind(value)}")
        return float(value)

    def seconds(self, key: str, default: float) -> float:
        """Read a Go duration such as "15s" or "1m30s", in seconds."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigProblem(self.at(key), f'must be a duration such as "15s", not {_kind(value)}')
        try:
            return parse_duration(value)
        except ValueError:
            raise ConfigProblem(self.at(key), f'Invalid value: "{value}": not a duration such as "15s"') from None

    def object(self, key: str) -> Fields:
        return Fields(self.take(key), self.at(key))

    def items(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) for every element of a list."""
        value = self.take(key, [])
        if not isinstance(value, list):
            raise ConfigProblem(self.at(key), f"must be a list, not {_kind(value)}")
        for index, item in enumerate(value):
            yield f"{self.at(key)}[{index}]", item

    def texts(self, key: str) -> tuple[str, ...]:
        found = []
        for path, item in self.items(key):
            if not isinstance(item, str):
                raise ConfigProblem(path, f"must be text, not {_kind(item)}")
            found.append(item)
        return tuple(found)

    def typed(self, key: str, cls: type[T]) -> T | None:
        """Read a field as a Kubernetes type."""
        value = self.take(key)
        if value is None:
            return None
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as problem:
            text = str(problem)
            found = re.search(r" - at `\$(.*)`$", text)
            path = self.at(key) + (found.group(1) if found else "")
            raise ConfigProblem(path, text[: found.start()] if found else text) from None

    def done(self) -> None:
        """Raise ConfigProblem if an unknown field remains."""
        for key in self._left:
            raise ConfigProblem(self.at(key), "unknown field")


def _kind(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "null"
