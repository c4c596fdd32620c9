"""How large everything is that an engine keeps: one number per attribute of a class, whatever tables there are.

Found by looking, not from a list: a table added tomorrow is counted tomorrow.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

_PLAIN = (str, bytes, int, float, bool, type(None), type)
_CAPACITY = 64  # an array of so many rows counts as one entry


def table_sizes(root: Any) -> Counter[str]:
    """Entries by "Class.attribute", over every object of ours that can be reached from `root`; nested tables too."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        where, thing = waiting.popleft()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            sizes[where] += 1 + thing.size // _CAPACITY
        elif isinstance(thing, dict):
            sizes[where] += len(thing)
            waiting.extend((where, part) for pair in thing.items() for part in pair)
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            if not isinstance(thing, tuple):
                sizes[where] += len(thing)
            waiting.extend((where, part) for part in thing)
        elif any(cls.__module__.startswith("phalanx.") for cls in type(thing).__mro__):
            waiting.extend((f"{type(thing).__name__}.{name}", value) for name, value in _attributes(thing))
    return sizes


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for cls in type(thing).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name):
                yield name, getattr(thing, name)
