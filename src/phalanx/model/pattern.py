"""Regular expressions that come from users: CRD patterns, JobSet failure policies.

RE2 needs time linear in the text for any pattern, and Kubernetes uses its syntax (Go's). Nothing a user
wrote may ever reach Python's `re`, whose backtracking takes 2^n steps for `^(a+)+$`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

MAX_MEMORY = 1 << 20  # bytes of one compiled pattern: `(((a{100}){100}){100})` is refused, nothing written by hand is


class Pattern(Protocol):
    def search(self, text: str) -> object | None: ...


_options = re2.Options()
_options.log_errors = False
_options.never_capture = True
_options.max_mem = MAX_MEMORY


@lru_cache(maxsize=512)
def compiled(pattern: str) -> Pattern | None:
    """Compile a regular expression; return None if it is invalid or too large."""
    try:
        return cast(Pattern, re2.compile(pattern, options=_options))
    except (re2.error, UnicodeError):
        return None
