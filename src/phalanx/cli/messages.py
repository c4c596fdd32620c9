"""Lines, times, amounts and names as users read them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

import click

from phalanx.model.names import without_hash

_BINARY = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def print_line(text: str) -> None:
    """Print a line of a serving process at once; errors on standard error."""
    click.echo(text, file=sys.stderr if text.startswith("error") else sys.stdout)
    sys.stdout.flush()


def age(seconds: float) -> str:
    """Format an age with one number and its unit, as kubectl does: 45s, 12m, 5h, 3d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(0.0, seconds))}s"


def amount(resource: str, value: float) -> str:
    """Format an amount of the engine (thousandths of a CPU, bytes, pieces) in its usual unit."""
    if resource == "cpu":
        return f"{value / 1000:.1f}".removesuffix(".0")
    if resource == "memory" or resource.startswith("hugepages-") or resource.endswith("storage"):
        for size, unit in _BINARY:
            if value >= size:
                return f"{value / size:.{0 if value >= 10 * size else 1}f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def size(count: int) -> str:
    """Format a number of bytes: 512 B, 34 KiB, 1.2 GiB."""
    for each, unit in _BINARY:
        if count >= each:
            return f"{count / each:.{0 if count >= 10 * each else 1}f}".removesuffix(".0") + f" {unit}B"
    return f"{count} B"


def short(key: str) -> str:
    """Return a name without its prefix: nvidia.com/gpu -> gpu, topology.kubernetes.io/zone -> zone."""
    return key.rpartition("/")[2]


def short_names(objects: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the names of objects (namespace, name) without what controllers add, where they are unique in their
    namespace without it, too."""
    bare = {(namespace, name): (namespace, without_hash(name)) for namespace, name in objects}
    taken = Counter(bare.values())
    return {each: short[1] if taken[short] == 1 else each[1] for each, short in bare.items()}


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
