"""Pages that an ordinary Kubernetes engineer reads once: few, of one kind each, in short lines and plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from phalanx.cli.page import page as commands_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MOST_PAGES = {"Tutorial": 2, "How to": 13, "Reference": 13, "Explanation": 7}
MOST_WORDS = 46_000  # with a letter or a digit: bars of tables and rules do not count
MOST_CHARACTERS = 150  # of a line that is neither a row of a table nor has a link
BANNED = re.compile(
    r"\b(whom|whoever|nobody|somebody|anybody|told|anew|fellows|dearest|in vain|makes? way|asleep|sent away)\b", re.I
)


def unreleased() -> str:
    """The first section of the changelog."""
    return (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]


def texts() -> Iterator[tuple[str, str]]:
    yield from ((str(page.relative_to(ROOT)), page.read_text()) for page in PAGES)
    yield "CHANGELOG.md", unreleased()
    yield "--help", commands_page()
    for folder in ("src", "deploy", "examples", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".js", ".html", ".table", ".yaml", ".md"):
                yield str(path.relative_to(ROOT)), path.read_text()


def test_pages_and_sources_use_plain_words() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if BANNED.search(line)
    ]
    assert not found, "write plain Kubernetes words instead:\n" + "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    long = [
        number
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > MOST_CHARACTERS and not line.startswith("|") and "](" not in line
    ]
    assert not long, f"{page.name}: lines {long} have more than {MOST_CHARACTERS} characters"


def test_there_are_few_pages_of_each_kind() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    counts = {kind: len(pages) for entry in nav[1:] for kind, pages in entry.items()}
    assert counts.keys() == MOST_PAGES.keys()
    assert all(counts[kind] <= most for kind, most in MOST_PAGES.items()), counts


def test_the_pages_are_read_in_a_day() -> None:
    words = sum(bool(re.search(r"\w", word)) for page in DOCS.rglob("*.md") for word in page.read_text().split())
    assert words <= MOST_WORDS, "merge or delete what stands twice"


def test_the_unreleased_section_of_the_changelog_is_read_in_five_minutes() -> None:
    lines = unreleased().splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if line.startswith("### ")] == ["### Added", "### Changed", "### Fixed"]


def test_a_gap_is_one_line() -> None:
    lines = (DOCS / "gaps.md").read_text().splitlines()
    assert not [line for line in lines if line.startswith("  ")]
    assert len([line for line in lines if line.startswith("- **")]) > 20
