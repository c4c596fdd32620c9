"""The rules of tests/README.md that a program can check."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_no_test_is_imported_by_another() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in FILES
        if (names := [name for name in imported(path) if name.rpartition(".")[2].startswith("test_")])
    }
    assert not found, "what two tests share belongs to tests/support"


def test_a_gang_is_built_in_one_way() -> None:
    found = [
        str(path.relative_to(TESTS))
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name in ("gang", "eventually", "wait_for")
    ]
    assert found == ["support/manifests.py", "support/waiting.py"], "use these, or phalanx.testing.builders.gang"
