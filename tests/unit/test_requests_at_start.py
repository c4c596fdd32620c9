"""Requests of a part that starts are repeated, and the log says why without being filled."""

from __future__ import annotations

import logging

import pytest

from phalanx.base.errors import ApiProblem, Forbidden, Unreachable
from phalanx.serve.remote import REPORT_EVERY, answered
from support.virtual_time import VirtualLoop, run


@pytest.mark.parametrize(
    ("problem", "lines", "said"),
    [
        (Forbidden("secrets is forbidden"), 1, "`phalanx check-cluster` which rights are missing"),
        (Unreachable("no answer"), 6, "no answer; asking again"),
    ],
)
def test_a_missing_right_is_logged_once_and_silence_again_and_again(
    caplog: pytest.LogCaptureFixture, problem: ApiProblem, lines: int, said: str
) -> None:
    async def main(loop: VirtualLoop) -> str:
        async def ask() -> str:
            if loop.time() < 5.5 * REPORT_EVERY:
                raise problem
            return "answer"

        return await answered("reading Secret phalanx-system/tls", ask)

    with caplog.at_level(logging.WARNING):
        assert run(main) == "answer"
    found = [entry.getMessage() for entry in caplog.records]
    assert len(found) == lines and all(said in line for line in found)
