"""Keep the code simple to read: one name per class, a flat `engine.scheduling`, short constructors, few words."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import phalanx

SRC = Path(phalanx.__file__).parent


def test_no_two_classes_share_a_name():
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for thing in ast.parse(path.read_text()).body:
            if isinstance(thing, ast.ClassDef) and not thing.name.startswith("_"):
                places[thing.name].append(f"{path.relative_to(SRC)}:{thing.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_scheduling_has_at_most_six_import_levels():
    imports: dict[str, set[str]] = {}
    for path in sorted((SRC / "engine" / "scheduling").rglob("*.py")):
        module = ".".join(path.relative_to(SRC.parent).with_suffix("").parts)
        found = (each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ImportFrom))
        imports[module] = {each.module or "" for each in found}

    @cache
    def level(module: str) -> int:
        return 1 + max((level(below) for below in imports[module] if below in imports), default=0)

    assert len(imports) > 30
    assert {module: level(module) for module in imports if level(module) > 6} == {}


def test_constructors_of_the_engine_take_at_most_six_arguments():
    long = []
    for path in sorted((SRC / "engine").rglob("*.py")):
        for made in ast.walk(ast.parse(path.read_text())):
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                count = len(made.args.args) + len(made.args.kwonlyargs) - 1  # without self
                if count > 6:
                    long.append(f"{path.relative_to(SRC)}:{made.lineno} takes {count}")
    assert long == []


def test_constructors_take_at_most_six_arguments_besides_optional_keywords():
    long = []
    for path in sorted(SRC.rglob("*.py")):
        for made in ast.walk(ast.parse(path.read_text())):
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                required = sum(default is None for default in made.args.kw_defaults)
                if (count := len(made.args.args) + required - 1) > 6:  # without self
                    long.append(f"{path.relative_to(SRC)}:{made.lineno} takes {count}")
    assert long == []


def test_the_glossary_stays_small():
    page = SRC.parents[1] / "docs" / "architecture.md"
    table = page.read_text().partition("### Words")[2].partition("\n## ")[0]
    words = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert 10 < len(words) - 1 <= 20
