"""Sets of field paths in the very form in which managedFields stores them (fieldsV1), and their algebra.

A set is a tree: `{"f:spec": {"f:replicas": {}}}`. A node owns itself when it is empty or holds "."; the root is never
owned. Trees are values: every function returns trees that may share parts with its arguments, so do not change
one in place. Sharing is what makes ownership cheap enough for every write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Fields = dict[str, Any]
LEAF: Fields = {}


def in_order(fields: Fields) -> Fields:
    """Return the same root or node with its own keys sorted, as they are written."""
    return dict(sorted(fields.items())) if len(fields) > 1 else fields


def owned(node: Fields) -> bool:
    return not node or "." in node


def union(left: Fields, right: Fields) -> Fields:
    """Return the union of two roots."""
    if not left:
        return right
    if not right:
        return left
    out = dict(left)
    for key, node in right.items():
        there = out.get(key)
        out[key] = node if there is None else _join(there, node)
    return out if len(out) == len(left) else in_order(out)


def _join(left: Fields, right: Fields) -> Fields:
    if left is right or left == right:
        return left
    if not left:
        return right if "." in right else {".": LEAF, **right}
    if not right:
        return left if "." in left else {".": LEAF, **left}
    return union(left, right)


def difference(left: Fields, right: Fields) -> Fields:
    """Return what the root `left` has and the root `right` does not have.

    Returns `left` itself when nothing is removed.
    """
    out: Fields | None = None
    for key, taken in right.items():
        node = left.get(key)
        if node is None or key == ".":
            continue
        rest = _without(node, taken)
        if rest is not node:
            if out is None:
                out = dict(left)
            if rest is None:
                del out[key]
            else:
                out[key] = rest
    return left if out is None else out


def _without(node: Fields, taken: Fields) -> Fields | None:
    rest = difference(node, taken)
    self_kept = owned(node) and not owned(taken)
    if rest is node and self_kept == owned(node):
        return node
    children = {key: value for key, value in rest.items() if key != "."}
    if not children:
        return LEAF if self_kept else None
    return {".": LEAF, **children} if self_kept else children


def intersection(left: Fields, right: Fields) -> Fields:
    """Return the intersection of two roots."""
    out: Fields = {}
    if len(right) < len(left):
        left, right = right, left
    for key, node in left.items():
        other = right.get(key)
        if other is None or key == ".":
            continue
        both = intersection(node, other)
        if owned(node) and owned(other):
            both = {".": LEAF, **both} if both else LEAF
        elif not both:
            continue
        out[key] = both
    return out


def members(fields: Fields, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every owned path, parents before children, in a stable order."""
    for key in sorted(fields):
        if key == ".":
            continue
        node, here = fields[key], (*path, key)
        if owned(node):
            yield here
        yield from members(node, here)


def path_text(path: tuple[str, ...]) -> str:
    """Format a path as conflict messages show it: `.spec.containers[name="web"].image`."""
    out = []
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            out.append(f".{rest}")
        elif kind == "k":
            keys = json.loads(rest)
            shown = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(keys.items()))
            out.append(f"[{shown}]")
        elif kind == "v":
            out.append(f"[={rest}]")
        else:
            out.append(f"[{rest}]")
    return "".join(out)


def well_formed(fields: Any, depth: int = 0) -> bool:
    """Return True if a client's fieldsV1 is a valid tree of fields."""
    if not isinstance(fields, dict) or depth > 200:
        return False
    for key, node in fields.items():
        if key == ".":
            if node != {}:
                return False
            continue
        kind, colon, rest = key.partition(":")
        if not colon or kind not in ("f", "k", "v", "i"):
            return False
        if kind in ("k", "v"):
            try:
                value = json.loads(rest)
            except (ValueError, RecursionError):
                return False
            if kind == "k" and not isinstance(value, dict):
                return False
        if not well_formed(node, depth + 1):
            return False
    return True
