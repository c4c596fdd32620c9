"""tools/image.py: the archive it writes is an OCI image that runs as no root, with equal bytes for equal files.

The build itself needs root and Debian's packages; docs/install.md says when it was last done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "image.py"


@pytest.fixture(scope="module")
def image() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_archive_is_an_image_of_a_user_without_rights(image: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "tool").write_text("x")
    (root / "bin").symlink_to("usr/bin")
    (root / "proc" / "1").mkdir(parents=True)
    (root / "dev").mkdir()
    os.mkfifo(root / "dev" / "null")  # a device, as mmdebstrap makes them; this one needs no root
    written = [tmp_path / "a.tar", tmp_path / "b.tar"]
    digests = {image.archive([image.layer(root, 0)], "phalanx:x", 0, target) for target in written}
    assert len(digests) == 1 and written[0].read_bytes() == written[1].read_bytes()
    with tarfile.open(written[0]) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar.getmembers()}  # type: ignore[union-attr]
    for name, data in files.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]

    def blob(about: dict[str, Any]) -> bytes:
        return files[f"blobs/sha256/{about['digest'].removeprefix('sha256:')}"]

    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["digest"] in digests
    manifest = json.loads(blob(described))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["User"] == "65532:65532"
    assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
    (tmp_path / "layer.tar").write_bytes(blob(manifest["layers"][0]))
    with tarfile.open(tmp_path / "layer.tar") as tar:
        names = {entry.name: entry for entry in tar.getmembers()}
    assert names["bin"].issym() and "usr/bin/tool" in names and "proc/1" not in names
    assert {entry.uid for entry in names.values()} == {0}
    image.unpack([image.layer(root, 0)], tmp_path / "kept")
    kept = {path.relative_to(tmp_path / "kept").as_posix() for path in (tmp_path / "kept").rglob("*")}
    assert kept == set(names) and "dev/null" not in kept
