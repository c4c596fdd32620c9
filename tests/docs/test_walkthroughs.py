"""The walk-throughs, typed as written into a shell, against the cluster they start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.walkthrough import matches, parse, play

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "\n```sh\nphalanx up" in page.read_text())


@pytest.mark.slow
@pytest.mark.kubectl
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
@pytest.mark.parametrize("name", PAGES)
def test_every_command_prints_what_the_document_says(name: str) -> None:
    problems = play(DOCS / name)
    assert not problems, "\n\n".join(problems)


def test_every_page_that_shows_a_dialogue_is_played() -> None:
    shown = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "\n```console\n" in page.read_text()}
    assert shown - set(PAGES) == {"index.md"}  # `make up`, which the README's test types
    assert {str(page.relative_to(DOCS)) for page in DOCS.glob("how-to/*.md")} <= set(PAGES)


def test_a_document_that_lies_is_caught() -> None:
    assert matches(["a  <AGE>", "...", "end"], ["a 3s", "x", "y", "end"])
    assert not matches(["a <AGE>"], ["a"])
    assert not matches(["a"], ["a", "b"])
    assert matches(["..."], [])
    (walk,) = parse("```sh\nphalanx up\n```\n```console\n$ cat <<'EOF'\n$ not a command\nEOF\nout\n$ next\n```\n")
    assert walk.start == "phalanx up"
    assert [(step.command, step.expected) for step in walk.steps] == [
        ("cat <<'EOF'\n$ not a command\nEOF", ["out"]),
        ("next", []),
    ]
    text = "```sh\nphalanx up\n```\n```console\n$ one\n```\n```sh\nphalanx up --nodes 2\n```\n```console\n$ two\n```\n"
    assert [(walk.start, walk.steps[0].command) for walk in parse(text)] == [
        ("phalanx up", "one"),
        ("phalanx up --nodes 2", "two"),
    ]
