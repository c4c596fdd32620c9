"""JSON merge patch (RFC 7386). Never changes the patch; the result shares no container with it."""

from __future__ import annotations

from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` is consumed: its containers may become part of the result."""
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


def merge_diff(source: Any, target: Any) -> Any:
    """A patch that turns `source` into `target`; exact as long as `target` holds no null inside its objects."""
    if not (isinstance(source, dict) and isinstance(target, dict)):
        return clone(target)
    patch: dict[str, Any] = {key: None for key in source if key not in target}
    for key, value in target.items():
        if key not in source:
            patch[key] = clone(value)
        elif source[key] != value or type(source[key]) is not type(value):
            patch[key] = merge_diff(source[key], value)
    return patch


def clone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value
