"""Mutations of MutatingAdmissionPolicies: what an expression gives becomes part of the object."""

from __future__ import annotations

from typing import Any

from phalanx.base.errors import ApiProblem
from phalanx.cel.admission import check_type_names
from phalanx.cel.values import EvaluationError, ObjectValue, plain
from phalanx.local.api.admission_views import copy_of_new, take
from phalanx.local.api.apply import check_keys, merge
from phalanx.local.api.context import Context
from phalanx.local.api.ownership import Walker, walker_of_type
from phalanx.local.api.patch_json import json_patch
from phalanx.local.api.rule_matching import Admitted
from phalanx.model.builtin import body_schema
from phalanx.model.kinds import Json, Version


async def json_patched(ctx: Context, about: Admitted, version: Version, value: Any) -> None:
    """Apply a list of JSONPatch; a `test` that fails leaves the object as it is."""
    if not isinstance(value, list):
        raise EvaluationError("type mismatch: JSONPatchType.expression should evaluate to array")
    operations: list[Json] = []
    for part in value:
        if not isinstance(part, ObjectValue) or part.type_name != "JSONPatch":
            raise EvaluationError("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch")
        if isinstance(part.get("value"), ObjectValue):
            check_type_names(part["value"], part["value"].type_name)
        operations.append({name: plain(found) for name, found in part.items()})
    shown = await copy_of_new(ctx, about, version)
    try:
        patched = json_patch(shown, operations)
    except ApiProblem as problem:
        if "testing value" in str(problem):
            return
        raise EvaluationError(f"JSON Patch: {problem}") from None
    await take(ctx, about, version, patched)


async def apply_configuration(ctx: Context, about: Admitted, version: Version, value: Any) -> None:
    """Merge an Object into the object as server-side apply does."""
    if not isinstance(value, ObjectValue):
        raise EvaluationError("unsupported return type from ApplyConfiguration expression")
    check_type_names(value)
    config: Json = plain(value)
    shown = await copy_of_new(ctx, about, version)
    config["apiVersion"], config["kind"] = shown["apiVersion"], shown["kind"]
    schema = body_schema(*about.own) if about.own else version.schema
    assert schema is not None  # every kind of a subresource has one
    walker = walker_of_type(schema)
    atomics = list(_atomics(walker, config, ""))
    if atomics:
        reason = f"may not mutate atomic arrays, maps or structs: {', '.join(atomics)}"
        raise EvaluationError(f"error applying patch: invalid ApplyConfiguration: {reason}")
    check_keys(walker, config, f"{shown['apiVersion']}, Kind={shown['kind']}")
    await take(ctx, about, version, merge(walker, shown, config))


def _atomics(walker: Walker, value: Any, path: str) -> Any:
    """Yield the paths of what cannot be merged."""
    if not isinstance(value, (dict, list)):
        return
    if walker.atomic:
        yield path
    elif walker.plain and isinstance(value, dict):
        for name, part in value.items():
            known = walker.children().get(name)
            if known is not None:
                yield from _atomics(known[1], part, f"{path}.{name}")
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _atomics(walker.item(), part, f"{path}[{i}]")
