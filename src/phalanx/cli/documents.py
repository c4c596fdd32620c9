"""Manifests that people name on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """A file that is not there, or not YAML; the text names it."""


def read_documents(name: str) -> list[Any]:
    """The documents of a YAML or JSON file that are not empty; - is stdin. Raises Unreadable."""
    import yaml

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        return [document for document in yaml.safe_load_all(text) if document]
    except (OSError, UnicodeDecodeError) as problem:
        raise Unreadable(f"{name}: {problem}") from None
    except yaml.YAMLError as problem:
        raise Unreadable(f"{name} is not YAML: {problem}") from None
