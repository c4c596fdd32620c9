"""Whatever fits the schema gets an answer: rules and columns never fail, they complain."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any

import pytest

from phalanx.model.builtin import registry
from phalanx.model.gates import KNOWN, Gates
from phalanx.model.kinds import FieldError, Kind, Registry
from phalanx.model.schema import ListOf, MapOf, Object, Scalar, Type

WORDS = [
    "", "a", "A_b", "a/b", "a.b", "x" * 70, "In", "Exists", "Gt", "Gang", "Off", "Indexed", "10%", "0%", "Always",
    "NoExecute", "RollingUpdate", "*/5 * * * *", "system-x", "v1", "NotIn", "Recreate", "ExternalName", "Equal",
    "DoNotSchedule",
    "é",
]  # fmt: skip
SCALARS: dict[str, list[Any]] = {
    "string": WORDS,
    "bool": [True, False],
    "int32": [-1, 0, 1, 7, 2**31 - 1],
    "int64": [-1, 0, 1, 7, 2**40],
    "double": [0.5],
    "bytes": ["", "dg=="],
    "time": ["2026-01-01T00:00:00Z"],
    "microtime": ["2026-01-01T00:00:00.000000Z"],
    "duration": ["5s"],
    "quantity": ["1", "-1", "1Gi", "500m", 1, "0"],
    "intorstring": [0, 1, -1, "0%", "25%", "bad"],
    "json": [{}, [], "x", 1],
}


def made(kind: Type, rng: random.Random, depth: int = 0) -> Any:
    if isinstance(kind, Scalar):
        return rng.choice(SCALARS[kind.name])
    if isinstance(kind, ListOf):
        return [made(kind.item, rng, depth + 1) for _ in range(rng.choice([0, 1, 2]))]
    if isinstance(kind, MapOf):
        return {rng.choice(WORDS): made(kind.value, rng, depth + 1) for _ in range(rng.choice([0, 1, 2]))}
    assert isinstance(kind, Object)
    likely = 0.6 if depth < 3 else 0.35 if depth < 9 else 0.0
    return {name: made(field.type, rng, depth + 1) for name, field in kind.fields.items() if rng.random() < likely}


@cache
def registry_of(number: int) -> Registry:
    """With each gate on or off by lot."""
    rng = random.Random(number)
    return registry(Gates({name: rng.random() < 0.5 for name in KNOWN}))


def judged(kind: Kind, rng: random.Random) -> list[FieldError]:
    version = kind.version(kind.storage_version)
    old, new = (made(version.schema, rng) for _ in range(2))
    errors: list[FieldError] = []
    for obj in (old, new):
        obj["metadata"] = {"name": rng.choice(WORDS), "uid": "u", **(obj.get("metadata") or {})}
        if kind.default:
            kind.default(obj)
    if kind.prepare_create:
        kind.prepare_create(old)
    if kind.validate_create:
        errors += kind.validate_create(old)
    other = copy.deepcopy(new)
    if kind.prepare_update:
        kind.prepare_update(new, old)
    if kind.validate_update:
        errors += kind.validate_update(new, old)
        assert kind.validate_update(copy.deepcopy(old), old) == kind.validate_update(old, copy.deepcopy(old))
    if kind.prepare_status:
        kind.prepare_status(other, old)
    if kind.validate_status:
        errors += kind.validate_status(other, old)
    for column in kind.columns:
        column.value(new, 1_800_000_000.0)
    for view in kind.versions:
        if view.from_storage and view.to_storage:
            view.to_storage(view.from_storage(old))
    return errors


@pytest.mark.parametrize("kind", [kind for kind in registry().all() if kind.validate_create], ids=lambda kind: kind.key)
def test_any_object_of_the_right_shape_gets_an_answer(kind: Kind) -> None:
    rng = random.Random(kind.key)
    complaints = 0
    for number in range(25):
        found = registry_of(number).by_storage_key(kind.storage_key) or kind
        errors = judged(found, rng)
        assert all(error.type and error.message and str(error) for error in errors)
        complaints += len(errors)
    assert complaints, "random objects are never all valid"
