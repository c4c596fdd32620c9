"""Limit what strangers can have written into the log: requests without a valid token, or that are not even HTTP.

The libraries that read from sockets log each bad request, and any client that reaches the port can send any number,
so the same message of one of them is written a few times a minute; the next one after that says how many were left out.
"""

from __future__ import annotations

import logging

LIBRARIES = (
    "uvicorn.error",
    "uvicorn.access",
    "asyncio",
    "aiohttp.server",
    "aiohttp.access",
    "aiohttp.web",
    "phalanx.api",
)
PER_MINUTE = 5  # records of one message
MOST_MESSAGES = 256  # that are counted apart
ADVICE = "No supported WebSocket library"  # to install one: exec and attach need containers, which are simulated


class LimitedMessages(logging.Filter):
    """One for each logger. A message is its text before arguments are put in."""

    def __init__(self) -> None:
        super().__init__()
        self._minute = -1
        self._seen: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith(ADVICE):
            return False
        minute = int(record.created // 60)
        if minute != self._minute:
            self._minute = minute
            self._left_out = {key: count - PER_MINUTE for key, count in self._seen.items() if count > PER_MINUTE}
            self._seen = {}
        key = text if text in self._seen or len(self._seen) < MOST_MESSAGES else ""
        count = self._seen[key] = self._seen.get(key, 0) + 1
        if count > PER_MINUTE:
            return False
        if left_out := self._left_out.pop(key, 0):
            record.msg = f"{text} ({left_out} more of these were left out)"
        return True


def limit_libraries() -> None:
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if not any(isinstance(each, LimitedMessages) for each in logger.filters):
            logger.addFilter(LimitedMessages())
