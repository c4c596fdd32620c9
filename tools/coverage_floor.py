"""Compare the floors of tests/coverage.toml with what was measured (.coverage), and name the packages that fell."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "phalanx"


def measured(data_file: str) -> dict[str, float]:
    """Percent of lines reached, by package."""
    found = coverage.Coverage(data_file=data_file)
    found.load()
    lines: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        package, *rest = path.relative_to(SOURCE).parts
        if rest:
            _, statements, _, missing, _ = found.analysis2(str(path))
            lines[package] += len(statements)
            missed[package] += len(missing)
    return {package: 100 * (1 - missed[package] / lines[package]) for package in lines if lines[package]}


def main(data_file: str) -> int:
    floors: dict[str, float] = tomllib.loads((ROOT / "tests" / "coverage.toml").read_text())["floor"]
    reached = measured(data_file)
    fell = 0
    for package, floor in floors.items():
        percent = reached.get(package, 0.0)
        print(f"coverage of phalanx.{package}: {percent:.1f} % of lines (floor {floor} %)")
        if percent < floor:
            fell += 1
            print(f"phalanx.{package} FELL below its floor: test what is new; `make coverage` shows lines not reached")
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / ".coverage")))
