"""Cells that many kinds share: name, age, and durations as kubectl writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.base.clock import parse_rfc3339
from phalanx.model.kinds import Column, Json
from phalanx.model.selectors import BadSelector, from_selector

Cell = Callable[[Json, float], Any]
UNKNOWN = "<unknown>"
NONE = "<none>"


def human(seconds: float) -> str:
    """Format a duration in short form: "45s", "3m20s", "5h", "2d3h", "400d", "3y20d"."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = whole // 3600
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 24 * 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if hours < 24 * 365 * 2:
        return f"{days}d"
    years = hours // 24 // 365
    if hours < 24 * 365 * 8:
        return f"{years}y{days % 365}d" if days % 365 else f"{years}y"
    return f"{years}y"


def since(text: str | None, now: float) -> str:
    """Return how long ago a timestamp was."""
    if not text:
        return UNKNOWN
    try:
        return human(now - parse_rfc3339(text))
    except ValueError:
        return UNKNOWN


def meta(obj: Json) -> Json:
    return obj.get("metadata") or {}


def spec(obj: Json) -> Json:
    return obj.get("spec") or {}


def status(obj: Json) -> Json:
    return obj.get("status") or {}


def age(obj: Json, now: float) -> str:
    return since(meta(obj).get("creationTimestamp"), now)


def name(obj: Json, now: float) -> Any:
    return meta(obj).get("name", "")


NAME = Column(
    "Name",
    "string",
    name,
    format="name",
    description="Name must be unique within a namespace.",
)
AGE = Column("Age", "string", age, description="How long ago the object was created.")


def text(path: str, absent: Any = NONE) -> Cell:
    """Return a cell that shows the value at a dotted path."""
    parts = path.split(".")

    def cell(obj: Json, now: float) -> Any:
        found: Any = obj
        for part in parts:
            if not isinstance(found, dict):
                return absent
            found = found.get(part)
        return absent if found is None or found == "" else found

    return cell


def number(path: str) -> Cell:
    """Return a cell that shows a count; an absent count is zero."""
    return text(path, 0)


def column(title: str, value: Cell, *, wide: bool = False, type: str = "string", description: str = "") -> Column:
    return Column(title, type, value, priority=1 if wide else 0, description=description)


def count(title: str, path: str, *, wide: bool = False) -> Column:
    return column(title, number(path), wide=wide, type="integer")


def pairs(found: Json | None) -> str:
    """Format labels or selectors in one line."""
    return ",".join(f"{key}={value}" for key, value in sorted((found or {}).items())) or NONE


def selector_text(selector: Json | None) -> str:
    """Format a LabelSelector in one line, as a query."""
    if selector is None:
        return NONE
    try:
        compiled = from_selector(selector)
    except BadSelector:
        return "<error>"
    shown = []
    for requirement in compiled.requirements:
        if requirement.operator == "In" and len(requirement.values) == 1:
            shown.append(f"{requirement.key}={requirement.values[0]}")
        else:
            shown.append(str(requirement))
    return ",".join(shown) or NONE


def _template_containers(obj: Json) -> list[Json]:
    found = spec(obj)
    job = spec(found.get("jobTemplate") or {})
    template = job.get("template") or found.get("template") or obj.get("template") or {}
    containers: list[Json] = spec(template).get("containers") or []
    return containers


def _containers(obj: Json, now: float) -> str:
    return ",".join(item.get("name") or "" for item in _template_containers(obj))


def _images(obj: Json, now: float) -> str:
    return ",".join(item.get("image") or "" for item in _template_containers(obj))


CONTAINERS = column("Containers", _containers, wide=True)
IMAGES = column("Images", _images, wide=True)
SELECTOR = column("Selector", lambda obj, now: selector_text(spec(obj).get("selector")), wide=True)


def condition(obj: Json, kind: str) -> Json | None:
    """Return the condition of a type, if there is one."""
    for found in status(obj).get("conditions") or ():
        if found.get("type") == kind:
            return found  # type: ignore[no-any-return]
    return None


def holds(obj: Json, kind: str) -> bool:
    return (condition(obj, kind) or {}).get("status") == "True"
