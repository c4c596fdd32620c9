"""One noun, one meaning: no name stands for two classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import phalanx


def test_no_two_classes_share_a_name():
    root = Path(phalanx.__file__).parent
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for thing in ast.parse(path.read_text()).body:
            if isinstance(thing, ast.ClassDef) and not thing.name.startswith("_"):
                places[thing.name].append(f"{path.relative_to(root)}:{thing.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_glossary_stays_small():
    page = Path(phalanx.__file__).parents[2] / "docs" / "architecture.md"
    table = page.read_text().partition("### Words")[2].partition("\n## ")[0]
    words = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert 10 < len(words) - 1 <= 20
