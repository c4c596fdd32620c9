"""The sample of docs/plugins.md runs as printed: in an empty directory, with nothing but Phalanx and pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


@pytest.mark.slow
def test_the_sample_runs_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["conftest.py", "test_training.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_installs_what_its_sample_is_run_with() -> None:
    """Phalanx itself does not need pytest, so that installing it alone is not enough."""
    (line,) = re.findall(r"^    pip install (.*?) +#", PAGE.read_text(), re.MULTILINE)
    assert line.split() == [".", "pytest"]
