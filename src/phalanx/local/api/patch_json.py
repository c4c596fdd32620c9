"""JSON patch (RFC 6902): six operations, all or nothing. Problems: BadRequest (no patch), Invalid (does not apply).

JSON merge patch (RFC 7386) never changes the patch, and its result shares no container with it.
"""

from __future__ import annotations

import re
from typing import Any

from phalanx.base.errors import RequestEntityTooLarge
from phalanx.local.api.problems import bad_request, rejected_patch
from phalanx.model.kinds import clone

MAX_OPERATIONS = 10_000  # the limit of kube-apiserver
MAX_COPIED_BYTES = 3 << 20  # "copy" can double a document again and again: as kube-apiserver bounds it

_INDEX = re.compile(r"0|[1-9][0-9]*")
_MISSING = object()


def json_patch(document: Any, operations: Any) -> Any:
    """Apply the operations of a JSON patch to `document`.

    `document` is consumed: after an error its state is undefined and it must be thrown away.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise RequestEntityTooLarge(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        )
    budget = MAX_COPIED_BYTES
    for operation in operations:
        document, budget = _apply(document, operation, budget)
    return document


def _apply(document: Any, operation: Any, budget: int) -> tuple[Any, int]:
    if not isinstance(operation, dict):
        raise bad_request("error decoding patch: every operation of a JSON patch is an object")
    verb = operation.get("op")
    path = _pointer(operation, "path")
    if verb in ("add", "replace", "test"):
        if "value" not in operation:
            raise rejected_patch(f"{verb} operation does not apply: missing value")
        value = operation["value"]
        if verb == "test":
            found = _value_at(document, path, verb)
            if not _equal(found, value):
                raise rejected_patch(f"testing value {_text(path)} failed")
            return document, budget
        if verb == "replace":
            _value_at(document, path, verb)
            return _set_value(document, path, clone(value), verb, replace=True), budget
        return _set_value(document, path, clone(value), verb, replace=False), budget
    if verb == "remove":
        return _remove(document, path, verb)[0], budget
    if verb == "move":
        source = _pointer(operation, "from")
        if path[: len(source)] == source and len(path) > len(source):
            raise rejected_patch(f"move operation does not apply: {_text(source)} contains {_text(path)}")
        document, value = _remove(document, source, verb)
        return _set_value(document, path, value, verb, replace=False), budget
    if verb == "copy":
        source = _pointer(operation, "from")
        value = _value_at(document, source, verb)
        budget -= _size(value)
        if budget < 0:
            raise RequestEntityTooLarge(f"the copy operations of the JSON patch add more than {MAX_COPIED_BYTES} bytes")
        return _set_value(document, path, clone(value), verb, replace=False), budget
    raise bad_request(f"error decoding patch: unexpected kind of operation: {verb!r}")


def _pointer(operation: dict[str, Any], field: str) -> list[str]:
    text = operation.get(field)
    if not isinstance(text, str):
        raise bad_request(f'error decoding patch: operation {operation.get("op")!r} needs a string "{field}"')
    if text == "":
        return []
    if not text.startswith("/"):
        raise rejected_patch(f'{field} "{text}" does not start with "/"')
    tokens = text[1:].split("/")
    for token in tokens:
        if re.search(r"~(?![01])", token):
            raise rejected_patch(f'{field} "{text}" has "~" not followed by 0 or 1')
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens]


def _text(path: list[str]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in path)


def _missing(verb: str, path: list[str]) -> Exception:
    return rejected_patch(f"{verb} operation does not apply: doc is missing path: {_text(path)}: missing value")


def _child(container: Any, token: str) -> Any:
    if isinstance(container, dict):
        return container.get(token, _MISSING)
    if isinstance(container, list) and _INDEX.fullmatch(token) and len(token) < 10 and int(token) < len(container):
        return container[int(token)]
    return _MISSING


def _value_at(document: Any, path: list[str], verb: str) -> Any:
    for token in path:
        document = _child(document, token)
        if document is _MISSING:
            raise _missing(verb, path)
    return document


def _set_value(document: Any, path: list[str], value: Any, verb: str, *, replace: bool) -> Any:
    if not path:
        return value
    parent, last = _value_at(document, path[:-1], verb), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        if last == "-" and not replace:
            parent.append(value)
        elif _INDEX.fullmatch(last) and len(last) < 10 and int(last) <= len(parent):
            if replace:
                parent[int(last)] = value
            else:
                parent.insert(int(last), value)
        else:
            raise _missing(verb, path)
    else:
        raise _missing(verb, path)
    return document


def _remove(document: Any, path: list[str], verb: str) -> tuple[Any, Any]:
    if not path:
        return None, document
    parent, last = _value_at(document, path[:-1], verb), path[-1]
    if _child(parent, last) is _MISSING:
        raise _missing(verb, path)
    if isinstance(parent, dict):
        return document, parent.pop(last)
    return document, parent.pop(int(last))


def _equal(left: Any, right: Any) -> bool:
    """Return True if two JSON values are equal: true is not 1, but 1.0 is 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def _size(value: Any) -> int:
    """Estimate the bytes of the value in JSON."""
    if isinstance(value, dict):
        return 2 + sum(len(key) + 4 + _size(inner) for key, inner in value.items())
    if isinstance(value, list):
        return 2 + sum(map(_size, value)) + len(value)
    return len(value) + 2 if isinstance(value, str) else 8


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch to `target`.

    `target` is consumed: its containers may become part of the result.
    """
    if not isinstance(patch, dict):
        return clone(patch)
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge_patch(result.get(key), value)
        else:
            result[key] = clone(value)
    return result
