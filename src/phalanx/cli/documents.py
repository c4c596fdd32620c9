"""Read the manifests named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """A file that is not there, or not YAML; the text names it."""


def read_documents(name: str) -> list[Any]:
    """Read the documents of a YAML or JSON file that are not empty; - is stdin. Raises Unreadable.

    The limits are those of the API server: a file may come from anywhere, and one that is too deep or grows without
    bound when its aliases are expanded is refused.
    """
    from phalanx.base.errors import ApiProblem
    from phalanx.model.yaml_body import MAX_FILE, read_all

    try:
        if name == "-":
            body = sys.stdin.buffer.read(MAX_FILE + 1)
        else:
            with Path(name).open("rb") as file:
                body = file.read(MAX_FILE + 1)
        return [document for document in read_all(body) if document]
    except OSError as problem:
        raise Unreadable(f"{name}: {problem.strerror or problem}") from None
    except ApiProblem as problem:
        why = problem.message.removeprefix("error parsing YAML: ")
        raise Unreadable(f"{name} is not YAML that can be read: {why}") from None
