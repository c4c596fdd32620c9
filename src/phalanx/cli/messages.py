"""Times, amounts, names and reasons as people say them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BINARY = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def age(seconds: float) -> str:
    """One number and its unit, as kubectl prints ages: 45s, 12m, 5h, 3d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(0.0, seconds))}s"


def amount(resource: str, value: float) -> str:
    """An amount as the engine counts it (thousandths of a CPU, bytes, pieces) in the unit people use."""
    if resource == "cpu":
        return f"{value / 1000:.1f}".removesuffix(".0")
    if resource == "memory" or resource.startswith("hugepages-") or resource.endswith("storage"):
        for size, unit in _BINARY:
            if value >= size:
                return f"{value / size:.{0 if value >= 10 * size else 1}f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def size(count: int) -> str:
    """Bytes: 512 B, 34 KiB, 1.2 GiB."""
    for each, unit in _BINARY:
        if count >= each:
            return f"{count / each:.{0 if count >= 10 * each else 1}f}".removesuffix(".0") + f" {unit}B"
    return f"{count} B"


def short(key: str) -> str:
    """nvidia.com/gpu -> gpu, topology.kubernetes.io/zone -> zone."""
    return key.rpartition("/")[2]


_MADE = re.compile(r"-[0-9a-f]{8,10}-[a-z0-9.-]*-pgt-(\d+)-[0-9a-f]{8,10}$")
_HASH = re.compile(r"-[0-9a-f]{8,10}$")
_MISSING = re.compile(r"has (\d+) of (\d+) pods, (\d+) missing")
_ROOM = re.compile(
    r"needs \d+ (?:pods|groups)(?: together)?(?: in one (\w+))?; (?:best \w+ (\S+) fits|room for) (\d+)"
    r"(?: \(limited by ([\w./-]+)\))?"
)
_RULED = re.compile(r"(\d+) \w+ ruled out by ([^,;]+)")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Names without what controllers add to make them unique, where they are unique without it, too."""
    bare = {name: _HASH.sub("", _MADE.sub(lambda m: "" if m[1] == "0" else f"-{m[1]}", name)) for name in names}
    taken = list(bare.values())
    return {name: each if taken.count(each) == 1 else name for name, each in bare.items()}


def gist(message: str) -> str:
    """What a scheduler's sentence is about, for a narrow column: "room for 20: gpu"."""
    if missing := _MISSING.search(message):
        return f"{missing[3]} of {missing[2]} pods are not there yet"
    room = _ROOM.search(message)
    if room is None:
        return message
    level, best, fits, limit = room.groups()
    ruled = max(_RULED.findall(message), key=lambda found: int(found[0]), default=("", ""))[1]
    why = short(limit or ruled.removeprefix("Insufficient ")) if limit or ruled.startswith("Insufficient ") else ruled
    why = "node selector" if "affinity/selector" in ruled and not limit else why
    if fits == "0":
        return f"no {level} has room: {why}" if level else f"no room: {why}"
    return f"{best} has room for {fits}{f': {why}' if why else ''}" if best else f"room for {fits}: {why}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
