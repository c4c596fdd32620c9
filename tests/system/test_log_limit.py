"""An unauthenticated client cannot fill the log: the same message of a library is written a few times a minute."""

from __future__ import annotations

import logging

from phalanx.serve.process import MOST_MESSAGES, RECORDS_PER_MINUTE, LimitedMessages


def record(text: str, at: float) -> logging.LogRecord:
    made = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, (), None)
    made.created = at
    return made


def test_the_same_message_is_written_a_few_times_a_minute() -> None:
    limited = LimitedMessages()
    written = [limited.filter(record("Invalid HTTP request received.", 600.0 + i / 100)) for i in range(1000)]
    assert sum(written) == RECORDS_PER_MINUTE
    later = record("Invalid HTTP request received.", 661.0)
    assert limited.filter(later) and "995 more of these were left out" in later.getMessage()
    assert limited.filter(record("something else", 661.0))


def test_messages_that_all_differ_are_limited_together() -> None:
    limited = LimitedMessages()
    written = sum(limited.filter(record(f"path {i} is not here", 600.0)) for i in range(10_000))
    assert written <= MOST_MESSAGES + RECORDS_PER_MINUTE


def test_no_advice_to_install_anything() -> None:
    assert not LimitedMessages().filter(record('No supported WebSocket library detected. Please use "pip', 1.0))
