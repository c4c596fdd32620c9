"""The rules of a kind, by its storage key."""

from __future__ import annotations

from phalanx.model import rules
from phalanx.model.builtin import declared_kinds
from phalanx.model.gates import Gates


def rules_for(storage_key: str, gates: Gates) -> rules.Rules:
    return rules.rules_for(next(kind for kind in declared_kinds() if kind.storage_key == storage_key), gates)
