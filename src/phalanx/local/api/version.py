"""/version: which Kubernetes this server speaks like."""

from __future__ import annotations

import platform
import sys

from phalanx import __version__

KUBERNETES = "v1.37.0"
PLATFORM = f"{sys.platform}/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"


def version_info() -> dict[str, str]:
    major, minor, _ = KUBERNETES[1:].split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{KUBERNETES}+phalanx-{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": PLATFORM,
    }
