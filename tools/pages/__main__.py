"""Write every file that is made from the code: `make docs`. Tests fail when one is stale."""

from __future__ import annotations

from pathlib import Path

from pages import commands, constants, kinds, states

ROOT = Path(__file__).parents[2]


def files() -> dict[Path, str]:
    """Return the files with their contents."""
    docs = ROOT / "docs"
    architecture = docs / "architecture.md"
    return {
        docs / "kinds.md": kinds.page(),
        docs / "commands.md": commands.page(),
        architecture: states.written_into(architecture.read_text()),
        **{docs / "images" / name: image for name, image in states.diagrams().items()},
        ROOT / "src" / "phalanx" / "web" / "static" / "constants.js": constants.module(),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
