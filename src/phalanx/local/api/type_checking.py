"""Type checking of ValidatingAdmissionPolicies against the kinds they match: warnings in `status.typeChecking`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.cel import types as t
from phalanx.cel.admission import AdmissionEnvironment, compile_variables
from phalanx.cel.schemas import SchemaTypes, model_type
from phalanx.cel.syntax import CompileError
from phalanx.local.api.context import Context
from phalanx.local.api.rule_matching import VALIDATING_POLICIES
from phalanx.local.api.view import api_version
from phalanx.model.kinds import Json, Kind, Version

_MAX_TYPES = 10  # kinds that one rule is checked against


def check_types(ctx: Context, kind: Kind, obj: Json, old: Json | None) -> None:
    """Write the result of type checking into the status of a policy whose spec is new."""
    if kind.storage_key != VALIDATING_POLICIES:
        return
    generation = obj["metadata"].get("generation")
    if old is not None and generation == old["metadata"].get("generation"):
        return
    warnings = list(_warnings(ctx, obj.get("spec") or {}))
    found: Json = {"expressionWarnings": warnings} if warnings else {}
    obj["status"] = {**(obj.get("status") or {}), "observedGeneration": generation, "typeChecking": found}


def _warnings(ctx: Context, spec: Json) -> Iterator[Json]:
    kinds = sorted(_kinds(ctx, spec), key=lambda found: (found[0].group, found[1].name, found[0].kind))
    environments = [(kind, version, _environment(ctx, spec, kind, version)) for kind, version in kinds]
    for i, rule in enumerate(spec.get("validations") or ()):
        for field in ("expression", "messageExpression"):
            texts = []
            for kind, version, environment in environments:
                text = str(rule.get(field) or "")
                found = environment.compile(text) if text.strip() else None
                if isinstance(found, CompileError):
                    texts.append(f"{kind.group}/{version.name}, Kind={kind.kind}: {found.message}\n")
            if texts:
                yield {"fieldRef": f"spec.validations[{i}].{field}", "warning": "\n".join(texts)}


def _kinds(ctx: Context, spec: Json) -> list[tuple[Kind, Version]]:
    found: dict[tuple[str, str], tuple[Kind, Version]] = {}
    for rule in (spec.get("matchConstraints") or {}).get("resourceRules") or ():
        groups, versions = rule.get("apiGroups") or (), rule.get("apiVersions") or ()
        if any("*" in name for name in (*groups, *versions)):
            continue
        for group in sorted(groups):
            for version in sorted(versions):
                for plural in sorted(rule.get("resources") or ()):
                    kind = ctx.registry.by_path(group, version, plural)
                    if kind is not None and len(found) < _MAX_TYPES:
                        found[(kind.key, version)] = (kind, kind.version(version))
    return list(found.values())


def _environment(ctx: Context, spec: Json, kind: Kind, version: Version) -> AdmissionEnvironment:
    objects: dict[str, t.ObjectFields] = {}
    known: dict[str, t.Type] = {}
    for name, found in (("object", (kind, version)), ("params", _params(ctx, spec))):
        if found is not None:
            types, declared = _type_of(*found)
            objects.update(declared)
            if types is not None:
                known[name] = types
    if "object" in known:
        known["oldObject"] = known["object"]
    environment = AdmissionEnvironment(params=bool(spec.get("paramKind")), types=known, objects=objects)
    compile_variables(environment, spec.get("variables") or ())
    return environment


def _params(ctx: Context, spec: Json) -> tuple[Kind, Version] | None:
    wanted = spec.get("paramKind")
    if not wanted:
        return None
    group, _, version = str(wanted.get("apiVersion") or "").rpartition("/")
    kind = ctx.registry.by_kind(group, version, str(wanted.get("kind") or ""))
    return None if kind is None else (kind, kind.version(version))


def _type_of(kind: Kind, version: Version) -> tuple[t.Type | None, dict[str, t.ObjectFields]]:
    name = f"{api_version(kind.group, version.name)}.{kind.kind}"
    if version.openapi is not None:
        schemas = SchemaTypes()
        found: Any = schemas.type_of(version.openapi, name, root=True)
        return found, schemas.objects
    objects: dict[str, t.ObjectFields] = {}
    return model_type(version.schema, objects), objects
