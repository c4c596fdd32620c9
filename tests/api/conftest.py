"""Fixtures of the tests that drive the Writer without HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from writing import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
