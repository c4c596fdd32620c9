"""Cells that many kinds share: name, age, and durations as kubectl writes them."""

from __future__ import annotations

from typing import Any

from phalanx.base.clock import parse_rfc3339
from phalanx.model.kinds import Column, Json

UNKNOWN = "<unknown>"
NONE = "<none>"


def human(seconds: float) -> str:
    """A duration at a glance: "45s", "3m20s", "5h", "2d3h", "400d", "3y20d"."""
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
    """How long ago a timestamp was."""
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
