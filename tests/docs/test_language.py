"""Pages that an ordinary Kubernetes engineer reads once: few, of one kind each, in short lines and plain words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pages.commands import page as commands_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MOST_PAGES = {"Tutorial": 1, "How to": 10, "Reference": 13, "Explanation": 4}
MOST_WORDS = 46_000  # with a letter or a digit: bars of tables and rules do not count
MOST_CHARACTERS = 150  # of a line that is neither a row of a table nor has a link
BANNED = re.compile(
    r"\b(whom|whoever|nobody|somebody|anybody|told|anew|fellows|dearest|in vain|makes? way|asleep|sent away"
    r"|wishes|twins|homeless|hostile|sieves?|sleepers?|furnish\w*|doomed|strangers?|culprits?|lonely|crumbs?|choosy)\b",
    re.I,
)
TESTS = ROOT / "tests"


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


def plain(name: str) -> str:
    """Write the parts of an identifier as words."""
    return name.replace("_", " ")


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Find names, comments, docstrings and messages of assertions; other strings are data of a test."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.COMMENT):
            yield token.start[0], plain(token.string)
    for node in ast.walk(ast.parse(source)):
        shown = node.value if isinstance(node, ast.Expr) else node.msg if isinstance(node, ast.Assert) else None
        if isinstance(shown, ast.Constant | ast.JoinedStr):
            parts = (each.value for each in ast.walk(shown) if isinstance(each, ast.Constant))
            yield from ((shown.lineno, part) for part in parts if isinstance(part, str))


def in_tests() -> Iterator[tuple[str, int, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        name, source = str(path.relative_to(ROOT)), path.read_text()
        yield name, 0, plain(path.stem)
        if path != Path(__file__) and BANNED.search(plain(source)):
            yield from ((name, number, text) for number, text in prose(source))
    for path in sorted(TESTS.rglob("*.yaml")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield str(path.relative_to(ROOT)), number, line.partition("#")[2]


def test_tests_use_plain_words() -> None:
    found = [f"{name}:{number}: {text.strip()}" for name, number, text in in_tests() if BANNED.search(text)]
    assert not found, "write plain Kubernetes words instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def test_a_pod_is_told(): pass", [1]),
        ("x = 1\ny = 2  # nobody reads it", [2]),
        ('def f():\n    """Whom it evicts."""', [2]),
        ('assert x, f"{x} is made anew"', [1]),
        ('x = get("nobody")\nassert x == "nobody"', []),
    ],
)
def test_words_of_tests_are_found_and_their_data_is_not(source: str, lines: list[int]) -> None:
    assert [number for number, text in prose(source) if BANNED.search(text)] == lines


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
