"""Field errors with Kubernetes' texts: one constructor per kind of error.

A path is text ("spec.containers[0].name"); callers build it only where a rule reports a problem or descends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from phalanx.model.kinds import FieldError


def shown(value: Any) -> str:
    """Format an invalid value as the API prints it: quoted text, plain numbers, JSON for the rest."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def child(path: str, name: str) -> str:
    """Return the path of a field below `path`, which may be empty (the object itself)."""
    return f"{path}.{name}" if path else name


def _error(path: str, reason: str, body: str, detail: str) -> FieldError:
    return FieldError(path, reason, f"{body}: {detail}" if detail else body)


def required(path: str, detail: str = "") -> FieldError:
    return _error(path, "FieldValueRequired", "Required value", detail)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    return _error(path, "FieldValueInvalid", f"Invalid value: {shown(value)}", detail)


def forbidden(path: str, detail: str = "") -> FieldError:
    return _error(path, "FieldValueForbidden", "Forbidden", detail)


def duplicate(path: str, value: Any, detail: str = "") -> FieldError:
    return _error(path, "FieldValueDuplicate", f"Duplicate value: {shown(value)}", detail)


def not_found(path: str, value: Any) -> FieldError:
    return _error(path, "FieldValueNotFound", f"Not found: {shown(value)}", "")


def not_supported(path: str, value: Any, allowed: Iterable[str]) -> FieldError:
    listed = ", ".join(f'"{item}"' for item in allowed)
    return _error(
        path,
        "FieldValueNotSupported",
        f"Unsupported value: {shown(value)}",
        f"supported values: {listed}" if listed else "",
    )


def too_many(path: str, count: int, limit: int) -> FieldError:
    items = "item" if limit == 1 else "items"
    return _error(path, "FieldValueTooMany", f"Too many: {count}", f"must have at most {limit} {items}")


def too_long(path: str, limit: int) -> FieldError:
    return _error(path, "FieldValueTooLong", "Too long", f"may not be more than {limit} bytes")


def immutable(path: str, value: Any = None) -> FieldError:
    """Return the error of an immutable field.

    Declarative validation shows null as the value; hand-written rules show the new one.
    """
    return invalid(path, value, "field is immutable")


def all_invalid(path: str, value: Any, problems: Iterable[str]) -> list[FieldError]:
    return [invalid(path, value, problem) for problem in problems]
