"""What the code can say to people and machines, read from the code itself: the docs must name each of them.

Nothing is imported but the feature gates: names are read off the syntax tree, so that a new one cannot hide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "phalanx"

KEY = re.compile(r"(?<![\w./-])((?:[a-z0-9-]+\.)?phalanx\.dev/[A-Za-z0-9][\w.-]*)")
ANNOTATIONS = ("gang", "topology", "disruption", "min-count", "min-groups")
CAMEL = re.compile(r"[A-Z][a-z]+(?:[A-Z]+[a-z0-9]*)*\Z|API[A-Z]\w+\Z")
# Calls whose arguments are reasons (or types of conditions), wherever they stand among the arguments.
TELLING = {
    "normal", "warning", "_tell", "_warn", "Refused", "condition", "_condition", "set_condition", "finish", "_finish",
    "_mark", "_not_ready", "_lose", "Verdict", "record", "_report", "say",
}  # fmt: skip
REASONS = {"reason", "event_reason"}
NAMED_REASONS = {"WAITING", "PARENTLESS", "INVALID", "ERROR", "UNSCHEDULABLE", "SCHEDULER_ERROR", "_STORIES"}
NO_REASONS = {"True", "False", "Unknown", "Normal", "Warning", "Pod", "PodGroup", "Job", "Preempting"}
HINT = rf"\b({'|'.join(TELLING)})\(|reason|\b({'|'.join(NAMED_REASONS)}) =|\"({'|'.join(NO_REASONS)})\""
METRICS = {"Counter", "Gauge", "Histogram", "Histograms", "counter", "counter_text", "gauge"}


def nodes(hint: str, *rooms: str) -> Iterator[ast.AST]:
    """Of all files that the hint, a regular expression, is found in: parsing takes longer than reading."""
    for room in rooms or ("",):
        for path in sorted((SOURCE / room).rglob("*.py")):
            if "testing" not in path.parts and re.search(hint, text := path.read_text()):
                yield from ast.walk(ast.parse(text))


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@cache
def keys() -> set[str]:
    """Annotations, labels and other names below our domains, as whole strings in the code."""
    found = {f"scheduling.phalanx.dev/{requested}" for requested in ANNOTATIONS}
    for node in nodes(r"phalanx\.dev/|PHALANX_API"):
        if isinstance(node, ast.Constant) and (whole := KEY.fullmatch(text_of(node))):
            found.add(whole[1])
        if isinstance(node, ast.JoinedStr) and (tail := _below_our_domain(node)):
            found.add(tail)
    return found


def _below_our_domain(node: ast.JoinedStr) -> str:
    """`f"{PHALANX_API}/api"`: the whole key; other texts: nothing."""
    if len(node.values) != 2 or not isinstance(node.values[0], ast.FormattedValue):
        return ""
    domain, tail = getattr(node.values[0].value, "id", ""), text_of(node.values[1])
    return f"scheduling.phalanx.dev{tail}" if domain == "PHALANX_API" and re.fullmatch(r"/[a-z0-9-]+", tail) else ""


@cache
def reasons() -> set[str]:
    """Reasons of events and conditions, and types of conditions."""
    found: set[str] = set()
    for node in nodes(HINT, "engine", "controllers", "kube", "serve", "local/nodes"):
        if isinstance(node, ast.Call) and called(node) in TELLING:
            found |= {text_of(one) for one in node.args}
        if isinstance(node, ast.Call):
            found |= {text_of(one.value) for one in node.keywords if one.arg in REASONS}
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in REASONS and node.value is not None:
            found.add(text_of(node.value))
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found |= {text_of(value) for key, value in pairs if key is not None and text_of(key) == "reason"}
        if isinstance(node, ast.arguments) and node.defaults:
            named = [*node.posonlyargs, *node.args][-len(node.defaults) :]
            found |= {text_of(v) for a, v in zip(named, node.defaults, strict=True) if a.arg in REASONS}
        if isinstance(node, ast.Tuple) and len(node.elts) == 3 and text_of(node.elts[0]) in NO_REASONS:
            found |= {text_of(one) for one in ast.walk(node.elts[1])}
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in REASONS or name in NAMED_REASONS:
                found |= {text_of(node.value), *(text_of(one) for one in ast.walk(node.value))}
    return {one for one in found if CAMEL.match(one)} - NO_REASONS


@cache
def metrics() -> set[str]:
    found: set[str] = set()
    for node in nodes("|".join(METRICS | {r"\bstore_gauge\("})):
        if isinstance(node, ast.Call) and called(node) in METRICS and node.args:
            name = text_of(node.args[0])
            if name and called(node) in ("Counter", "counter", "counter_text"):
                name = name.removesuffix("_total") + "_total"
            found.add(name)
        if isinstance(node, ast.Call) and called(node) == "store_gauge":
            found.add(f"phalanx_store_{text_of(node.args[0])}")
    return found - {"", "phalanx_store_"}
