"""Remove names of other namespaces than the caller's from an answer, and keep counts.

Works on the encoded answer, so that new fields are covered too. Lists of victims keep the caller's own and count the
others; in texts, references to objects of other namespaces are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from phalanx.engine.engine import Engine
from phalanx.model.kinds import Json

HIDDEN = "(another namespace)"
OTHERS = "pods in other namespaces"
_VICTIMS = ("victims", "evicts")
_NOT_COUNTS = ("highestPriority", "lostSeconds")  # cost fields that describe hidden victims
# A name, or names joined by "/": podgroup/ns/name, ns/name, name.
_REFERENCE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?:/[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)*")
_LIKE_A_NAME = re.compile(r"[-0-9]")
_BEFORE_A_NAME = ("pod", "podgroup", "compositepodgroup", "workload", "group", "gang")


def redacted(answer: bytes, engine: Engine, namespace: str) -> bytes:
    """Return `answer` without names from namespaces other than `namespace`."""
    return msgspec.json.encode(Redaction(engine, namespace).value(msgspec.json.decode(answer)))


class Redaction:
    def __init__(self, engine: Engine, namespace: str) -> None:
        objects = list(_objects(engine))
        own = {name for home, name in objects if home == namespace} | set(engine.columns.row_of)
        self._namespaces = {home for home, _ in objects} - {namespace}
        self._named = {name for home, name in objects if home != namespace} - own
        # Without a kind before it, a bare name is replaced only if it looks like one: "train" is also a word.
        self._names = {name for name in self._named if _LIKE_A_NAME.search(name)}

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return HIDDEN if value in self._namespaces else _REFERENCE.sub(self._text, value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return self._object(value)
        return value

    def _text(self, found: re.Match[str]) -> str:
        before = found.string[: found.start()].rstrip(" '\"").rpartition(" ")[2].lower()
        hidden = (
            self._foreign(found[0])
            or (before in _BEFORE_A_NAME and found[0] in self._named)
            or (before == "namespace" and found[0] in self._namespaces)
        )
        return HIDDEN if hidden else found[0]

    def _foreign(self, text: str) -> bool:
        parts = text.split("/")
        if len(parts) == 1:
            return text in self._names
        return parts[0] in self._namespaces or (len(parts) > 2 and parts[1] in self._namespaces)

    def _object(self, value: Json) -> Json:
        hidden = 0
        kept: Json = {}
        for key, item in value.items():
            if key in _VICTIMS and isinstance(item, list):
                item, count = self._victims(item)
                hidden += count
            if key == "hints":  # each hint is about another object, and useless in part
                item = [hint for hint in item if not self._names_a_namespace(hint)]
            if not self._foreign(key):
                kept[key] = self.value(item)
        for key in ("cost", "lowerBound"):
            if hidden and isinstance(kept.get(key), dict):
                kept[key] = {name: item for name, item in kept[key].items() if name not in _NOT_COUNTS}
        return kept

    def _names_a_namespace(self, text: str) -> bool:
        return any(found[0] in self._namespaces for found in _REFERENCE.finditer(text))

    def _victims(self, victims: list[Any]) -> tuple[list[Any], int]:
        """Return the caller's own victims and one entry with the number of others."""
        own = [victim for victim in victims if not self._hides(victim)]
        others = [victim for victim in victims if self._hides(victim)]
        pods = sum(victim.get("pods", 1) if isinstance(victim, dict) else 1 for victim in others)
        if not others:
            return own, 0
        if isinstance(others[0], dict):
            return [*own, {"name": OTHERS, "pods": pods, "why": "it makes room"}], pods
        return [*own, f"{pods} {OTHERS}"], pods

    def _hides(self, victim: Any) -> bool:
        name = victim.get("name") if isinstance(victim, dict) else victim
        return isinstance(name, str) and any(self._foreign(found[0]) for found in _REFERENCE.finditer(name))


def _objects(engine: Engine) -> Iterable[tuple[str, str]]:
    """Yield namespace and name of all objects that answers mention: pods, groups and workloads."""
    for record in engine.pods.records.values():
        yield record.namespace, record.name
    for group in engine.cluster.forest.groups():
        yield group.key.namespace, group.key.name
        if group.spec is not None and group.spec.workload:
            yield group.key.namespace, group.spec.workload
