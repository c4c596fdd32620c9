"""Files made from the code (`tools/pages`) are what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages.__main__ import files
from pages.kinds import DOES
from phalanx.model.builtin import registry

MADE = files()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_made_file_is_fresh(path: Path) -> None:
    assert path.read_text() == MADE[path], "run `make docs`"


def test_every_served_kind_says_what_it_does_here_and_no_other() -> None:
    assert set(DOES) == {kind.key for kind in registry().all()}
