"""What `kubectl get` shows of webhooks' configurations and admission policies."""

from __future__ import annotations

from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import AGE, NAME

_UNSET = "<unset>"


def _count(field: str) -> Column:
    return Column(field.capitalize(), "integer", lambda obj, _: len((obj.get("spec") or {}).get(field) or ()))


def _param_kind(obj: Json, _: float) -> str:
    wanted = (obj.get("spec") or {}).get("paramKind")
    return f"{wanted.get('apiVersion', '')}/{wanted.get('kind', '')}" if wanted else _UNSET


def _param_ref(obj: Json, _: float) -> str:
    ref: Json = (obj.get("spec") or {}).get("paramRef") or {}
    if ref.get("name"):
        return f"{ref.get('namespace') or '*'}/{ref['name']}"
    labels = (ref.get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or _UNSET


_PARAM_KIND = Column("ParamKind", "string", _param_kind)
WEBHOOKS = (NAME, Column("Webhooks", "integer", lambda obj, _: len(obj.get("webhooks") or ())), AGE)
VALIDATING = (NAME, _count("validations"), _PARAM_KIND, AGE)
MUTATING = (NAME, _count("mutations"), _PARAM_KIND, AGE)
BINDING = (
    NAME,
    Column("PolicyName", "string", lambda obj, _: str((obj.get("spec") or {}).get("policyName") or "")),
    Column("ParamRef", "string", _param_ref),
    AGE,
)
