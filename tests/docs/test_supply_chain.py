"""What is shipped is known: pinned by hash for the image, listed, and the same bytes each time it is built."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from phalanx import __version__
from phalanx.serve.demo import MANIFEST, write_manifest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ["", "dev"])
def test_the_lock_has_a_hash_for_everything_and_fits_what_the_project_asks_for(extra: str) -> None:
    text = (ROOT / (f"requirements-{extra}.lock" if extra else "requirements.lock")).read_text()
    pinned = dict(re.findall(r"^([a-z0-9._-]+)(?:\[\S+\])?==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.M))
    assert len(pinned) == text.count("==") and not re.search(r"https?://|file:|/opt/", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {name.replace("_", "-"): version for name, version in pinned.items()}
    for line in [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]:
        wanted = Requirement(line)
        if wanted.name == project["name"]:
            continue  # another extra of ours
        version = named.get(wanted.name.lower().replace("_", "-"))
        assert version is not None and wanted.specifier.contains(version), f"{line}: run `make lock`"


def test_what_is_pinned_runs_on_the_first_release_of_the_python_it_is_pinned_for() -> None:
    """A distribution has its own patch release: Debian 12 has 3.11.2, and the newest of everything asked for 3.11.5."""
    text = (ROOT / "requirements-dev.lock").read_text()
    oldest = re.search(r"CPython (\d+\.\d+)", text)
    assert oldest is not None
    looked_at = 0
    for name, version in re.findall(r"^([a-z0-9._-]+)(?:\[\S+\])?==(\S+)", text, re.M):
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue
        if found["Version"] == version:
            looked_at += 1
            asks = SpecifierSet(found["Requires-Python"] or "")
            assert asks.contains(f"{oldest[1]}.0"), f"{name} {version} asks for Python {asks}: run `make lock`"
    assert looked_at > 30


def test_the_lock_names_the_extras_that_packages_require() -> None:
    """Without them pip 23 takes the newest release for `coverage[toml]>=7`, which has no hash in the lock."""
    text = (ROOT / "requirements-dev.lock").read_text()
    extras = {name: set(found.split(",")) for name, found in re.findall(r"^([a-z0-9._-]+)\[(\S+)\]==", text, re.M)}
    for name in re.findall(r"^([a-z0-9._-]+)(?:\[\S+\])?==", text, re.M):
        try:
            required = [Requirement(line) for line in metadata(name).get_all("Requires-Dist") or ()]
        except PackageNotFoundError:
            continue
        for each in required:
            if each.extras and (each.marker is None or each.marker.evaluate({"extra": ""})):
                assert each.extras <= extras.get(each.name.lower(), set()), f"{name} requires {each}: run `make lock`"


def test_the_base_image_is_pinned_by_digest() -> None:
    bases = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "deploy/Dockerfile").read_text(), re.M)
    assert len(bases) == 1 and re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", bases[0])


def test_the_sbom_names_every_dependency_and_is_the_same_each_time() -> None:
    texts = [subprocess.check_output([sys.executable, "tools/sbom.py"], cwd=ROOT, text=True) for _ in range(2)]
    assert texts[0] == texts[1]
    bom = json.loads(texts[0])
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    names = {component["name"] for component in bom["components"]}
    assert {"numpy", "msgspec", "aiohttp", "multidict"} <= names and "pytest" not in names
    known = {component["bom-ref"] for component in [*bom["components"], bom["metadata"]["component"]]}
    assert all({entry["ref"], *entry["dependsOn"]} <= known for entry in bom["dependencies"])


def test_two_builds_of_the_wheel_are_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / name)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = (tmp_path / name).glob("*.whl")
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1
    with zipfile.ZipFile(wheel) as packed:
        for name, source in (("roles.yaml", "deploy/base/20-rbac.yaml"), ("urgent.yaml", MANIFEST)):
            assert packed.read(f"phalanx/serve/{name}") == (ROOT / source).read_bytes()


def test_the_commands_of_the_guide_work_outside_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_manifest()
    assert (tmp_path / MANIFEST).read_text() == (ROOT / "examples/urgent.yaml").read_text()
    (tmp_path / MANIFEST).write_text("mine")
    write_manifest()
    assert (tmp_path / MANIFEST).read_text() == "mine"


def test_every_file_that_names_the_version_names_the_same_one() -> None:
    named = re.compile(r"(?:phalanx:|newTag: |^version: |^appVersion: |^  tag: )(\d+\.\d+\.\d+)", re.M)
    files = [*(ROOT / "deploy").rglob("*"), ROOT / "docs/install.md", ROOT / "tools/image.py"]
    found = {(path.name, version) for path in files if path.is_file() for version in named.findall(path.read_text())}
    assert len(found) >= 8 and {version for _, version in found} == {__version__}
