"""The floor of coverage: which tests are measured, and what is said when a package falls."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import coverage
import pytest

TESTS = Path(__file__).parents[1]
RULES = tomllib.loads((TESTS / "coverage.toml").read_text())


@pytest.fixture(scope="module")
def floor() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_floor", TESTS.parent / "tools" / "coverage_floor.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_file_and_package_that_is_named_exists() -> None:
    assert [name for name in RULES["without"] if not (TESTS / name).is_file()] == []
    assert [name for name in RULES["folders"] if not (TESTS / name).is_dir()] == []
    packages = TESTS.parent / "src" / "phalanx"
    assert RULES["floor"] and [name for name in RULES["floor"] if not (packages / name).is_dir()] == []


@pytest.mark.parametrize(("percent", "code"), [(0.0, 1), (100.0, 0)])
def test_a_package_that_fell_is_named(
    floor: ModuleType,
    percent: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(floor, "measured", lambda file: dict.fromkeys(RULES["floor"], 100.0) | {"model": percent})
    assert floor.main("") == code
    fell = [line for line in capsys.readouterr().out.splitlines() if "FELL" in line]
    assert [line.split()[0] for line in fell] == (["phalanx.model"] if code else [])


def test_lines_that_no_test_reached_count_against_their_package(floor: ModuleType, tmp_path: Path) -> None:
    file = str(tmp_path / "data")
    found = coverage.CoverageData(file)
    source = TESTS.parent / "src" / "phalanx" / "base" / "clock.py"
    found.add_lines({str(source): list(range(1, 1 + len(source.read_text().splitlines())))})
    found.write()
    percent = floor.measured(file)
    assert 0 < percent["base"] < 50 and percent["model"] == 0
