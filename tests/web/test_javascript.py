"""The dashboard's JavaScript: facts come from Python, reasons from the feed, tools from a lock file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pages.constants import CONSTANTS
from phalanx.base.well_known import GPU
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model.groups.keys import TOPOLOGY_KEYS

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src/phalanx/web/static"
TOOLS = ROOT / "tools/javascript"
PAGES = {path.name: path.read_text() for path in sorted(STATIC.glob("*.js")) if path.name != "constants.js"}


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    return [text for each in value for text in strings(each)] if isinstance(value, list | tuple) else []


# Words of one syllable such as "pods" or "active" mean other things elsewhere.
FACTS = sorted({text for value, _ in CONSTANTS.values() for text in strings(value) if re.search(r"[/A-Z ]", text[1:])})


def repeated(text: str) -> list[str]:
    """Return what a module of the page repeats of the constants."""
    facts = [fact for fact in FACTS if len(fact) > 3 and re.search(rf"[\"'`: ]{re.escape(fact)}[\"'`}}\s]", text)]
    return facts + [name for name in CONSTANTS if re.search(rf"\b(?:const|let|var|static)\s+{name}\b", text)]


@pytest.mark.parametrize("name", PAGES)
def test_no_constant_is_repeated(name: str) -> None:
    # Kinds are said in texts and manifests; flags are asked for by their names, which the type checker knows.
    used = {*CONSTANTS["KINDS"][0].values(), *CONSTANTS["FLAG"][0]}
    assert [fact for fact in repeated(PAGES[name]) if fact not in used] == []


@pytest.mark.parametrize(
    "text",
    [
        "const FLAG = { cordoned: 1 };",
        'const key = "topology.phalanx.dev/rack";',
        "    schedulingConstraints: {topology: [{key: topology.phalanx.dev/rack}]}",
        'labels["scheduling.phalanx.dev/pod-group"]',
        '["TaintToleration", "taints"]',
        'budgets: "budgetViolations"',
    ],
)
def test_a_repeated_constant_is_found(text: str) -> None:
    assert repeated(text)


def test_quantities_are_read_with_the_same_suffixes() -> None:
    binary = re.compile(r"2 \*\* [1-5]0|1e-?[369]\b|\b10[0-9]{2}\d* \*\* ")
    assert [name for name, text in PAGES.items() if "SUFFIX" in text and binary.search(text)] == []


# A reason is a field of the feed. A page that takes a message apart breaks when the sentence is written better.
TAKEN_APART = re.compile(
    r"\b(?:message|headline|summary|words|reason|why)\b(?:\)|\s*\?\?[^;\n]*\))?\??\s*\.(?:match|matchAll|search|split|replace)\("
    r"|(?:exec|test)\([^()\n]*\b(?:message|headline|summary|words|reason|why)\b"
)


@pytest.mark.parametrize("name", PAGES)
def test_no_reason_is_recovered_from_a_message(name: str) -> None:
    assert [found.group() for found in TAKEN_APART.finditer(PAGES[name])] == []


@pytest.mark.parametrize("text", ["/Insufficient (.+)/.exec(root.message)", 'root.headline.replace(/short of/, "")'])
def test_a_message_taken_apart_is_found(text: str) -> None:
    assert TAKEN_APART.search(text)


def test_the_urgent_example_is_that_of_the_folder() -> None:
    text = PAGES["examples.js"].partition("name: URGENT")[2].partition("text: `")[2].partition("`")[0]
    text = text.replace("${RACK}", TOPOLOGY_KEYS[-1]).replace("${GPU}", GPU)
    assert (ROOT / "examples/urgent.yaml").read_text().partition("\n")[2] == text  # without its first comment


def test_filters_of_a_what_if_are_plugins() -> None:
    assert set(CONSTANTS["FILTERS"][0]) <= set(DEFAULT_PLUGINS)


def test_the_lock_pins_versions_and_names_no_host() -> None:
    text = (TOOLS / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    wanted = json.loads((TOOLS / "package.json").read_text())["devDependencies"]
    assert packages[""]["devDependencies"] == wanted
    assert all(re.fullmatch(r"[0-9.]+", version) for version in wanted.values())
    assert [name for name, entry in packages.items() if name and not entry.get("integrity")] == []
    assert [name for name, entry in packages.items() if "resolved" in entry] == []


def test_without_node_one_line_says_why() -> None:
    shell = shutil.which("sh")
    assert shell is not None
    run = subprocess.run([shell, str(TOOLS / "lint")], env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert run.stdout == "JavaScript not linted: node and npm are not installed (apt-get install nodejs npm)\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH")
def test_an_answer_that_takes_longer_than_the_time_between_changes_arrives(tmp_path: Path) -> None:
    """Each change asked again and threw the answer before it away, so that a busy cluster never gave one."""
    script = """
        import { oneAtATime } from "./feed.mjs";
        const answers = [];
        const gates = [];
        let asked = 0;
        const ask = oneAtATime(async () => {
            const number = ++asked;
            await new Promise((done) => gates.push(done));
            answers.push(number);
        });
        const first = ask();
        for (let change = 0; change < 5; change++) ask();
        gates.shift()();
        await new Promise((done) => setImmediate(done));
        const early = [...answers];
        gates.shift()();
        await first;
        console.log(JSON.stringify([early, answers, asked]));
    """
    (tmp_path / "feed.mjs").write_text(PAGES["feed.js"])
    (tmp_path / "asked.mjs").write_text(script)
    done = subprocess.run(["node", str(tmp_path / "asked.mjs")], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [[1], [1, 2], 2]
