"""docs/kinds.md is what the registry says."""

from __future__ import annotations

from pathlib import Path

from phalanx.model.builtin import registry
from phalanx.model.kinds_page import DOES, page

PAGE = Path(__file__).parents[2] / "docs" / "kinds.md"


def test_every_served_kind_says_what_it_does_here_and_no_other() -> None:
    assert set(DOES) == {kind.key for kind in registry().all()}


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"
