"""The example of docs/plugins.md, run as written: installed as a package, switched on by configuration."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.verdicts import binds, not_helpful

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


def blocks(text):
    """Return the plugin and its tests: the Python blocks that are not named files of another section."""
    return re.findall(r"```python\n(?!# )(.*?)```", text, re.S)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers the documented plugin by entry point."""
    text = DOCS.read_text()
    code, _ = blocks(text)
    (entry,) = re.findall(r"```toml\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)```", text, re.S)
    (tmp_path / "rents.py").write_text(code)
    info = tmp_path / "rents-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rents\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{entry[0]}]\n{entry[1].replace(chr(34), '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("rents", None)


def test_the_documented_plugin_works_as_documented(installed):
    uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS), PluginUse("MaxRent"))
    run = Cluster(Engine(EngineSettings(profiles=(ProfileSettings(plugins=uses, args={"MaxRent": {"default": 50}}),))))
    run.see(node("a").label("rent", "60"), node("b").label("rent", "90"), node("c").cpu("1"))
    run.see(pod("rich").cpu("2").annotate("example.com/max-rent", "70"), pod("poor").cpu("2"))
    assert binds(run.step()) == {"rich": "a"}
    (sentence,) = re.findall(r"^`(0/3 nodes are available.*)`$", DOCS.read_text(), re.M)
    assert run.messages("poor") == [not_helpful(sentence)]


def test_the_documented_tests_pass_as_printed(tmp_path):
    """Two files, as a reader would make them, and pytest."""
    plugin, tests = blocks(DOCS.read_text())
    (tmp_path / "rents.py").write_text(plugin)
    (tmp_path / "test_rents.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_rents.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_engine_example_runs_as_written():
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS.parent / "architecture.md").read_text(), re.S)
    exec(compile(code, "architecture.md", "exec"), {})  # noqa: S102
