"""Whatever the code can say has a place in the docs: keys, gates, metrics, reasons. A new one fails here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from phalanx.model.gates import KNOWN
from support.named_in_code import keys, metrics, reasons

DOCS = Path(__file__).parents[2] / "docs"


def named(page: str) -> set[str]:
    """Everything between backticks outside of code blocks."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    return {part for one in re.findall(r"`([^`\n]+)`", text) for part in (one, *one.split(": "))}


@pytest.mark.parametrize(
    ("page", "read"),
    [
        ("annotations.md", keys),
        ("metrics.md", metrics),
        ("reasons.md", reasons),
        ("configuration.md", lambda: set(KNOWN)),
    ],
    ids=["annotations and labels", "metrics", "reasons", "feature gates"],
)
def test_what_the_code_knows_the_page_names(page: str, read: Callable[[], set[str]]) -> None:
    code = read()
    assert len(code) > 5, "nothing was found in the code: the search is broken"
    assert not sorted(code - named(page)), f"docs/{page} does not name them"


@pytest.mark.parametrize(
    ("page", "shape", "read"),
    [
        ("annotations.md", r"(scheduling|simulation|topology)\.phalanx\.dev/[a-z0-9-]+", keys),
        ("metrics.md", r"(phalanx|scheduler|apiserver)_[a-z_]+", metrics),
    ],
)
def test_what_the_page_names_the_code_knows(page: str, shape: str, read: Callable[[], set[str]]) -> None:
    written = {one for one in named(page) if re.fullmatch(shape, one)}
    prefixed = {key for key in written if re.search(r"/(replicated-job|subgroup)-", key)}  # see docs/annotations.md
    assert not sorted(written - prefixed - read()), f"docs/{page} names what is not in the code"


def test_the_gates_page_tells_the_defaults() -> None:
    text = (DOCS / "configuration.md").read_text()
    for name, (on, needs) in KNOWN.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        _, _, default, needed, _ = (cell.strip() for cell in row.split("|", 4))
        assert default == ("on" if on else "off"), name
        assert re.findall(r"`(\w+)`", needed) == list(needs), name


MONITORING = DOCS.parent / "deploy" / "monitoring"
SUFFIXES = r"_(bucket|sum|count)$"


def test_alerts_use_metrics_that_exist() -> None:
    rules = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())["spec"]["groups"][0]["rules"]
    assert len(rules) > 5
    for rule in rules:
        assert used(rule["expr"]) <= metrics(), f"{rule['alert']} uses what is not measured"
        assert rule["annotations"]["summary"]


def test_the_board_uses_metrics_that_exist() -> None:
    board = json.loads((MONITORING / "grafana-phalanx.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert used(target["expr"]) <= metrics(), f"{panel['title']} uses what is not measured"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 10


def used(expression: str) -> set[str]:
    found = re.findall(r"(?:phalanx|scheduler|apiserver)_[a-z_]+", expression)
    assert found, expression
    return {re.sub(SUFFIXES, "", name) for name in found}


def test_pages_that_the_code_points_to_exist() -> None:
    root = DOCS.parent
    code = [
        path
        for folder in ("src", "deploy", "examples", "tests", "bench")
        for path in (root / folder).rglob("*")
        if path.is_file()
    ]
    named = {
        (page, str(path.relative_to(root)))
        for path in code
        if path.suffix in (".py", ".yaml", ".js", ".html", ".md")
        for page in re.findall(r"\bdocs/((?:[a-z-]+/)?[a-z0-9_-]+\.md)", path.read_text(errors="replace"))
    }
    assert len(named) > 5
    assert not sorted((page, where) for page, where in named if not (DOCS / page).exists())
