"""Build the image from package registries alone: Debian packages, and the locked wheels of requirements.lock.

    python tools/image.py phalanx.tar              needs root, mmdebstrap (a Debian package) and pip for CPython 3.11
    docker load -i phalanx.tar                     or: podman load, skopeo copy oci-archive:phalanx.tar …

No base image is pulled. The packages are those that apt on this machine finds. The image runs as user 65532, writes
nothing to its root file system, and has no shell entry point. Times in it are those of SOURCE_DATE_EPOCH, else 0.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUITE = "bookworm"  # has CPython 3.11, for which requirements.lock is
PACKAGES = "python3-minimal,libpython3-stdlib,ca-certificates"
SITE = "usr/local/lib/python3.11/dist-packages"  # on the path of Debian's python3
USER = "65532:65532"
CONFIG = {
    "User": USER,
    "Entrypoint": ["python3", "-m", "phalanx"],
    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"],
    "WorkingDir": "/tmp",
}
LEFT_OUT = (
    "proc",
    "sys",
    "dev",
    "var/cache",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)


def base(target: Path) -> None:
    command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(target)]
    subprocess.run(command, check=True)


def program(target: Path) -> None:
    """Install the locked dependencies and this checkout, compiled: nothing can be compiled in a read-only root."""
    site = target / SITE
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", str(site)]
    subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / "requirements.lock")], check=True)
    subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target)]
    subprocess.run([*compiled, "-p", "/", str(site)], check=True)


def layer(root: Path, epoch: int) -> bytes:
    """Return a tar of a directory: sorted, owned by root, with one time, so that equal files give equal bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if any(name.startswith(f"{out}/") for out in LEFT_OUT):
                continue
            entry = tar.gettarinfo(path, name)
            if entry is None or not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
                continue
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
            with path.open("rb") if entry.isfile() else io.BytesIO() as content:
                tar.addfile(entry, content if entry.isfile() else None)
    return made.getvalue()


def unpack(layers: list[bytes], target: Path) -> None:
    """Write what a container would see. The directory of mmdebstrap also has devices, and /dev/zero has no end."""
    for data in layers:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(target, filter="tar")


def archive(layers: list[bytes], name: str, epoch: int, target: Path) -> str:
    """Write an OCI image layout as one tar; return the digest of the image."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes, media: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    described = [put(data, "layer.v1.tar") for data in layers]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = {
        "architecture": machine,
        "os": "linux",
        "config": CONFIG,
        "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in described]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(_json(config), "config.v1+json"),
        "layers": described,
    }
    image = put(_json(manifest), "manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [{**image, "annotations": {"org.opencontainers.image.ref.name": name}}]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/sha256/{digest}": data for digest, data in sorted(blobs.items())}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(data), epoch, 0o644
            tar.addfile(entry, io.BytesIO(data))
    return str(image["digest"])


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, metavar="FILE", help="the OCI archive to write")
    parser.add_argument("--name", default="phalanx:0.3.0", help="the name in it")
    parser.add_argument("--rootfs", type=Path, help="a directory that mmdebstrap made before, in place of a new one")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="also leave the file system of the image here")
    options = parser.parse_args()
    if options.rootfs is None and shutil.which("mmdebstrap") is None:
        print("mmdebstrap is not installed: apt install mmdebstrap", file=sys.stderr)
        return 2
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    with tempfile.TemporaryDirectory() as folder:
        system, added = options.rootfs or Path(folder, "system"), Path(folder, "program")
        if options.rootfs is None:
            base(system)
        program(added)
        layers = [layer(system, epoch), layer(added, epoch)]
        digest = archive(layers, options.name, epoch, options.target)
        if options.keep is not None:
            unpack(layers, options.keep)
    print(f"{options.target}: {options.name} {digest}, {options.target.stat().st_size >> 20} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
